/** Several tenants in one pool: what each keeps, who waits for memory, what is retained and pinned. */
import { describe, expect, test } from "bun:test";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import type { KvOwner } from "../../worker/contract/owners.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { TinyWorld } from "./harness.ts";
import { countUp, makeRuns, type PlanParts, type SubmitOptions, submitPlan } from "./plans.ts";

const prepare: SubmitOptions = { params: { maxTokens: 0 } };
const saltOf = (owner: number) => `owner-${owner}` as CacheSalt;

interface Extra extends SubmitOptions {
  readonly quotaBlocks?: number;
  readonly retention?: number;
}

/** A text of `blockCount` full blocks in a chain of its owner's. */
const text = (owner: number, from: number, blockCount: number): PlanParts => ({
  spans: [countUp(from, 4 * blockCount)],
  salt: saltOf(owner),
});

function of(owner: number, name: string, parts: PlanParts, { quotaBlocks, retention, ...options }: Extra = prepare) {
  const message = submitPlan(name, parts, options);
  const who: KvOwner = quotaBlocks === undefined ? { number: owner } : { number: owner, quotaBlocks };
  const owners = { owners: [who], ofRun: new Uint16Array(message.plan.runs.length) };
  return { ...message, owners, ...(retention !== undefined && { retention }) };
}

let names = 0;
async function run(world: TinyWorld, owner: number, parts: PlanParts, extra: Extra = prepare): Promise<void> {
  world.engine.submit(of(owner, `r${names++}`, parts, extra));
  await world.settle();
}

const keysOf = (parts: PlanParts): BlockKey[] => makeRuns(parts, false).flatMap((run) => [...run.blockKeys]);

function residentOf(world: TinyWorld, parts: PlanParts): number {
  const resident = new Set(residentKeys(world.engine));
  return keysOf(parts).filter((key) => resident.has(key)).length;
}

const worldOf = (blockCount: number, maxRunningRequests = 4): TinyWorld =>
  new TinyWorld({ shape: { blockCount }, limits: { maxRunningRequests, stepTokens: 16 } });

describe("a tenant that computes ever new text", () => {
  test("pushes its own out, and leaves another's where it is", async () => {
    const world = worldOf(16);
    const corpus = text(1, 1, 4);
    await run(world, 1, corpus);
    for (let i = 0; i < 20; i++) await run(world, 2, text(2, 7 * i, 3));
    expect(residentOf(world, corpus)).toBe(4);
    await run(world, 1, corpus);
    expect(world.finishedOf(`r${names - 1}`).usage.cachedTokens).toBe(16);
  });

  test("is counted for: without owners the oldest goes, whosever it is", async () => {
    const world = worldOf(16);
    const corpus = text(1, 1, 4);
    await run(world, 0, corpus);
    for (let i = 0; i < 20; i++) await run(world, 0, text(2, 7 * i, 3));
    expect(residentOf(world, corpus)).toBe(0);
  });

  test("over a corpus of another's adds to that one's blocks", async () => {
    const world = worldOf(16);
    const message = submitPlan("granted", { ...text(1, 1, 3), question: countUp(50, 8) }, prepare);
    world.engine.submit({
      ...message,
      owners: { owners: [{ number: 1 }, { number: 2 }], ofRun: Uint16Array.of(0, 1) },
    });
    await world.settle();
    for (let i = 0; i < 20; i++) await run(world, 2, text(2, 7 * i, 3));
    expect(residentOf(world, text(1, 1, 3))).toBe(3);
  });
});

describe("room", () => {
  const answer = (maxTokens: number): Extra => ({ params: { maxTokens, ignoreEos: true } });
  const ask = (owner: number, from: number, tokens: number): PlanParts => ({
    question: countUp(from, tokens),
    salt: saltOf(owner),
  });

  function running(world: TinyWorld): number {
    return world.engine.stats().runningRequests;
  }

  test("a second request of a tenant waits where only others' floors would make room, and others pass it", async () => {
    const world = worldOf(16);
    const corpus = text(1, 1, 6);
    await run(world, 1, corpus);
    world.engine.submit(of(2, "first", ask(2, 30, 24), answer(4)));
    world.engine.submit(of(2, "second", ask(2, 60, 24), answer(4)));
    world.engine.submit(of(3, "third", ask(3, 80, 4), answer(2)));
    await world.step();
    // 6 kept and below its floor, 7 for the first one and 1 for the third: the second would need 6.
    expect([running(world), world.engine.stats().waitingRequests]).toEqual([2, 1]);
    await world.settle();
    for (const name of ["first", "second", "third"]) expect(world.finishedOf(name).reason).toBe("length");
    expect(residentOf(world, corpus)).toBe(6);
  });

  test("a tenant's own kept text is in nobody's way, its own least of all", async () => {
    const world = worldOf(16);
    await run(world, 1, text(1, 1, 4));
    await run(world, 2, text(2, 20, 8));
    for (const name of ["a", "b"]) world.engine.submit(of(2, name, ask(2, name.charCodeAt(0), 20), answer(1)));
    await world.step();
    expect([running(world), world.engine.stats().waitingRequests]).toEqual([2, 0]);
    await world.settle();
    expect(residentOf(world, text(1, 1, 4))).toBe(4);
  });

  test("the only request of a tenant gets what there is", async () => {
    const world = worldOf(16);
    await run(world, 1, text(1, 1, 6));
    world.engine.submit(of(2, "large", ask(2, 30, 52), answer(4)));
    await world.settle();
    expect(world.finishedOf("large").reason).toBe("length");
    expect(residentOf(world, text(1, 1, 6))).toBeLessThan(6);
  });

  test("answers that grow into others' floors end one after the other instead", async () => {
    const world = worldOf(16);
    const corpus = text(1, 1, 4);
    await run(world, 1, corpus);
    for (const [index, name] of ["a", "b"].entries()) {
      world.engine.submit(of(2, name, ask(2, 30 + 20 * index, 12), answer(24)));
    }
    await world.settle();
    expect(world.engine.stats().preemptions).toBeGreaterThan(0);
    expect(residentOf(world, corpus)).toBe(4);
    for (const name of ["a", "b"]) expect(world.tokensOf(name)).toHaveLength(24);
  });
});

describe("a quota", () => {
  test("bounds what stays, in a pool with room for more; the oldest goes", async () => {
    const world = worldOf(16);
    const quota: Extra = { ...prepare, quotaBlocks: 4 };
    const texts = [text(1, 1, 2), text(1, 20, 2), text(1, 40, 2)];
    for (const parts of texts) await run(world, 1, parts, quota);
    expect(texts.map((parts) => residentOf(world, parts))).toEqual([0, 2, 2]);
    expect(world.engine.stats()).toMatchObject({ cachedBlocks: 4, freeBlocks: 12 });
  });

  test("lets a larger request run, and keeps the beginning of it", async () => {
    const world = worldOf(16);
    const large = text(1, 1, 8);
    await run(world, 1, large, { ...prepare, quotaBlocks: 3 });
    expect(residentOf(world, large)).toBe(3);
    expect(residentKeys(world.engine).sort()).toEqual(keysOf(large).slice(0, 3).sort());
  });

  test("of nothing keeps nothing; one that is taken back is none", async () => {
    const world = worldOf(16);
    await run(world, 1, text(1, 1, 2), { ...prepare, quotaBlocks: 0 });
    expect(world.engine.stats().cachedBlocks).toBe(0);
    await run(world, 1, text(1, 1, 2));
    expect(world.engine.stats().cachedBlocks).toBe(2);
  });

  test("takes nothing of others' where the tenant has something of its own to give", async () => {
    const world = worldOf(8);
    const other = text(2, 50, 4);
    await run(world, 2, other);
    await run(world, 1, text(1, 1, 4));
    await run(world, 1, text(1, 20, 2), { ...prepare, quotaBlocks: 4 });
    expect(residentOf(world, other)).toBe(4);
  });
});

describe("what is to stay longer", () => {
  test("retained text goes after text that nobody retains, while its time lasts", async () => {
    const world = worldOf(8);
    const [kept, plain] = [text(1, 1, 3), text(1, 20, 3)];
    await run(world, 1, kept, { ...prepare, retention: 1 });
    await run(world, 1, plain);
    await run(world, 1, text(1, 40, 4));
    expect([residentOf(world, kept), residentOf(world, plain)]).toEqual([3, 1]);
    world.nowMs += 300_000;
    await run(world, 1, text(1, 60, 4));
    expect(residentOf(world, kept)).toBe(0);
  });

  test("text that was found is retained as well", async () => {
    const world = worldOf(8);
    const [kept, plain] = [text(1, 1, 3), text(1, 20, 3)];
    await run(world, 1, kept);
    await run(world, 1, kept, { ...prepare, retention: 3 });
    await run(world, 1, plain);
    await run(world, 1, text(1, 40, 4));
    expect([residentOf(world, kept), residentOf(world, plain)]).toEqual([3, 1]);
  });

  test("is not asked for at the cost of the owner of a corpus that another asks over", async () => {
    const world = worldOf(8);
    const [asked, own] = [text(1, 1, 2), text(1, 20, 3)];
    const message = submitPlan("granted", { ...asked, question: countUp(50, 4) }, prepare);
    const owners = { owners: [{ number: 1 }, { number: 2 }], ofRun: Uint16Array.of(0, 1) };
    world.engine.submit({ ...message, owners, retention: 4 });
    await world.settle();
    await run(world, 1, own);
    await run(world, 1, text(1, 40, 4));
    expect(residentOf(world, asked)).toBe(0);
  });

  test("pinned text goes last, also what is computed only after it was pinned", async () => {
    const world = worldOf(8);
    const [early, late] = [text(1, 1, 2), text(1, 20, 2)];
    await run(world, 1, early);
    world.engine.cache.pin([...keysOf(early), ...keysOf(late)], true);
    await run(world, 1, late);
    for (let i = 0; i < 5; i++) await run(world, 1, text(1, 40 + i, 3), { ...prepare, retention: 4 });
    expect([residentOf(world, early), residentOf(world, late)]).toEqual([2, 2]);
    world.engine.cache.pin(keysOf(early), false);
    await run(world, 1, text(1, 70, 4), { ...prepare, retention: 4 });
    expect([residentOf(world, early), residentOf(world, late)]).toEqual([0, 2]);
  });

  test("a pin ends with an eviction", async () => {
    const world = worldOf(8);
    const pinned = text(1, 1, 2);
    world.engine.cache.pin(keysOf(pinned), true);
    world.engine.evict(keysOf(pinned));
    await run(world, 1, pinned);
    for (let i = 0; i < 3; i++) await run(world, 1, text(1, 40 + 9 * i, 3));
    expect(residentOf(world, pinned)).toBe(0);
  });

  test("a pin keeps nothing that a request needs", async () => {
    const world = worldOf(8);
    const pinned = text(1, 1, 8);
    world.engine.cache.pin(keysOf(pinned), true);
    await run(world, 1, pinned);
    await run(world, 2, text(2, 40, 8));
    expect(residentOf(world, text(2, 40, 8))).toBe(8);
  });
});

test("owners that contradict the plan are refused by name", () => {
  const base = of(1, "r", text(1, 1, 2));
  const broken: readonly [Partial<SubmitMessage>, string][] = [
    [{ owners: { owners: [{ number: -1 }], ofRun: Uint16Array.of(0) } }, "owners.owners[0].number"],
    [{ owners: { owners: [{ number: 1, quotaBlocks: 0.5 }], ofRun: Uint16Array.of(0) } }, "quotaBlocks"],
    [{ owners: { owners: [{ number: 1 }], ofRun: Uint16Array.of(1) } }, "an index of owners.ofRun"],
    [{ owners: { owners: [{ number: 1 }], ofRun: Uint16Array.of(0, 0) } }, "owners.ofRun has 2 entries"],
    [{ owners: { owners: [], ofRun: Uint16Array.of(0) } }, "an index of owners.ofRun"],
    [{ retention: 6 }, "retention"],
    [{ retention: -1 }, "retention"],
  ];
  for (const [change, name] of broken) {
    const world = worldOf(8);
    world.engine.submit({ ...base, ...change });
    expect(world.failedOf("r")).toMatchObject({ code: "bad_plan", message: expect.stringContaining(name) });
  }
});
