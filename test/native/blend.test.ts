/** Single tokens moved within the pool, and how far rows are from what their slots hold: against the slow twin. */
import { afterAll, describe, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type Isa } from "../../worker/native/cpu-kernels.ts";
import { testSeed } from "../support/seed.ts";
import { greatestDifference, toFloats } from "./compare.ts";
import { Random } from "./random.ts";
import { elementsOf, openWorld, randomOptions, randomWorld, type World } from "./world.ts";

const libraryPath = await buildCpuKernels();
const oracle = new CpuKernels(libraryPath, { isa: "reference", threadCount: 1 });
const opened: CpuKernels[] = [oracle];
afterAll(() => {
  for (const kernels of opened) kernels.close();
});

function openIsa(isa: Isa, threadCount: number): CpuKernels | undefined {
  try {
    const kernels = new CpuKernels(libraryPath, { isa, threadCount });
    opened.push(kernels);
    return kernels;
  } catch {
    return undefined;
  }
}

/** Stretches of filled slots to fresh ones or in place, each moved by its own number of positions. */
function randomCopies(random: Random, world: World, stretches: number) {
  const { blockCount, blockTokens } = world.options;
  const slots = random.shuffle(Array.from({ length: blockCount * blockTokens }, (_, slot) => slot));
  const deltas: number[] = [];
  for (let i = 0; i < stretches; i++) {
    deltas.push(...new Array<number>(random.integer(1, 20)).fill(random.pick([0, random.integer(-9_999, 9_999)])));
  }
  const count = Math.min(deltas.length, Math.floor(slots.length / 2));
  const sources = slots.slice(0, count);
  const inPlace = random.pick([0, 0.5, 1]);
  return {
    sourceSlots: Int32Array.from(sources),
    targetSlots: Int32Array.from(sources, (slot, i) => (random.next() < inPlace ? slot : slots[count + i])),
    deltas: Int32Array.from(deltas.slice(0, count)),
  };
}

/** Everything filled: which slots are copied is free then. */
function fullWorld(random: Random): World {
  const limits = { pieces: 3, rows: 20, tokens: 40, segments: 3 };
  const world = randomWorld(random, randomOptions(random, {}, limits), limits);
  const halves = world.options.kvType === "float16";
  world.kv.forEach((value, i) => {
    if (halves ? (value & 0x7fff) > 0x7c00 : Number.isNaN(value)) world.kv[i] = halves ? 0x3800 + (i % 900) : i % 7;
  });
  return world;
}

function run(kernels: CpuKernels, world: World, act: (pool: ReturnType<typeof openWorld>) => Float32Array | undefined) {
  const pool = openWorld(kernels, world);
  const out = act(pool);
  const elements = elementsOf(pool).slice();
  pool.close();
  return { elements, out: out ?? new Float32Array(0) };
}

describe.each([
  ["avx2", 1],
  ["avx512", 3],
] as const)("%s with %i threads", (isa, threadCount) => {
  const kernels = openIsa(isa, threadCount);
  const testHere = kernels === undefined ? test.skip : test;
  const here = (): CpuKernels => kernels ?? oracle;

  testHere("copied tokens are the source's, K rotated and V to the bit; nothing else is touched", () => {
    const random = new Random(testSeed());
    for (let round = 0; round < 25; round++) {
      const world = fullWorld(random);
      const copies = randomCopies(random, world, random.pick([1, 4, 40]));
      const act = (pool: ReturnType<typeof openWorld>) => void pool.copyTokens(copies);
      const actual = run(here(), world, act);
      const expected = run(oracle, world, act);
      // An element times cos plus another times sin: three roundings, one more to float16.
      const bound = 130 * 8 * (world.options.kvType === "float16" ? 2 ** -11 : 2 ** -24);
      const floats = toFloats(actual.elements);
      expect(greatestDifference(floats, toFloats(expected.elements))).toBeLessThanOrEqual(bound);

      const { blockCount, blockTokens, kvHeads, headDim, layerCount } = world.options;
      const headElements = 2 * headDim * blockTokens;
      const targets = new Map(Array.from(copies.targetSlots, (slot, i) => [slot, i]));
      for (let head = 0; head < layerCount * blockCount * kvHeads; head++) {
        const blockId = Math.floor(head / kvHeads) % blockCount;
        for (let offset = 0; offset < blockTokens; offset++) {
          const copied = targets.get(blockId * blockTokens + offset);
          const source = copied === undefined ? blockId * blockTokens + offset : (copies.sourceSlots[copied] ?? -1);
          const layer = Math.floor(head / (kvHeads * blockCount));
          const sourceHead = (layer * blockCount + Math.floor(source / blockTokens)) * kvHeads + (head % kvHeads);
          const value = (at: number, slot: number) =>
            at * headElements + headDim * (blockTokens + (slot % blockTokens));
          const to = value(head, offset);
          const from = value(sourceHead, source);
          expect(Array.from(actual.elements.subarray(to, to + headDim))).toEqual(
            Array.from(world.kv.subarray(from, from + headDim)),
          );
          const stays = copied === undefined || copies.deltas[copied] === 0;
          for (let d = 0; stays && d < headDim; d++) {
            const toKey = head * headElements + d * blockTokens + offset;
            const fromKey = sourceHead * headElements + d * blockTokens + (source % blockTokens);
            if (actual.elements[toKey] !== world.kv[fromKey]) throw new Error(`K of slot ${source} changed`);
          }
        }
      }
    }
  });

  testHere("deviations are the squared distance from what is stored, and store nothing", () => {
    const random = new Random(testSeed());
    for (let round = 0; round < 25; round++) {
      const world = fullWorld(random);
      const deviations = (pool: ReturnType<typeof openWorld>): Float32Array => {
        const out = new Float32Array(world.batch.positions.length);
        pool.deviations(1, world.qkv, out, world.norms?.k);
        return out;
      };
      const actual = run(here(), world, deviations);
      const expected = run(oracle, world, deviations);
      expect(greatestDifference(toFloats(actual.elements), toFloats(world.kv))).toBe(0);
      const { kvHeads, headDim } = world.options;
      actual.out.forEach((value, row) => {
        const whole = expected.out[row] ?? Number.NaN;
        // A sum of 2 kvHeads headDim squares, each of two numbers that carry a few roundings of their own size.
        const bound = (2 * kvHeads * headDim + 64) * 2 ** -24 * (whole + 130);
        expect(Math.abs(value - whole)).toBeLessThanOrEqual(bound);
      });
    }
  });

  testHere("a row that was just written deviates by its rounding only", () => {
    const random = new Random(testSeed());
    for (let round = 0; round < 10; round++) {
      const world = fullWorld(random);
      const { out } = run(here(), world, (pool) => {
        pool.writeKv(0, world.qkv, world.norms?.k);
        const deviations = new Float32Array(world.batch.positions.length);
        pool.deviations(0, world.qkv, deviations, world.norms?.k);
        return deviations;
      });
      const { kvType, kvHeads, headDim } = world.options;
      // Half a unit of float16's 11 bits for each element; outliers are at most about 130.
      const bound = kvType === "float32" ? 0 : 2 * kvHeads * headDim * (130 * 2 ** -11) ** 2;
      expect(Math.max(...out)).toBeLessThanOrEqual(bound);
    }
  });
});
