/** What becomes of lists from step to step, what is predicted, and choices that are refused. On the slow twin's kernels. */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { choiceFlags } from "../../worker/contract/sparse.ts";
import { CpuKernels } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { candidatesOf, dot, predictedQuery } from "./choice-oracle.ts";
import { blocksOf, sceneLayers as layers, listsOf, run, Scene, seatOptions, twoEntries } from "./choice-scene.ts";
import { greatestDifference } from "./compare.ts";
import { Random } from "./random.ts";

const seed = testSeed();
const twin = new CpuKernels(await buildCpuKernels(), { isa: "reference", threadCount: 1 });
afterAll(() => twin.close());

describe("predicted queries", () => {
  const random = new Random(seed);
  const scene = new Scene(random, seatOptions(random, { headDim: 64 }));
  const pool = scene.open(twin);
  afterAll(() => pool.close());
  /** Queries that wander, the newest first. */
  const wandering = (count: number, keep: number) => {
    const queries = [random.normals(64, 40)];
    while (queries.length < count) {
      const fresh = random.normals(64, 40);
      queries.unshift(queries[0].map((x, d) => keep * x + Math.sqrt(1 - keep * keep) * fresh[d]));
    }
    return queries;
  };

  test("are the equations', from any number of queries", () => {
    for (let round = 0; round < 60; round++) {
      const newest = wandering(1 + (round % 17), random.pick([0, 0.5, 0.9, 0.99]));
      const wanted = predictedQuery(newest);
      const size = Math.sqrt(newest.reduce((sum, x) => sum + dot(x, x), 0) / newest.length / 64);
      // Products of 64 numbers in float32, which four steps of Newton's carry on; weights are rounded once more.
      const got = pool.seats?.predict(newest) ?? new Float32Array();
      expect(greatestDifference(got, Float32Array.from(wanted))).toBeLessThan(size * 2 ** -12);
    }
  });

  test("come closer to the next one than the last of all, where queries are noisy views of one", () => {
    let [predicted, last] = [0, 0];
    for (let round = 0; round < 40; round++) {
      const one = random.normals(64, 40);
      const views = Array.from({ length: 18 }, () => random.normals(64, 40).map((noise, d) => one[d] + noise));
      const got = pool.seats?.predict(views.slice(1)) ?? new Float32Array();
      predicted += Math.hypot(...got.map((x, d) => x - views[0][d]));
      last += Math.hypot(...views[1].map((x, d) => x - views[0][d]));
    }
    expect(predicted).toBeLessThan(last * 0.9);
  });

  test("by the listing begin one before the newest, with weights that are near uniform", () => {
    const newest = wandering(17, 0.9);
    const got = pool.seats?.predict(newest, true) ?? new Float32Array();
    const uniform = new Float64Array(64);
    for (let k = 1; k <= 16; k++) {
      for (let i = 1; i <= k; i++) for (let d = 0; d < 64; d++) uniform[d] += newest[i][d] / k / 16;
    }
    const size = Math.hypot(...uniform);
    expect(Math.hypot(...got.map((x, d) => x - uniform[d]))).toBeLessThan(size * 0.2);
    const moved = [newest[0].map((x) => x + 100), ...newest.slice(1)];
    const away = pool.seats?.predict(moved, true) ?? new Float32Array();
    expect(Math.hypot(...away.map((x, d) => x - got[d]))).toBeLessThan(size * 0.2);
  });
});

describe("when lists change", () => {
  const heads = (scene: Scene) => layers.length * scene.options.kvHeads;
  const sceneOf = (number: number) => {
    const random = new Random(seed + number);
    return new Scene(random, seatOptions(random, { kvType: "float16", blockTokens: 32 }));
  };

  test("of equal scores the lower numbers are chosen", () => {
    const scene = sceneOf(1);
    {
      const pool = scene.open(twin);
      new Uint8Array(pool.memory()).fill(0);
      pool.seats?.writeShadows(blocksOf(pool));
      const step = scene.next({ mode: "now", tokens: 25 });
      run(pool, scene, step);
      const numbers = candidatesOf(scene.options, step.segments).map(({ forced }, number) => ({ forced, number }));
      const forced = numbers.filter((each) => each.forced);
      const wanted = [...forced, ...numbers.filter((each) => !each.forced).slice(0, 25)].map(({ number }) => number);
      for (const list of listsOf(pool)) expect(list).toEqual(wanted);
      pool.close();
    }
  });

  test("tokens that stay keep their slots, and new ones fill what became free, rising", () => {
    const scene = sceneOf(2);
    const pool = scene.open(twin);
    let before: number[][] = [];
    let changed = 0;
    for (let i = 0; i < 12; i++) {
      const step = scene.next({ mode: "now", tokens: 25 });
      run(pool, scene, step);
      const lists = listsOf(pool);
      for (const [index, list] of lists.entries()) {
        const old = before[index];
        if (old === undefined) continue;
        const fresh = list.filter((number) => !old.includes(number));
        expect(list).toEqual(old.map((number) => (list.includes(number) ? number : Number(fresh.shift()))));
        changed += list.filter((number) => !old.includes(number)).length;
      }
      const sorted = lists.map((list) => list.filter((number, slot) => before.every((old) => old[slot] !== number)));
      if (i > 0) for (const added of sorted) expect(added).toEqual([...added].sort((a, b) => a - b));
      before = lists;
    }
    expect(changed).toBeGreaterThan(0);
    expect(pool.seats?.counts(1).changed).toBe(changed + 25 * heads(scene));
    pool.close();
  });

  test("lists are chosen ahead every R steps and wherever tokens leave the tail; the check chooses again", () => {
    const scene = sceneOf(3);
    const pool = scene.open(twin);
    let chosen = 0;
    let candidates = 0;
    for (let i = 0; i < 24; i++) {
      const step = scene.next({ mode: "ahead", tokens: 25, refreshSteps: 4, leastCosine: -1 });
      const count = candidatesOf(scene.options, step.segments).length;
      run(pool, scene, step);
      // The seat's number is 1, so its turn is every step whose number is 3 more than a multiple of 4.
      if (i === 0 || i % 4 === 3 || count !== candidates) chosen += heads(scene);
      candidates = count;
      expect(pool.seats?.counts(1)).toMatchObject({ lists: (i + 1) * heads(scene), chosen, chosenAgain: 0 });
    }
    for (let i = 1; i <= 5; i++) {
      run(pool, scene, scene.next({ mode: "ahead", tokens: 25, refreshSteps: 1000, leastCosine: 1 }));
      expect(pool.seats?.counts(1)).toMatchObject({ chosen: chosen + i * heads(scene), chosenAgain: i * heads(scene) });
    }
    pool.close();
  });

  test("TOVA never reads again what it has left out", () => {
    const scene = sceneOf(4);
    const pool = scene.open(twin);
    const gone = new Map<number, Set<number>>();
    let candidates = 0;
    for (let i = 0; i < 20; i++) {
      const step = scene.next({ mode: "tova", tokens: 25 });
      run(pool, scene, step);
      for (const [index, list] of listsOf(pool).entries()) {
        const out = gone.get(index) ?? new Set();
        for (const number of list) expect(out.has(number)).toBe(false);
        for (let number = 0; number < candidates; number++) if (!list.includes(number)) out.add(number);
        gone.set(index, out);
      }
      candidates = candidatesOf(scene.options, step.segments).length;
    }
    expect([...gone.values()].every((out) => out.size > 0)).toBe(true);
    pool.close();
  });

  test("Quest chooses whole blocks but for one", () => {
    const scene = sceneOf(5);
    const pool = scene.open(twin);
    const step = scene.next({ mode: "quest", tokens: 70 });
    run(pool, scene, step);
    const candidates = candidatesOf(scene.options, step.segments);
    const panelOf = ({ block, offset }: (typeof candidates)[number]) => `${block}/${Math.floor(offset / 16)}`;
    for (const list of listsOf(pool)) {
      const parts = new Set<string>();
      for (const number of list.slice(step.batch.choices.segmentForced.reduce((a, b) => a + b))) {
        const panel = panelOf(candidates[number]);
        const all = candidates.flatMap((each, i) => (panelOf(each) === panel && !each.forced ? [i] : []));
        if (all.some((i) => !list.includes(i))) parts.add(panel);
      }
      expect(parts.size).toBeLessThanOrEqual(1);
    }
    pool.close();
  });
});

describe("choices that are refused", () => {
  const random = new Random(seed + 9);
  const scene = new Scene(random, seatOptions(random, { kvType: "float32" }));
  const pool = scene.open(twin);
  afterAll(() => pool.close());
  const { batch } = scene.next({ mode: "now", tokens: 20 });
  const { choices } = batch;
  const all = scene.spans.length + 1;
  const changed = (array: Int32Array, index: number, value: number) => array.with(index, value) as Int32Array;
  const cases: [reason: string, change: Partial<typeof choices>, message: RegExp][] = [
    ["a piece that there is not", { pieces: Int32Array.of(1) }, /choices do not fit/],
    ["a seat that there is not", { seats: Int32Array.of(3) }, /choices do not fit/],
    ["a negative seat", { seats: Int32Array.of(-1) }, /choices do not fit/],
    ["an unknown flag", { flags: Int32Array.of(8) }, /choices do not fit/],
    ["an unknown mode", { modes: Int32Array.of(7) }, /choices do not fit/],
    ["no tokens", { tokens: Int32Array.of(0) }, /choices do not fit/],
    ["more tokens than the buffer has", { tokens: Int32Array.of(21) }, /choices do not fit/],
    ["more tokens than lists have", { tokens: Int32Array.of(2 ** 30) }, /choices do not fit/],
    ["no steps between choices", { refreshSteps: Int32Array.of(0) }, /choices do not fit/],
    ["a cosine above 1", { leastCosines: Float32Array.of(1.5) }, /choices do not fit/],
    ["a cosine that is no number", { leastCosines: Float32Array.of(Number.NaN) }, /choices do not fit/],
    ["segments that end early", { segments: Int32Array.of(0, all - 1) }, /choices do not fit/],
    ["a watched piece with segments", { flags: Int32Array.of(2) }, /choices do not fit/],
    ["another number of forced tokens", { segmentForced: changed(choices.segmentForced, 0, 3) }, /choices do not fit/],
    ["more forced tokens than a segment has", { segmentForced: changed(choices.segmentForced, 0, 999) }, /segment/],
    ["an empty segment", { segmentTokenCounts: changed(choices.segmentTokenCounts, 0, 0) }, /segment/],
    [
      "a segment that overflows",
      { segmentTokenCounts: changed(choices.segmentTokenCounts, 0, 2 ** 31 - 1) },
      /segment/,
    ],
    ["a first token outside its block", { segmentFirstTokens: changed(choices.segmentFirstTokens, 0, 32) }, /segment/],
    ["a start beyond the ids", { segmentBlockStarts: changed(choices.segmentBlockStarts, 0, 9999) }, /segment/],
    ["an offset beyond the context", { segmentOffsets: changed(choices.segmentOffsets, 0, 5000) }, /maxPositions/],
    ["a block that there is not", { blockIds: changed(choices.blockIds, 0, 64) }, /block id/],
    [
      "a candidate in the buffer",
      { blockIds: changed(choices.blockIds, 0, scene.bufferBlocks[0]) },
      /choices do not fit/,
    ],
    ["fewer seats than pieces", { seats: new Int32Array() }, /choices.seats must have 1 elements/],
    ["fewer offsets than segments", { segmentOffsets: new Int32Array(1) }, /must have 1 elements/],
    ["no entries", { pieces: new Int32Array() }, /choices/],
  ];
  test.each(cases)("%s", (_reason, change, message) => {
    pool.beginStep(batch);
    expect(() => pool.beginStep({ ...batch, choices: { ...choices, ...change } })).toThrow(message);
    expect(() => pool.attention(0, new Float32Array(pool.qkvWidth), new Float32Array(pool.outWidth))).toThrow();
  });

  test("a seat of two pieces", () => {
    const twice = { ...batch, choices: { ...choices, ...twoEntries(choices) } };
    expect(() => pool.beginStep(twice)).toThrow(/choices do not fit/);
  });
});

test("fresh forgets, stale copies anew, and a watched row fills the ring alone", () => {
  const random = new Random(seed);
  const scene = new Scene(random, seatOptions(random, { kvType: "float16" }));
  const pool = scene.open(twin);
  run(pool, scene, scene.next({ mode: "now", tokens: 20 }));
  const first = pool.seats?.counts(1);
  const heads = layers.length * scene.options.kvHeads;
  expect(first).toMatchObject({ lists: heads, chosen: heads, chosenAgain: 0, changed: heads * 20 });
  const step = scene.next({ mode: "now", tokens: 20 }, choiceFlags.stale);
  run(pool, scene, step);
  expect(pool.seats?.counts(1)).toMatchObject({ lists: 2 * heads, changed: 2 * heads * 20 });
  run(pool, scene, scene.next({ mode: "now", tokens: 20 }, choiceFlags.fresh));
  expect(pool.seats?.counts(1)).toMatchObject({ lists: heads, chosen: heads, changed: heads * 20 });
  expect(pool.seats?.counts(0)).toMatchObject({ lists: 0, chosen: 0 });
  pool.close();
});
