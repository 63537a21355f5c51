/** Evicting a span evicts what was computed from it, at first and at second hand, kept and about to be kept. */
import { describe, expect, test } from "bun:test";
import { sourcesOf } from "../../worker/cache/sources.ts";
import { foldSpan, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { PlanRun } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { fc } from "../support/fast-check.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { TinyWorld } from "./harness.ts";
import { blendRuns, blockTokens, countUp, makeRuns, submitRuns } from "./plans.ts";

const shape = { blockCount: 64 };
const parts = { system: countUp(1, 5), spans: [countUp(20, 6), countUp(40, 5)], question: countUp(60, 9) };
const long = { params: { maxTokens: 8, ignoreEos: true } };

const keysOf = (runs: readonly PlanRun[], indexes: readonly number[]): BlockKey[] =>
  indexes.flatMap((index) => [...(runs[index]?.blockKeys ?? [])]);

/** What the worker holds that is none of these runs'. */
function others(world: TinyWorld, runs: readonly PlanRun[], indexes: readonly number[]): BlockKey[] {
  const known = new Set(keysOf(runs, indexes));
  return residentKeys(world.engine).filter((key) => !known.has(key));
}

describe("evicting a span", () => {
  for (const positions of ["deferred", "relocate"] as const) {
    test(`takes the chain that attended to it, generated tokens too (${positions})`, async () => {
      const world = new TinyWorld({ shape, positions });
      const runs = makeRuns(parts, true);
      world.engine.submit(submitRuns("r", runs, long));
      await world.settle();
      // The question's blocks, and one that generated tokens fill.
      expect(others(world, runs, [0, 1, 2]).length).toBeGreaterThan(keysOf(runs, [3]).length);
      world.engine.evict(keysOf(runs, [2]));
      expect(new Set(residentKeys(world.engine))).toEqual(new Set(keysOf(runs, [0, 1])));
    });
  }

  test("takes nothing that never saw it, though it shares other spans", async () => {
    const world = new TinyWorld({ shape });
    const other = makeRuns({ ...parts, spans: [countUp(40, 5)] }, true);
    const runs = makeRuns(parts, true);
    world.engine.submit(submitRuns("r", runs, long));
    world.engine.submit(submitRuns("other", other, long));
    await world.settle();
    world.engine.evict(keysOf(runs, [1]));
    const left = new Set(residentKeys(world.engine));
    for (const key of keysOf(runs, [1, 3])) expect(left.has(key)).toBe(false);
    for (const key of keysOf(other, [0, 1, 2])) expect(left.has(key)).toBe(true);
  });

  test("takes what was computed from what was computed from it, of a request that does not see it", async () => {
    const world = new TinyWorld({ shape });
    const [system, span, , answer] = makeRuns(parts, false);
    if (system === undefined || span === undefined || answer === undefined) throw new Error("no runs");
    const first = { ...answer, sees: answer.sees.slice(0, 2) };
    // Stands nested in another chain, without what it was made from.
    const salt = "b3RoZXI=" as CacheSalt;
    const root = foldSpan(rootKey("fake", salt, "main"), first.blockKeys.at(-1) ?? first.rootKey);
    const tokenIds = countUp(70, 8);
    const outer: PlanRun = {
      kind: "main",
      tokenIds,
      position: first.tokenIds.length,
      sees: [{ run: 2, firstToken: 0, tokenCount: first.tokenIds.length, offset: -first.position }],
      rootKey: root,
      blockKeys: runBlockKeys(root, tokenIds, blockTokens, true),
    };
    const runs = [system, span, first, outer];
    world.engine.submit(submitRuns("r", runs, { params: { maxTokens: 0 } }));
    await world.settle();
    expect(new Set(residentKeys(world.engine))).toEqual(new Set(keysOf(runs, [0, 1, 2, 3])));
    world.engine.evict(span.blockKeys);
    expect(new Set(residentKeys(world.engine))).toEqual(new Set(system.blockKeys));
  });

  test("takes runs that have its text as their own, or as a copy", async () => {
    const world = new TinyWorld({ shape });
    const quoted = "0123456789abcdef0123456789abcdef" as BlockKey;
    const [run] = makeRuns({ question: countUp(3, 12) }, true);
    if (run === undefined) throw new Error("no run");
    const copied = countUp(20, 6);
    const blended = blendRuns([{ copied }, { plain: countUp(50, 6) }], { recomputeRatio: 0.5 });
    world.engine.submit(submitRuns("quotes", [{ ...run, quotes: [quoted] }], long));
    world.engine.submit(submitRuns("copies", blended, { params: { maxTokens: 0 } }));
    await world.settle();
    world.engine.evict([quoted]);
    expect(new Set(residentKeys(world.engine))).toEqual(new Set(keysOf(blended, [0, 1])));
    world.engine.evict(keysOf(blended, [0]));
    expect(residentKeys(world.engine)).toEqual([]);
  });

  for (let steps = 0; steps < 8; steps++) {
    test(`after ${steps} steps: nothing of it comes back from requests in progress`, async () => {
      const world = new TinyWorld({ shape, limits: { stepTokens: 6 } });
      const runs = makeRuns(parts, true);
      world.engine.submit(submitRuns("r", runs, long));
      for (let i = 0; i < steps; i++) await world.step();
      world.engine.evict(keysOf(runs, [1]));
      await world.settle();
      expect(world.finishedOf("r").reason).toBe("length");
      expect(new Set(residentKeys(world.engine))).toEqual(new Set(keysOf(runs, [0, 2])));
    });
  }

  test("the key that spans begin with stands for all of them, and for all that has something of them", async () => {
    const world = new TinyWorld({ shape });
    const [corpus, own] = ["Y29ycHVz", "b3duZXI="] as CacheSalt[];
    const runs = makeRuns({ ...parts, salt: corpus }, true);
    const root = runs[1]?.rootKey as BlockKey;
    const others = makeRuns({ spans: [countUp(20, 6)], question: countUp(70, 5), salt: own }, true);
    const [quoting] = makeRuns({ question: countUp(3, 12), salt: own }, true);
    if (quoting === undefined) throw new Error("no run");
    world.engine.submit(submitRuns("r", runs, long));
    world.engine.submit(submitRuns("others", others, long));
    world.engine.submit(submitRuns("quotes", [{ ...quoting, quotes: [root] }], long));
    await world.settle();
    const before = new Set(residentKeys(world.engine));
    expect(keysOf(runs, [0, 1, 2, 3]).every((key) => before.has(key))).toBe(true);
    world.engine.evict([root]);
    // The system text has nothing of the corpus.
    const left = new Set(residentKeys(world.engine));
    for (const key of [...keysOf(runs, [0]), ...keysOf(others, [0, 1])]) expect(left.has(key)).toBe(true);
    for (const key of [...keysOf(runs, [1, 2, 3]), ...quoting.blockKeys]) expect(left.has(key)).toBe(false);
    world.engine.evict([root]);
    expect(new Set(residentKeys(world.engine))).toEqual(left);
  });

  for (const positions of ["deferred", "relocate"] as const) {
    test(`one owner's alone: its chains over a corpus go, the corpus and all others' stay (${positions})`, async () => {
      const world = new TinyWorld({ shape, positions });
      const [corpus, own] = ["Y29ycHVz", "b3duZXI="] as CacheSalt[];
      const runs = makeRuns({ ...parts, salt: corpus }, true);
      const root = runs[1]?.rootKey as BlockKey;
      const [alone] = makeRuns({ question: countUp(90, 12), salt: own }, true);
      if (alone === undefined) throw new Error("no run");
      const ownerOf = (number: number) => ({
        owners: [{ number: 9 }, { number }],
        ofRun: Uint16Array.from(runs, ({ kind }) => (kind === "span" ? 0 : 1)),
      });
      // The same fragments, asked by two tenants: their own chains have roots of their own.
      const others = runs.map((run, index) => {
        if (run.kind === "span") return run;
        const rootKey = foldSpan(run.rootKey, root);
        const isOpen = index === runs.length - 1;
        return { ...run, rootKey, blockKeys: runBlockKeys(rootKey, run.tokenIds, blockTokens, !isOpen) };
      });
      world.engine.submit({ ...submitRuns("kept", runs, long), owners: ownerOf(1) });
      world.engine.submit({ ...submitRuns("revoked", others, long), owners: ownerOf(2) });
      const aloneOwners = { owners: [{ number: 2 }], ofRun: Uint16Array.of(0) };
      world.engine.submit({ ...submitRuns("alone", [alone], long), owners: aloneOwners });
      await world.settle();
      const before = residentKeys(world.engine);
      world.engine.evict([root], 2);
      const left = new Set(residentKeys(world.engine));
      for (const key of keysOf(others, [3])) expect(left.has(key)).toBe(false);
      for (const key of [...keysOf(runs, [0, 1, 2, 3]), ...alone.blockKeys]) expect(left.has(key)).toBe(true);
      // Of the revoked answer also what was generated.
      expect(before.length - left.size).toBeGreaterThan(keysOf(others, [3]).length);
    });
  }

  for (let steps = 0; steps < 8; steps++) {
    test(`after ${steps} steps, of one owner alone: its request stores nothing more, the other's goes on`, async () => {
      const world = new TinyWorld({ shape, limits: { stepTokens: 6 } });
      const runs = makeRuns({ spans: [countUp(20, 6)], question: countUp(60, 9) }, true);
      const owners = { owners: [{ number: 9 }, { number: 2 }], ofRun: Uint16Array.of(0, 1) };
      world.engine.submit({ ...submitRuns("r", runs, long), owners });
      for (let i = 0; i < steps; i++) await world.step();
      world.engine.evict([runs[0]?.rootKey as BlockKey], 2);
      await world.settle();
      expect(world.finishedOf("r").reason).toBe("length");
      expect(new Set(residentKeys(world.engine))).toEqual(new Set(keysOf(runs, [0])));
    });
  }

  test("a root key stands for what is being computed of its chains", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 6 } });
    const runs = makeRuns({ question: countUp(1, 3) }, true);
    world.engine.submit(submitRuns("r", runs, long));
    await world.step();
    world.engine.evict(runs.map((run) => run.rootKey));
    await world.settle();
    expect(residentKeys(world.engine)).toEqual([]);
  });
});

test("sources are what can be reached over what is seen, copied and quoted, and what its spans begin with", () => {
  const run = (index: number, seen: readonly number[], quotes: readonly number[]): PlanRun => ({
    kind: index % 3 === 0 ? "main" : "span",
    tokenIds: countUp(index, 1),
    position: 0,
    sees: seen.map((at) => ({ run: at, firstToken: 0, tokenCount: 1, offset: 0 })),
    rootKey: `root ${index % 5}` as BlockKey,
    blockKeys: [`key ${index}` as BlockKey],
    quotes: quotes.map((quote) => `quote ${quote}` as BlockKey),
  });
  const edges = fc.array(fc.tuple(fc.array(fc.nat(80), { maxLength: 4 }), fc.array(fc.nat(40), { maxLength: 2 })), {
    maxLength: 80,
  });
  fc.assert(
    fc.property(edges, (lists) => {
      const runs = lists.map(([seen, quotes], index) =>
        run(index, index === 0 ? [] : [...new Set(seen.map((at) => at % index))], quotes),
      );
      const expected: Set<string>[] = [];
      for (const { kind, rootKey, sees, quotes = [] } of runs) {
        const reached = new Set<string>(quotes);
        if (kind === "span") reached.add(rootKey);
        for (const { run: at } of sees) for (const key of [`key ${at}`, ...(expected[at] ?? [])]) reached.add(key);
        expected.push(reached);
      }
      expect(sourcesOf(runs).map((keys) => new Set<string>(keys))).toEqual(expected);
    }),
  );
});
