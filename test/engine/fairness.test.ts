/** A short prompt of a tenant with one request, beside a tenant with many. */
import { describe, expect, test } from "bun:test";
import type { Batch } from "../../worker/contract/batch.ts";
import { nobody } from "../../worker/contract/owners.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const [busy, light] = [1, 2];

function rowCounts(batch: Batch): number[] {
  return Array.from(batch.pieceRows.subarray(1), (end, i) => end - batch.pieceRows[i]);
}

class SharedWorld extends TinyWorld {
  readonly steps: number[][];

  constructor(prefillTokensBesideDecodes = 16, rowCostTokens = Number.POSITIVE_INFINITY, decodeStepRows?: number) {
    const steps: number[][] = [];
    super({
      shape: { blockCount: 256, contextTokens: 2_048 },
      limits: {
        maxRunningRequests: 32,
        maxWaitingRequests: 64,
        stepTokens: 64,
        prefillTokensBesideDecodes,
        rowCostTokens,
        decodeStepRows,
      },
      onForward: (batch) => void steps.push(rowCounts(batch)),
    });
    this.steps = steps;
  }

  ask(owner: number, name: string, tokens: number, maxTokens = 12): void {
    const parts = { question: countUp(name.charCodeAt(0), tokens), salt: `owner-${owner}` as CacheSalt };
    const message = submitPlan(name, parts, { params: { maxTokens, ignoreEos: true } });
    this.engine.submit({ ...message, owners: { owners: [{ number: owner }], ofRun: Uint16Array.of(0) } });
  }

  /** Four requests that are answered. */
  async occupied(): Promise<void> {
    for (const name of ["a", "b", "c", "d"]) this.ask(busy, name, 4, 40);
    for (let step = 0; step < 3; step++) await this.step();
    this.steps.length = 0;
  }

  async step1(): Promise<number[] | undefined> {
    await this.step();
    return this.steps.at(-1);
  }
}

describe("a tenant with one request beside one with many", () => {
  test("has its prompt in a step of its own, and then takes its turns with the others", async () => {
    const world = new SharedWorld();
    await world.occupied();
    world.ask(light, "x", 9);
    expect(await world.step1()).toEqual([9]);
    expect(world.tokensOf("x")).toHaveLength(1);
    expect(await world.step1()).toEqual([1, 1, 1, 1, 1]);
    await world.settle();
    for (const [owner, name, tokens, maxTokens] of [
      [light, "x", 9, 12],
      [busy, "a", 4, 40],
    ] as const) {
      const parts = { question: countUp(name.charCodeAt(0), tokens), salt: `owner-${owner}` as CacheSalt };
      const message = submitPlan(name, parts, { params: { maxTokens, ignoreEos: true } });
      const expected = referenceAnswer(message, world.backend.shape, eosTokenIds);
      expect(world.tokensOf(name)).toEqual(expected.tokenIds);
    }
  });

  test("takes every other step at most, however many such tenants there are", async () => {
    const world = new SharedWorld();
    await world.occupied();
    for (let owner = 10; owner < 14; owner++) {
      world.ask(owner, String.fromCharCode(70 + owner), 5);
      await world.step();
    }
    const withBusy = world.steps.map((rows) => rows.filter((count) => count === 1).length >= 4);
    expect(withBusy).toEqual([false, true, false, true]);
  });

  test("with a long prompt is one of all", async () => {
    const world = new SharedWorld();
    await world.occupied();
    world.ask(light, "x", 17);
    expect(await world.step1()).toEqual([1, 1, 1, 1, 16]);
  });

  test("may have some more, as long as they are fewer than four", async () => {
    const world = new SharedWorld();
    await world.occupied();
    for (const name of ["x", "y", "z"]) world.ask(light, name, 5);
    expect(await world.step1()).toEqual([5, 5, 5]);
    const many = new SharedWorld();
    await many.occupied();
    for (const name of ["w", "x", "y", "z"]) many.ask(light, name, 3);
    expect(await many.step1()).toEqual([1, 1, 1, 1, 3, 3, 2]);
  });

  test("beside fewer than four of another's is one of all", async () => {
    const quiet = new SharedWorld();
    for (const name of ["a", "b", "c"]) quiet.ask(busy, name, 4, 40);
    await quiet.step();
    quiet.ask(light, "x", 5);
    expect(await quiet.step1()).toEqual([1, 1, 1, 5]);
  });

  test("leaves it fewer prompt rows in a step, for a minute", async () => {
    const world = new SharedWorld();
    const flood = async (from: number): Promise<number> => {
      for (let i = 0; i < 6; i++) world.ask(busy, String.fromCharCode(from + i), 15, 1);
      const [first = []] = [await world.step1()];
      await world.settle();
      return first.reduce((sum, rows) => sum + rows, 0);
    };
    expect(await flood(65)).toBe(64);
    world.ask(light, "z", 5, 1);
    await world.settle();
    expect(await flood(75)).toBe(8);
    world.nowMs += 60_000;
    expect(await flood(85)).toBe(64);
  });
});

describe("prompts of one tenant, while nobody else has a request", () => {
  const firstStep = async (world: SharedWorld, prompts: readonly number[]): Promise<number> => {
    world.steps.length = 0;
    for (const [at, tokens] of prompts.entries()) world.ask(busy, String.fromCharCode(65 + at), tokens, 1);
    const rows = (await world.step1()) ?? [];
    await world.settle();
    return rows.reduce((sum, count) => sum + count, 0);
  };

  test.each([
    ["a long one", [400]],
    ["the long one and a short one", [400, 3]],
    ["three short ones", [15, 15, 15]],
  ])(
    "%s: a step is short when another tenant was there lately, so that its next request waits little",
    async (_, prompts) => {
      const world = new SharedWorld();
      expect(await firstStep(world, prompts)).toBe(
        Math.min(
          64,
          prompts.reduce((sum, tokens) => sum + tokens, 0),
        ),
      );
      const shared = new SharedWorld();
      shared.ask(light, "z", 5, 1);
      await shared.settle();
      // As many as beside decodes, and the tokens of the short prompt.
      expect(await firstStep(shared, prompts)).toBe(prompts[1] === 3 ? 16 + 3 : 16);
    },
  );

  test("what was asked for in nobody's name is no other tenant's", async () => {
    const world = new SharedWorld();
    world.ask(nobody.number, "z", 5, 1);
    await world.settle();
    expect(await firstStep(world, [400])).toBe(64);
  });

  test("short ones of many tenants are in one step all the same", async () => {
    const world = new SharedWorld();
    for (const owner of [11, 12, 13, 14]) world.ask(owner, String.fromCharCode(60 + owner), 15);
    expect(await world.step1()).toEqual([15, 15, 15, 15]);
  });
});

describe("a stream beside another tenant's long prompt", () => {
  const streaming = async (world: SharedWorld): Promise<void> => {
    world.ask(light, "x", 5, 60);
    await world.step();
    world.ask(busy, "A", 400, 1);
    await world.step();
    world.steps.length = 0;
  };

  test("has steps of its own between those with rows of the prompt, which get half of what there is", async () => {
    const world = new SharedWorld();
    await streaming(world);
    for (let step = 0; step < 7; step++) await world.step();
    // A step with 8 of 16 rows is followed by five of the stream's alone.
    expect(world.steps).toEqual([[1], [1], [1], [1], [1], [1, 8], [1]]);
    await world.settle();
    expect(world.finishedOf("A").usage.completionTokens).toBe(1);
  });

  test("stands in no step of a short answer that comes behind its rows, and goes on after it", async () => {
    const world = new SharedWorld();
    world.ask(light, "x", 5, 1);
    await world.step();
    world.ask(busy, "A", 400, 1);
    for (let step = 0; step < 3; step++) await world.step();
    world.steps.length = 0;
    world.ask(light, "y", 5, 8);
    for (let step = 0; step < 9; step++) await world.step();
    expect(world.steps).toEqual([[5], [1], [1], [1], [1], [1], [1], [1], [16]]);
    expect(world.tokensOf("y")).toHaveLength(8);
  });

  test("of its own tenant's shares every step", async () => {
    const world = new SharedWorld();
    world.ask(light, "x", 5, 60);
    await world.step();
    world.ask(light, "A", 400, 1);
    world.steps.length = 0;
    for (let step = 0; step < 3; step++) await world.step();
    expect(world.steps).toEqual([
      [1, 16],
      [1, 16],
      [1, 16],
    ]);
  });

  test("waits for fewer rows the more they read, and never for the end of a prompt that gets none", async () => {
    const world = new SharedWorld(64, 16);
    await streaming(world);
    const rows: number[] = [];
    while (world.messages.every((message) => message.type !== "finished")) {
      const step = (await world.step1()) ?? [];
      if (step.length > 1) rows.push(step[1] ?? 0);
    }
    expect(rows[0]).toBeGreaterThan(rows.at(-1) ?? 0);
    expect(rows.every((count, index) => index === 0 || count <= (rows[index - 1] ?? 0))).toBe(true);
    expect(Math.min(...rows)).toBeGreaterThanOrEqual(1);
    await world.settle();
    expect(world.finishedOf("A").usage.completionTokens).toBe(1);
  });

  test("many of them do not keep it from its steps", async () => {
    const world = new SharedWorld();
    for (let owner = 10; owner < 19; owner++) world.ask(owner, String.fromCharCode(60 + owner), 5, 60);
    for (let step = 0; step < 4; step++) await world.step();
    world.ask(busy, "z", 400, 1);
    world.steps.length = 0;
    for (let step = 0; step < 3; step++) await world.step();
    expect(world.steps.map((rows) => rows.length)).toEqual([10, 10, 10]);
  });
});

describe("where it is known how many rows take as long as a decode step", () => {
  const known = async (): Promise<SharedWorld> => {
    const world = new SharedWorld(64, Number.POSITIVE_INFINITY, 2);
    world.ask(light, "x", 5, 1);
    await world.settle();
    world.steps.length = 0;
    return world;
  };

  test("a step of a long prompt takes as long as six of them while another tenant is there", async () => {
    const world = await known();
    world.ask(busy, "A", 100, 1);
    await world.settle();
    // Its end is a short prompt.
    expect(world.steps).toEqual([[12], [12], [12], [64]]);
  });

  test("the other tenant has as many steps of its own as take as long", async () => {
    const world = await known();
    world.ask(light, "x", 5, 60);
    await world.step();
    world.ask(busy, "A", 100, 1);
    world.steps.length = 0;
    for (let step = 0; step < 8; step++) await world.step();
    expect(world.steps).toEqual([[1, 12], [1], [1], [1], [1], [1], [1], [1, 12]]);
  });

  test("what is only prepared is in no step of another tenant's prompt, however little it is", async () => {
    const world = await known();
    world.ask(busy, "A", 40, 0);
    world.ask(light, "y", 5, 1);
    await world.settle();
    expect(world.steps).toEqual([[5], [12], [12], [12], [4]]);
  });
});
