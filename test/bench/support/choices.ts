/** A decoding row that chooses what it reads, against the same row that reads everything, for `bench kernels`. */
import { type ChoiceMode, choiceFlags, choiceModes } from "../../../worker/contract/sparse.ts";
import type { AttentionBatch, CpuKernels, KvPool } from "../../../worker/native/cpu-kernels.ts";
import { Random } from "../../native/random.ts";
import { atLeast, type Bar } from "../bench.ts";
import { figure, median } from "./stats.ts";

const shape = { name: "0.6B (16/8 x 128)", queryHeads: 16, kvHeads: 8, headDim: 128 } as const;
const [blockTokens, layerCount, contextTokens, chosenTokens, forcedTokens, tailTokens] = [16, 8, 16_384, 1_024, 4, 64];
const bufferBlocks = Math.ceil((chosenTokens + forcedTokens) / blockTokens);
const contextBlocks = contextTokens / blockTokens;
const position = contextTokens - 1;

interface Case {
  readonly mode: ChoiceMode;
  /** Cosine of each query with the one before it. */
  readonly cosine: number;
  /** Dense over sparse, at least. */
  readonly bound: number;
}

/** With the first cosine about half of the choice changes in a step, as measured for the current query. */
const cases: readonly Case[] = [
  { mode: "now", cosine: 0.75, bound: 1.7 },
  { mode: "ahead", cosine: 0.97, bound: 1.7 },
];

export interface ChoiceRows {
  readonly rows: readonly (readonly string[])[];
  readonly bars: readonly Bar[];
}

/** K and V of random numbers from a table of 64 KiB, which stand elsewhere in each block. */
function openPool(kernels: CpuKernels): KvPool {
  const { queryHeads, kvHeads, headDim } = shape;
  const pool = kernels.openPool({
    ...{ queryHeads, kvHeads, headDim, blockTokens, layerCount, kvType: "float16" },
    blockCount: contextBlocks + bufferBlocks,
    rope: { inverseFrequencies: Float32Array.from({ length: 64 }, (_, i) => 1_000_000 ** (-i / 64)) },
    maxPositions: 40_960,
    seats: { seats: 1, listTokens: bufferBlocks * blockTokens, rings: true },
  });
  const random = new Random(1);
  const table = Uint16Array.from(
    { length: 65_536 },
    () => random.integer(0x3000, 0x3fff) + 0x8000 * random.integer(0, 1),
  );
  const numbers = new Uint16Array(pool.memory());
  for (let at = 0; at < numbers.length; at += 16_384) {
    const first = random.integer(0, 65_536 - 16_384);
    numbers.set(table.subarray(first, first + Math.min(16_384, numbers.length - at)), at);
  }
  pool.seats?.writeShadows(Int32Array.from({ length: contextBlocks }, (_, block) => block));
  return pool;
}

const ascending = (count: number, first = 0) => Array.from({ length: count }, (_, i) => first + i);

function denseStep(): AttentionBatch {
  return {
    positions: Int32Array.of(position),
    slots: Int32Array.of(position),
    pieceRows: Int32Array.of(0, 1),
    pieceSegments: Int32Array.of(0, 1),
    segmentBlockStarts: Int32Array.of(0),
    segmentFirstTokens: Int32Array.of(0),
    segmentTokenCounts: Int32Array.of(contextTokens),
    segmentOffsets: Int32Array.of(0),
    blockIds: Int32Array.from(ascending(contextBlocks)),
  };
}

function sparseStep(mode: ChoiceMode, isFirst: boolean): AttentionBatch {
  const candidateBlocks = contextBlocks - tailTokens / blockTokens;
  return {
    ...denseStep(),
    pieceSegments: Int32Array.of(0, 2),
    segmentBlockStarts: Int32Array.of(0, bufferBlocks),
    segmentFirstTokens: Int32Array.of(0, 0),
    segmentTokenCounts: Int32Array.of(chosenTokens + forcedTokens, tailTokens),
    segmentOffsets: Int32Array.of(0, 0),
    blockIds: Int32Array.from([
      ...ascending(bufferBlocks, contextBlocks),
      ...ascending(tailTokens / blockTokens, candidateBlocks),
    ]),
    choices: {
      pieces: Int32Array.of(0),
      seats: Int32Array.of(0),
      flags: Int32Array.of(isFirst ? choiceFlags.fresh : 0),
      modes: Int32Array.of(choiceModes.indexOf(mode)),
      tokens: Int32Array.of(chosenTokens),
      refreshSteps: Int32Array.of(4),
      leastCosines: Float32Array.of(0.6),
      segments: Int32Array.of(0, 1),
      segmentBlockStarts: Int32Array.of(0),
      segmentFirstTokens: Int32Array.of(0),
      segmentTokenCounts: Int32Array.of(contextTokens - tailTokens),
      segmentOffsets: Int32Array.of(0),
      segmentForced: Int32Array.of(forcedTokens),
      blockIds: Int32Array.from(ascending(candidateBlocks)),
    },
  };
}

interface Measured {
  readonly denseUs: number;
  readonly sparseUs: number;
  /** Of what a list holds, copied in a step. */
  readonly changed: number;
}

/** Both in turn, a step of all layers each, with queries that wander. The first steps fill the buffer and do not count. */
function measure(pool: KvPool, { mode, cosine }: Case): Measured {
  const random = new Random(2);
  const out = new Float32Array(pool.outWidth);
  let qkv = random.normals(pool.qkvWidth);
  const layerUs = (batch: AttentionBatch): number => {
    pool.beginStep(batch);
    const startNs = Bun.nanoseconds();
    for (let layer = 0; layer < layerCount; layer++) pool.attention(layer, qkv, out);
    return (Bun.nanoseconds() - startNs) / layerCount / 1e3;
  };
  const [dense, sparse]: number[][] = [[], []];
  let before = 0;
  for (let round = 0; round < 36; round++) {
    const fresh = random.normals(qkv.length);
    qkv = qkv.map((x, i) => cosine * x + Math.sqrt(1 - cosine * cosine) * fresh[i]);
    dense.push(layerUs(denseStep()));
    sparse.push(layerUs(sparseStep(mode, round === 0)));
    if (round === 3) before = pool.seats?.counts(0).changed ?? 0;
  }
  const changed = ((pool.seats?.counts(0).changed ?? 0) - before) / (32 * layerCount * shape.kvHeads * chosenTokens);
  return { denseUs: median(dense.slice(4)), sparseUs: median(sparse.slice(4)), changed };
}

/** In the columns of `bench kernels`; the last is dense over sparse. */
export function choiceRows(kernels: CpuKernels): ChoiceRows {
  const pool = openPool(kernels);
  const bars: Bar[] = [];
  const rows: string[][] = [];
  for (const each of cases) {
    const { denseUs, sparseUs, changed } = measure(pool, each);
    const name = `${each.mode}: ${chosenTokens} of ${contextTokens}, ${(100 * changed).toFixed(0)} % changed`;
    rows.push([`dense, ${contextTokens}`, shape.name, "float16", figure(denseUs), "", "", "", "", ""]);
    rows.push([name, shape.name, "float16", figure(sparseUs), "", "", "", "", figure(denseUs / sparseUs)]);
    bars.push(
      atLeast(`${each.mode}, ${chosenTokens} of ${contextTokens}: dense over sparse`, denseUs / sparseUs, each.bound),
    );
  }
  pool.close();
  return { rows, bars };
}
