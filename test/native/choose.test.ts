/**
 * Sparse decoding on the CPU: shadows, what is chosen and what is copied, against the slow twin bit for bit and against
 * float64. What a pool holds where nobody wrote is NaN.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { choiceFlags, choiceModes } from "../../worker/contract/sparse.ts";
import { type AttentionBatch, CpuKernels, type Isa, type KvPool } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import {
  bareQuery,
  candidatesOf,
  dot,
  elementsOfMemory,
  floatsOf,
  hadamard,
  rotated,
  scoresOf,
  shadowOf,
  shares,
  vectorOf,
} from "./choice-oracle.ts";
import { Scene, type SceneStep, seatOptions } from "./choice-scene.ts";
import { greatestDifference } from "./compare.ts";
import { kernelsOf } from "./instruction-set.ts";
import { Random } from "./random.ts";

const seed = testSeed();
const libraryPath = await buildCpuKernels();
const twin = new CpuKernels(libraryPath, { isa: "reference", threadCount: 1 });
afterAll(() => twin.close());

const isas: readonly Isa[] = ["avx512", "avx512 without VNNI", "avx2", "avx2 without VNNI"];
const layers = [0, 1];

/** Runs a step in both layers; answers attention's output of layer 1. */
function run(pool: KvPool, scene: Scene, step: { batch: AttentionBatch; qkv: Float32Array }): Float32Array {
  const out = new Float32Array(pool.outWidth).fill(Number.NaN);
  pool.beginStep(step.batch);
  for (const layer of layers) pool.attention(layer, step.qkv, out, scene.norms);
  return out;
}

function allShadows({ seats, options }: KvPool): Uint8Array {
  if (seats === undefined) throw new Error("no seats");
  const bytes = seats.shadowBytes / options.layerCount / options.blockCount;
  const parts = layers.flatMap((layer) =>
    Array.from({ length: options.blockCount }, (_, block) => seats.shadows(layer, block, bytes)),
  );
  return new Uint8Array(Buffer.concat(parts));
}

const listsOf = ({ seats, options }: KvPool, seat = 1): number[][] =>
  layers.flatMap((layer) =>
    Array.from({ length: options.kvHeads }, (_, head) => [...(seats?.list(seat, layer, head) ?? [])]),
  );

/** The twin's pool gets what the other holds, and shadows of it. */
function copyPool(from: KvPool, to: KvPool): void {
  new Uint8Array(to.memory()).set(new Uint8Array(from.memory()));
  to.seats?.writeShadows(Int32Array.from({ length: to.options.blockCount }, (_, id) => id));
}

const blocksOf = (pool: KvPool) => Int32Array.from({ length: pool.options.blockCount }, (_, id) => id);

describe.each(isas)("%s", (isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere("writes the twin's shadows, whoever writes K", () => {
    for (let round = 0; round < 8; round++) {
      const random = new Random(seed + round);
      const scene = new Scene(random, seatOptions(random));
      const [pool, slow] = [scene.open(here()), scene.open(twin)];
      expect(Buffer.compare(allShadows(pool), allShadows(slow))).toBe(0);
      for (let i = 0; i < 3; i++) run(pool, scene, scene.next({ mode: "now", tokens: 20 }));
      const { blockTokens, kvType, blockCount } = scene.options;
      if (kvType !== "mx8") {
        const [from, to] = [scene.spans[0].blockIds[0], blockCount - 1];
        pool.copyTokens({
          sourceSlots: Int32Array.of(from * blockTokens + scene.spans[0].firstToken),
          targetSlots: Int32Array.of(to * blockTokens + 5),
          deltas: Int32Array.of(17),
        });
      }
      const before = allShadows(pool).slice();
      // What was written by and by is what all at once would be, except in buffers, whose K nobody chooses from.
      pool.seats?.writeShadows(blocksOf(pool));
      copyPool(pool, slow);
      expect(Buffer.compare(allShadows(pool), allShadows(slow))).toBe(0);
      const bytes = before.length / layers.length / blockCount;
      const buffers = new Set(scene.bufferBlocks);
      for (let i = 0; i < layers.length * blockCount; i++) {
        if (buffers.has(i % blockCount)) continue;
        const [own, all] = [before, allShadows(pool)].map((each) => each.subarray(i * bytes, (i + 1) * bytes));
        expect(Buffer.compare(own, all)).toBe(0);
      }
      pool.close();
      slow.close();
    }
  });

  testHere("chooses what the twin chooses, in every mode, over many steps", () => {
    for (const mode of choiceModes) {
      for (let round = 0; round < 2; round++) {
        const random = new Random(seed + 1000 * round + 7);
        const scene = new Scene(random, seatOptions(random));
        const [pool, slow] = [scene.open(here()), scene.open(twin)];
        const tokens = random.integer(1, 60);
        for (let i = 0; i < 22; i++) {
          const step = scene.next({ mode, tokens, leastCosine: random.pick([0.6, -1]) }, i === 9 ? 4 : 0);
          run(pool, scene, step);
          run(slow, scene, step);
          expect(listsOf(pool)).toEqual(listsOf(slow));
          const { mass: _, ...counts } = pool.seats?.counts(1) ?? { mass: 0 };
          expect(slow.seats?.counts(1)).toMatchObject(counts);
          copyPool(pool, slow);
        }
        pool.close();
        slow.close();
      }
    }
  });

  testHere("gives the same lists and answers on one thread", () => {
    const single = new CpuKernels(libraryPath, { isa, threadCount: 1 });
    const random = new Random(seed);
    const limits = { spans: 6, spanTokens: 100, promptTokens: 200, steps: 24 };
    const scene = new Scene(random, seatOptions(random, { kvType: "float16" }), limits);
    const [pool, other] = [scene.open(here()), scene.open(single)];
    for (let i = 0; i < 20; i++) {
      const step = scene.next({ mode: i < 10 ? "now" : "ahead", tokens: 40 });
      expect(run(pool, scene, step)).toEqual(run(other, scene, step));
      expect(listsOf(pool)).toEqual(listsOf(other));
    }
    single.close();
    pool.close();
  });
});

describe("against float64", () => {
  const kernels = new CpuKernels(libraryPath, { threadCount: 2 });
  afterAll(() => kernels.close());

  test("a shadow is the transformed K within half a number's step", () => {
    for (let round = 0; round < 4; round++) {
      const random = new Random(seed + round);
      const scene = new Scene(random, seatOptions(random));
      const pool = scene.open(kernels);
      const floats = floatsOf(scene.options, scene.kv);
      const bytes = (pool.seats?.shadowBytes ?? 0) / 2 / scene.options.blockCount;
      for (const { block, offset } of candidatesOf(scene.options, scene.spans)) {
        for (let kvHead = 0; kvHead < scene.options.kvHeads; kvHead++) {
          const y = hadamard(vectorOf(scene.options, floats, "key", { layer: 1, kvHead, block, offset }));
          const shadow = shadowOf(
            scene.options,
            pool.seats?.shadows(1, block, bytes) ?? new Uint8Array(),
            kvHead,
            offset,
          );
          const greatest = y.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
          // The scale is rounded to float16, which moves the 7th step by 7 * 2^-11 of a step; the rest is float32.
          expect(Math.abs(shadow.scale * 7 - greatest)).toBeLessThan(greatest * 2 ** -10 + 1e-6);
          const excess = y.map((x, d) => Math.abs(x - shadow.numbers[d] * shadow.scale) / shadow.scale);
          expect(Math.max(...excess)).toBeLessThan(0.5 + 7 * 2 ** -11 + 1e-3);
        }
      }
      pool.close();
    }
  });

  test("`now` and `exact` choose the best by the scores that the page names", () => {
    for (let round = 0; round < 12; round++) {
      const random = new Random(seed + 31 * round);
      const scene = new Scene(random, seatOptions(random));
      const pool = scene.open(kernels);
      const mode = round % 2 === 0 ? "now" : "exact";
      const tokens = random.integer(5, 60);
      for (let i = 0; i < 4; i++) {
        const step = scene.next({ mode, tokens });
        const floats = floatsOf(scene.options, elementsOfMemory(scene.options, pool.memory()));
        run(pool, scene, step);
        for (const layer of layers) {
          for (let kvHead = 0; kvHead < scene.options.kvHeads; kvHead++) {
            const best = bestShares(pool, scene, step, floats, layer, kvHead, mode);
            expectBest(scene, step, pool.seats?.list(1, layer, kvHead) ?? new Int32Array(), best);
          }
        }
      }
      pool.close();
    }
  });

  test("a buffer holds what its list says: K turned by Δ, V as it is", () => {
    for (let round = 0; round < 8; round++) {
      const random = new Random(seed + 17 * round);
      const scene = new Scene(random, seatOptions(random));
      const pool = scene.open(kernels);
      for (let i = 0; i < 6; i++) run(pool, scene, scene.next({ mode: "now", tokens: 30 }));
      const step = scene.next({ mode: "now", tokens: 30 });
      run(pool, scene, step);
      const floats = floatsOf(scene.options, elementsOfMemory(scene.options, pool.memory()));
      const candidates = candidatesOf(scene.options, step.segments);
      const { blockTokens, kvType, kvHeads } = scene.options;
      for (const layer of layers) {
        for (let kvHead = 0; kvHead < kvHeads; kvHead++) {
          for (const [slot, number] of (pool.seats?.list(1, layer, kvHead) ?? []).entries()) {
            const block = scene.bufferBlocks[Math.floor(slot / blockTokens)];
            const [to, from] = [{ layer, kvHead, block, offset: slot % blockTokens }, candidates[number]];
            const key = vectorOf(scene.options, floats, "key", { layer, kvHead, ...from });
            const wanted = rotated(scene.options, layer, key, from.delta);
            const greatest = key.reduce((most, x) => Math.max(most, Math.abs(x)), 0) * Math.SQRT2;
            const step = from.delta === 0 ? 0 : { float32: 2 ** -21, float16: 2 ** -10, mx8: 2 ** -6 }[kvType];
            const copied = vectorOf(scene.options, floats, "key", to);
            expect(greatestDifference(Float32Array.from(copied), Float32Array.from(wanted))).toBeLessThanOrEqual(
              greatest * step,
            );
            expect(vectorOf(scene.options, floats, "value", to)).toEqual(
              vectorOf(scene.options, floats, "value", { layer, kvHead, ...from }),
            );
          }
        }
      }
      pool.close();
    }
  });

  test("with as many as there are, attention is dense attention, and mass and overlap are 1", () => {
    for (let round = 0; round < 10; round++) {
      const random = new Random(seed + 13 * round);
      const kvType = random.pick(["float32", "float16"] as const);
      const scene = new Scene(random, seatOptions(random, { kvType }));
      const pool = scene.open(kernels);
      for (let i = 0; i < 6; i++) {
        const step = scene.next({ mode: "now", tokens: 390 });
        const sparse = run(pool, scene, step);
        const floats = floatsOf(scene.options, elementsOfMemory(scene.options, pool.memory()));
        const dense = run(pool, scene, { batch: scene.dense(step), qkv: step.qkv });
        expect(greatestDifference(sparse, dense)).toBeLessThanOrEqual(copyBound(scene, step, floats));
      }
      expect(pool.seats?.counts(1)).toMatchObject({ overlap: 1, measured: 1 });
      expect(pool.seats?.counts(1).mass).toBeCloseTo(1, 5);
      pool.close();
    }
  });
});

/** What each candidate is worth in float64, and how far rounding may move it. */
function bestShares(
  pool: KvPool,
  scene: Scene,
  step: SceneStep,
  floats: Float32Array,
  layer: number,
  kvHead: number,
  mode: string,
) {
  const { options } = scene;
  const group = options.queryHeads / options.kvHeads;
  const candidates = candidatesOf(options, step.segments);
  const bytes = (pool.seats?.shadowBytes ?? 0) / options.layerCount / options.blockCount;
  const keys = candidates.map(({ block, offset }) => {
    if (mode === "exact") return vectorOf(options, floats, "key", { layer, kvHead, block, offset });
    const { scale, numbers } = shadowOf(
      options,
      pool.seats?.shadows(layer, block, bytes) ?? new Uint8Array(),
      kvHead,
      offset,
    );
    return numbers.map((x) => x * scale);
  });
  let slack = 0;
  const transformed = new Map<Float64Array, Float64Array>();
  const turnedOf = (query: Float64Array) => {
    const turned = transformed.get(query) ?? (mode === "exact" ? query : hadamard(query));
    transformed.set(query, turned);
    return turned;
  };
  const scores = Array.from({ length: group }, (_, g) => {
    const bare = bareQuery(options, step.qkv, kvHead * group + g, scene.norms?.q);
    const factor = (options.softmaxScale ?? 1 / Math.sqrt(options.headDim)) * Math.LOG2E;
    return scoresOf(options, layer, step, bare, (query, number) => {
      const turned = turnedOf(query);
      const most = turned.reduce((a, x) => Math.max(a, Math.abs(x)), 0);
      const size = keys[number].reduce((sum, x) => sum + Math.abs(x), 0);
      // A query's numbers are off by half a step of 1/127 of the greatest; K and q themselves are float32.
      const step = mode === "exact" ? 2 ** -20 : 0.5 / 127 + 2 ** -20;
      slack = Math.max(slack, size * most * step * factor);
      return dot(turned, keys[number]);
    });
  });
  return { shares: shares(scores), slack: 2 * slack };
}

/** Forced tokens first, then tokens none of which is worse than one that was left out, but for rounding. */
function expectBest(
  scene: Scene,
  step: SceneStep,
  list: Int32Array,
  best: { shares: Float64Array; slack: number },
): void {
  const candidates = candidatesOf(scene.options, step.segments);
  const forced = candidates.flatMap((each, number) => (each.forced ? [number] : []));
  expect([...list.subarray(0, forced.length)]).toEqual(forced);
  const chosen = new Set(list);
  expect(chosen.size).toBe(list.length);
  expect(list.length).toBe(step.batch.segmentTokenCounts[0]);
  const worst = Math.min(...[...list.subarray(forced.length)].map((number) => best.shares[number]));
  candidates.forEach((each, number) => {
    if (chosen.has(number) || each.forced) return;
    // A share is rounded to float16.
    expect(best.shares[number]).toBeLessThanOrEqual(worst + 2 * best.slack + Math.abs(worst) * 2 ** -9 + 1e-3);
  });
}

/**
 * How far the outputs of attention over copied K may lie from those over K itself: a score moves by |q| |k| times K's
 * rounding, a weight by twice that, and an output by a weight's change of the values' size.
 */
function copyBound(scene: Scene, step: SceneStep, floats: Float32Array): number {
  const { options } = scene;
  const rounding = options.kvType === "float16" ? 2 ** -11 : 2 ** -22;
  const factor = (options.rope.attentionFactor ?? 1) ** 2 * (options.softmaxScale ?? 1 / Math.sqrt(options.headDim));
  let [keys, values, queries] = [0, 0, 0];
  for (const { block, offset } of candidatesOf(options, step.segments)) {
    for (let kvHead = 0; kvHead < options.kvHeads; kvHead++) {
      const at = { layer: 1, kvHead, block, offset };
      keys = Math.max(keys, Math.hypot(...vectorOf(options, floats, "key", at)));
      values = Math.max(values, ...vectorOf(options, floats, "value", at).map(Math.abs));
    }
  }
  for (let head = 0; head < options.queryHeads; head++) {
    queries = Math.max(queries, Math.hypot(...bareQuery(options, step.qkv, head, scene.norms?.q)));
  }
  return 2 * values * Math.min(1, 2 * queries * keys * factor * rounding + 1e-5);
}

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
