/**
 * Sparse decoding on the CPU: shadows, what is chosen and what is copied, against the slow twin bit for bit and against
 * float64. What a pool holds where nobody wrote is NaN.
 */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { choiceModes } from "../../worker/contract/sparse.ts";
import { CpuKernels, type Isa } from "../../worker/native/cpu-kernels.ts";
import { isLong } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import {
  bareQuery,
  candidatesOf,
  elementsOfMemory,
  floatsOf,
  hadamard,
  predictedQuery,
  rotated,
  shadowOf,
  vectorOf,
} from "./choice-oracle.ts";
import {
  allShadows,
  blocksOf,
  copyPool,
  sceneLayers as layers,
  listsOf,
  run,
  Scene,
  seatOptions,
  writtenBlocks,
} from "./choice-scene.ts";
import { copyBound, expectBest, groupOf, worthOf } from "./choice-worth.ts";
import { greatestDifference } from "./compare.ts";
import { kernelsOf } from "./instruction-set.ts";
import { Random } from "./random.ts";

const seed = testSeed();
const libraryPath = await buildCpuKernels();
const twin = new CpuKernels(libraryPath, { isa: "reference", threadCount: 1 });
afterAll(() => twin.close());

const isas: readonly Isa[] = ["avx512", "avx512 without VNNI", "avx2", "avx2 without VNNI"];

describe.each(isas)("%s", (isa) => {
  const { testHere, here } = kernelsOf(libraryPath, isa, 2);

  testHere("writes the twin's shadows, whoever writes K", () => {
    for (let round = 0; round < (isLong ? 8 : 3); round++) {
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
    // `ahead` and `last` look back over steps, and only scores know of VNNI: the long form has every mode as long, everywhere.
    const modes = isLong || !isa.endsWith("without VNNI") ? choiceModes : (["ahead", "exact"] as const);
    for (const mode of modes) {
      const steps = isLong || mode === "ahead" ? 22 : 12;
      for (let round = 0; round < (isLong ? 4 : 1); round++) {
        const random = new Random(seed + 1000 * round + 7);
        const scene = new Scene(random, seatOptions(random));
        const [pool, slow] = [scene.open(here()), scene.open(twin)];
        const tokens = random.integer(1, 60);
        for (let i = 0; i < steps; i++) {
          const step = scene.next({ mode, tokens, leastCosine: random.pick([0.6, -1]) }, i === 9 ? 4 : 0);
          run(pool, scene, step);
          run(slow, scene, step);
          expect(listsOf(pool)).toEqual(listsOf(slow));
          const { mass: _, ...counts } = pool.seats?.counts(1) ?? { mass: 0 };
          expect(slow.seats?.counts(1)).toMatchObject(counts);
          copyPool(pool, slow, writtenBlocks(step));
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
    for (let round = 0; round < (isLong ? 8 : 2); round++) {
      const random = new Random(seed + round);
      const scene = new Scene(random, seatOptions(random));
      const pool = scene.open(kernels);
      const floats = floatsOf(scene.options, scene.kv);
      for (const { block, offset } of candidatesOf(scene.options, scene.spans)) {
        for (let kvHead = 0; kvHead < scene.options.kvHeads; kvHead++) {
          const y = hadamard(vectorOf(scene.options, floats, "key", { layer: 1, kvHead, block, offset }));
          const shadow = shadowOf(pool, { layer: 1, kvHead, block, offset });
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
    for (let round = 0; round < (isLong ? 6 : 2); round++) {
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
            const at = { scene, step, floats, layer, kvHead, isExact: mode === "exact" };
            const worth = worthOf(pool, at, groupOf(scene, step.qkv, kvHead));
            expectBest(scene, step, pool.seats?.list(1, layer, kvHead) ?? new Int32Array(), worth);
          }
        }
      }
      pool.close();
    }
  });

  test("`ahead` chooses by the query that the equations give, `last` by the one before", () => {
    for (const mode of ["ahead", "last"] as const) {
      for (let round = 0; round < 2; round++) {
        const random = new Random(seed + 41 * round);
        const scene = new Scene(random, seatOptions(random), { spans: 3, spanTokens: 60, promptTokens: 90, steps: 24 });
        const pool = scene.open(kernels);
        const queries: Float64Array[][] = Array.from({ length: scene.options.queryHeads }, () => []);
        for (let i = 0; i < 20; i++) {
          const step = scene.next({ mode, tokens: 12, refreshSteps: 1, leastCosine: -1 });
          const isChecked = [1, 6, 17, 19].includes(i);
          const before = isChecked ? elementsOfMemory(scene.options, pool.memory()) : new Float32Array();
          const floats = floatsOf(scene.options, before);
          run(pool, scene, step);
          for (let kvHead = 0; kvHead < scene.options.kvHeads && isChecked; kvHead++) {
            const group = scene.options.queryHeads / scene.options.kvHeads;
            const known = queries.slice(kvHead * group, (kvHead + 1) * group).map((ring) => ring.slice(0, 17));
            const chosen = known.map((newest) => (mode === "last" ? newest[0] : predictedQuery(newest)));
            const at = { scene, step, floats, layer: 1, kvHead, isExact: false };
            expectBest(scene, step, pool.seats?.list(1, 1, kvHead) ?? new Int32Array(), worthOf(pool, at, chosen));
          }
          for (const [head, ring] of queries.entries()) {
            ring.unshift(bareQuery(scene.options, step.qkv, head, scene.norms?.q));
          }
        }
        expect(pool.seats?.counts(1).chosenAgain).toBe(0);
        pool.close();
      }
    }
  });

  test("a buffer holds what its list says: K turned by Δ, V as it is", () => {
    for (let round = 0; round < (isLong ? 8 : 2); round++) {
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
    for (let round = 0; round < (isLong ? 5 : 2); round++) {
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
