/** Load or compute: what costs are measured, in whose turn files are loaded, and which way a part goes. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { BlockPool } from "../../worker/cache/block-pool.ts";
import type { PrefixCache } from "../../worker/cache/prefix-cache.ts";
import type { KvObject } from "../../worker/contract/kv-object.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { StepGaps } from "../../worker/tiers/disk-tier.ts";
import { Cost, LoadQueue } from "../../worker/tiers/load-queue.ts";
import { Loads } from "../../worker/tiers/loads.ts";
import type { LackingRun } from "../../worker/tiers/requester.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { DiskFolder, openWorld, writeSpans } from "./disk-world.ts";

describe("a cost", () => {
  test("is a guess until something was measured, then what the first units took", () => {
    const cost = new Cost(7, 100, () => 0);
    expect(cost.each).toBe(7);
    cost.note(0, 50);
    expect(cost.each).toBe(7);
    cost.note(50, 100);
    cost.note(50, 300);
    expect(cost.each).toBe(4);
  });

  test("follows later measurements slowly, and is drawn back by a tenth a minute", () => {
    let nowMs = 0;
    const cost = new Cost(7, 10, () => nowMs);
    cost.note(10, 20);
    cost.note(10, 180);
    expect(cost.each).toBe(4);
    nowMs = 60_000;
    expect(cost.each).toBeCloseTo(2 + 2 * 0.9, 9);
    nowMs = 3_600_000;
    expect(cost.each).toBeCloseTo(2, 1);
  });
});

test("owners are served in turn, each in its own order", () => {
  const queue = new LoadQueue<{ owner: { number: number }; bytes: number; name: string }>();
  const load = (number: number, name: string, bytes = 10) => queue.add({ owner: { number }, bytes, name });
  for (const name of ["a1", "a2", "a3"]) load(1, name);
  load(2, "b1");
  load(3, "c1", 25);
  // Its own 30 bytes, all of the second's, all of the third's.
  expect(queue.bytesBefore({ number: 1 })).toBe(30 + 10 + 25);
  // The first owner is not served more often than the second.
  expect(queue.bytesBefore({ number: 2 })).toBe(10 + 10 + 10);
  expect(queue.bytesBefore({ number: 9 })).toBe(0);
  const order = Array.from({ length: 6 }, () => queue.take()?.name);
  expect(order).toEqual(["a1", "b1", "c1", "a2", "a3", undefined]);
});

describe("a part of a run", () => {
  const spans = [countUp(3, 40), countUp(60, 130)];
  const tokens = 170;
  let folder: DiskFolder;
  let objects: KvObject[];
  beforeAll(async () => {
    folder = new DiskFolder();
    objects = await writeSpans(folder.path, spans);
  });
  afterAll(() => folder[Symbol.dispose]());

  /**
   * Asks where a token takes so long to be computed.
   * @param isMeasured files were read before: 200 MB in a second
   * @returns rows that were computed, and objects that were loaded
   */
  async function ask(tokenMs: number, isMeasured = true): Promise<{ rows: number; loaded: number }> {
    const world = openWorld();
    world.engine.tiers.noteStep(1_000, 1_000 * tokenMs);
    if (isMeasured) world.engine.tiers.disk?.loads.costs.noteLoad(64 * 2 ** 20, (64 * 2 ** 20) / 200_000, 0);
    world.engine.tiers.disk?.receive({ type: "catalog", folder: folder.path, objects, warm: false });
    world.engine.submit(submitPlan("a", { spans, question: countUp(80, 5) }, { params: { maxTokens: 1 } }));
    await world.settle();
    const loaded = world.messages.flatMap((one) => (one.type === "loaded" ? one.objectIds : []));
    return { rows: world.backend.rowCount, loaded: loaded.length };
  }

  test("is loaded where computing takes longer", async () => {
    expect(await ask(1_000)).toEqual({ rows: 5, loaded: objects.length });
  });

  test("is computed where loading takes longer", async () => {
    expect(await ask(1e-9)).toEqual({ rows: 5 + tokens, loaded: 0 });
  });

  test("is loaded where nothing was loaded yet, however fast computing is: else nobody would ever know", async () => {
    expect(await ask(1e-9, false)).toEqual({ rows: 5, loaded: objects.length });
  });

  test("goes to the way that ends first: some are loaded while others are computed", async () => {
    const [first] = objects;
    const fileMs = (2 * 4_096 + Math.ceil((first?.tokenCount ?? 0) / 4) * 4_096) / 200_000;
    const { rows, loaded } = await ask((fileMs / 40) * 0.9);
    expect(loaded).toBeGreaterThan(0);
    expect(rows).toBeGreaterThan(5);
    expect(rows).toBeLessThan(5 + tokens);
  });
});

describe("of eight files of which one is loaded while two are computed", () => {
  const [fileCount, fileTokens] = [8, 32];
  const owner = { number: 1 };
  const objects = Array.from({ length: fileCount }, (_, index): KvObject => {
    const [id, rootKey, lastKey] = ["f", "r", "k"].map((name) => `${name}${index}`.padStart(32, "0"));
    const key = { rootKey: rootKey as BlockKey, previousKey: rootKey as BlockKey, lastKey: lastKey as BlockKey };
    return { id: `${id}`, dataKey: new Uint8Array(32), ...key, position: 0, tokenCount: fileTokens, owner };
  });
  const run = ({ rootKey, lastKey }: KvObject): LackingRun => ({
    ...{ plan: { rootKey, position: 0 }, keyed: true, complete: false, owner, blocks: [], blockCount: 1 },
    keyAt: () => lastKey,
    isResident: () => false,
  });
  const blocks = { name: "", bytes: 4_080, layers: 1, kvHeads: 1, headDim: 1, layout: 1, element: 1, codec: 0 };
  const fileMs = (3 * 4_096) / 200_000;

  /** @returns how many of the files are loaded for a request that lacks them all */
  function loadedOf(slowness: number, sharesProcessor = true): number {
    const loads = new Loads({
      sharesProcessor,
      ...{ shape: { modelDigest: "", blockTokens: fileTokens, blocks }, slowness: () => slowness },
      ...{ mover: { format: blocks, pack: () => undefined, unpack: () => undefined } },
      pool: { availableCount: 0 } as BlockPool,
      cache: { has: () => false, cachedFreeCount: 0 } as unknown as PrefixCache,
      ...{ reservedBlocks: () => 0, slices: () => () => undefined, emit: () => undefined, onChange: () => undefined },
      files: {
        open: () => new Promise(() => undefined),
        rename: () => Promise.reject(),
        unlink: () => Promise.reject(),
      },
      nowMs: () => 0,
    });
    loads.costs.noteLoad(64 * 2 ** 20, (64 * 2 ** 20) / 200_000, 0);
    loads.costs.tokens.noteStep(2_048, (2_048 / fileTokens) * fileMs * 2);
    loads.add("", objects, false);
    loads.want([{ runs: objects.map(run), openRun: undefined, reservedBlocks: fileCount }]);
    return objects.filter(({ lastKey }) => loads.isComing(lastKey)).length;
  }

  test("none is computed, which would take longer, unless there is no time for files", () => {
    expect(loadedOf(1)).toBe(fileCount);
    expect(loadedOf(1.9)).toBe(fileCount);
    expect(loadedOf(2.1)).toBe(0);
  });

  test("beside a device all are loaded where that is sooner, and otherwise those that are there by the time that the others are computed", () => {
    expect(loadedOf(1.9, false)).toBe(fileCount);
    // A file takes twice as long as what it holds takes to compute: three take as long as six, and five are computed.
    expect(loadedOf(4, false)).toBe(3);
    expect(loadedOf(100, false)).toBe(0);
  });
});

describe("turns of work on files while a step runs", () => {
  /** @returns whether a turn came before the step's end, and whether after it */
  async function turnsOf(sharesProcessor: boolean, isDecoding: boolean): Promise<readonly boolean[]> {
    const gaps = new StepGaps({ sharesProcessor, isDecoding: () => isDecoding });
    gaps.begin();
    let hasTurn = false;
    void gaps
      .slices(() => false)(1)
      ?.then(() => {
        hasTurn = true;
      });
    for (let round = 0; round < 5; round++) await nextRound();
    const during = hasTurn;
    gaps.rest();
    await nextRound();
    return [during, hasTurn];
  }

  test("come at once where a device computes prompts, and wait for its end where tokens or the processor would", async () => {
    expect(await turnsOf(false, false)).toEqual([true, true]);
    expect(await turnsOf(false, true)).toEqual([false, true]);
    expect(await turnsOf(true, false)).toEqual([false, true]);
  });
});

const nextRound = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
