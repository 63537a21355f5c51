/**
 * The CPU kernels against the machine's measured limits: attention's multiply-adds for prefill and memory for decode,
 * products of weights against AMX and memory.
 */
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type KvPool, type KvType, kvBytesOf } from "../../worker/native/cpu-kernels.ts";
import { batchOf, type Piece } from "../native/world.ts";
import { atLeast, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { choiceRows } from "./support/choices.ts";
import { openMachinePeak } from "./support/peak.ts";
import { productRows } from "./support/products.ts";
import { figure, median } from "./support/stats.ts";

interface Shape {
  readonly name: string;
  readonly queryHeads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

const demo: Shape = { name: "demo (6/2 x 64)", queryHeads: 6, kvHeads: 2, headDim: 64 };
/** AMX attends where so many heads share K and V. */
const shared: Shape = { name: "gpt-oss (16/2 x 64)", queryHeads: 16, kvHeads: 2, headDim: 64 };
const small: Shape = { name: "0.6B (16/8 x 128)", queryHeads: 16, kvHeads: 8, headDim: 128 };
const blockTokens = 16;

interface Case {
  readonly name: string;
  readonly shape: Shape;
  readonly kvType: KvType;
  /** Takes blocks from `next`. */
  readonly pieces: (next: (tokenCount: number) => number[]) => Piece[];
  readonly limit: "multiply-add" | "tiles" | "memory" | "none";
}

interface Measured {
  readonly layerUs: number;
  readonly gflops: number;
  readonly gigabytes: number;
}

function run(tokenCount: number, rowCount: number, seen: Piece["seen"], blockIds: number[]): Piece {
  return { firstPosition: 20_000, rowCount, seen, own: { blockIds, firstToken: 0, tokenCount, offset: 0 } };
}

function fragments(count: number, tokenCount: number, next: (tokenCount: number) => number[]): Piece["seen"] {
  return Array.from({ length: count }, (_, index) => {
    return { blockIds: next(tokenCount), firstToken: 0, tokenCount, offset: index * tokenCount };
  });
}

const prefill =
  (tokenCount: number): Case["pieces"] =>
  (next) => [run(tokenCount, tokenCount, [], next(tokenCount))];
const decode =
  (contextTokens: number): Case["pieces"] =>
  (next) => [run(contextTokens, 1, [], next(contextTokens))];

const cases: readonly Case[] = [
  { name: "prefill 512", shape: demo, kvType: "float32", pieces: prefill(512), limit: "multiply-add" },
  { name: "prefill 2048", shape: small, kvType: "float32", pieces: prefill(2048), limit: "multiply-add" },
  { name: "prefill 2048", shape: small, kvType: "float16", pieces: prefill(2048), limit: "multiply-add" },
  { name: "prefill 2048", shape: small, kvType: "mx8", pieces: prefill(2048), limit: "multiply-add" },
  {
    name: "32 rows over 32 x 128",
    shape: demo,
    kvType: "float32",
    pieces: (next) => [run(32, 32, fragments(32, 128, next), next(32))],
    limit: "multiply-add",
  },
  { name: "prefill 512", shape: shared, kvType: "float16", pieces: prefill(512), limit: "tiles" },
  { name: "prefill 2048", shape: shared, kvType: "float16", pieces: prefill(2048), limit: "tiles" },
  {
    name: "20 rows over 32 x 512",
    shape: shared,
    kvType: "float16",
    pieces: (next) => [run(20, 20, fragments(32, 512, next), next(20))],
    limit: "tiles",
  },
  { name: "decode after 2048", shape: shared, kvType: "float16", pieces: decode(2048), limit: "none" },
  { name: "decode after 512", shape: demo, kvType: "float32", pieces: decode(512), limit: "none" },
  {
    name: "8 decodes over 16 x 128",
    shape: demo,
    kvType: "float32",
    pieces: (next) => {
      const shared = fragments(16, 128, next);
      return Array.from({ length: 8 }, () => run(32, 1, shared, next(32)));
    },
    limit: "none",
  },
  { name: "decode after 32768", shape: small, kvType: "float32", pieces: decode(32_768), limit: "memory" },
  { name: "decode after 32768", shape: small, kvType: "float16", pieces: decode(32_768), limit: "memory" },
  { name: "decode after 32768", shape: small, kvType: "mx8", pieces: decode(32_768), limit: "memory" },
];

/** Decoding rows over the same 16 fragments of 512 tokens, each in an order of its own. */
const crowd =
  (rowCount: number): Case["pieces"] =>
  (next) => {
    const shared = fragments(16, 512, next);
    return Array.from({ length: rowCount }, (_, row) => {
      const seen = shared.map((_, i) => ({ ...shared[(i + 5 * row) % 16], offset: i * 512 + row }));
      return run(32, 1, seen, next(32));
    });
  };

/** The same number everywhere: 0.5, and in mx8 127 times 2^-6. */
function fillPool(pool: KvPool): void {
  const { kvType } = pool.options;
  if (kvType === "float32") new Float32Array(pool.memory()).fill(0.5);
  else if (kvType === "float16") new Uint16Array(pool.memory()).fill(0x3800);
  else new Uint8Array(pool.memory()).fill(0x7f);
}

interface Opened {
  readonly pool: KvPool;
  /** One pass over all layers. @returns nanoseconds a layer */
  readonly layerNs: () => number;
  /** Tokens that all rows see, and tokens that are stored. */
  readonly seenTokens: number;
  readonly storedTokens: number;
}

function open(kernels: CpuKernels, { shape, kvType, pieces }: Case, packing = true): Opened {
  let blockCount = 0;
  const next = (tokenCount: number) => Array.from({ length: Math.ceil(tokenCount / blockTokens) }, () => blockCount++);
  const drawn = pieces(next);
  const layerCount = 4;
  const inverseFrequencies = Float32Array.from({ length: shape.headDim / 2 }, (_, i) => 10_000 ** (-i / shape.headDim));
  const pool = kernels.openPool({
    ...shape,
    layerCount,
    blockCount,
    blockTokens,
    kvType,
    rope: { inverseFrequencies },
    maxPositions: 100_000,
    packing,
  });
  fillPool(pool);
  const batch = batchOf(drawn, blockTokens);
  const qkv = Float32Array.from({ length: batch.positions.length * pool.qkvWidth }, (_, i) => Math.sin(i));
  const out = new Float32Array(batch.positions.length * pool.outWidth);
  pool.beginStep(batch);
  const layerNs = (): number => {
    const startNs = Bun.nanoseconds();
    for (let layer = 0; layer < layerCount; layer++) pool.attention(layer, qkv, out);
    return (Bun.nanoseconds() - startNs) / layerCount;
  };
  return {
    pool,
    layerNs,
    seenTokens: drawn.reduce((sum, piece) => sum + seenTokens(piece), 0),
    storedTokens: new Set(batch.blockIds).size * blockTokens,
  };
}

function measure(kernels: CpuKernels, each: Case): Measured {
  const opened = open(kernels, each);
  const endMs = performance.now() + 600;
  let fastestNs = Number.POSITIVE_INFINITY;
  for (let round = 0; round < 4 || performance.now() < endMs; round++) {
    fastestNs = Math.min(fastestNs, opened.layerNs());
  }
  opened.pool.close();
  return measured(each, opened, fastestNs);
}

function measured({ shape, kvType }: Case, { seenTokens, storedTokens }: Opened, layerNs: number): Measured {
  return {
    layerUs: layerNs / 1e3,
    gflops: (4 * shape.headDim * shape.queryHeads * seenTokens) / layerNs,
    gigabytes: kvBytesOf(kvType, 2 * shape.headDim * shape.kvHeads * storedTokens) / layerNs,
  };
}

interface PackingCase {
  readonly each: Case;
  /** Packed at least so many times faster than not. */
  readonly bound: number;
}

function crowdOf(rowCount: number, shape: Shape, kvType: Case["kvType"]): Case {
  return { name: `${rowCount} over 16 x 512`, shape, kvType, pieces: crowd(rowCount), limit: "none" };
}

/** Where few heads share KV in float32, loading it takes longest beside computing with it, and packing gains most. */
const packingCases: readonly PackingCase[] = [
  { each: crowdOf(16, demo, "float32"), bound: 1 },
  { each: crowdOf(16, demo, "float16"), bound: 1 },
  { each: crowdOf(16, small, "float32"), bound: 3 },
  { each: crowdOf(16, small, "float16"), bound: 1 },
  { each: crowdOf(16, small, "mx8"), bound: 1 },
  { each: crowdOf(1, small, "float32"), bound: 0.95 },
  { each: crowdOf(1, demo, "float16"), bound: 0.95 },
];

/** Rounds in turn, so that what else the machine does meets both. @returns of packed rows, and the median of the ratios */
function packingGain(kernels: CpuKernels, each: Case): { measured: Measured; gain: number } {
  const [packed, alone] = [open(kernels, each, true), open(kernels, each, false)];
  const gains: number[] = [];
  let fastestNs = Number.POSITIVE_INFINITY;
  const endMs = performance.now() + 2_000;
  while (gains.length < 5 || performance.now() < endMs) {
    const [packedNs, aloneNs] = [packed.layerNs(), alone.layerNs()];
    gains.push(aloneNs / packedNs);
    fastestNs = Math.min(fastestNs, packedNs);
  }
  for (const { pool } of [packed, alone]) pool.close();
  return { measured: measured(each, packed, fastestNs), gain: median(gains) };
}

/** Tokens that the rows of a piece see, all rows together. */
function seenTokens({ rowCount, seen, own }: Piece): number {
  const whole = seen.reduce((sum, segment) => sum + segment.tokenCount, 0);
  return rowCount * (whole + own.tokenCount) - (rowCount * (rowCount - 1)) / 2;
}

async function runBench({ option, say }: BenchContext): Promise<BenchReport> {
  const threadCount = Number(option("threads") ?? 2);
  const kernels = new CpuKernels(await buildCpuKernels(), { threadCount });
  const peak = await openMachinePeak();
  const bars: Bar[] = [];
  const rows = cases.map((each) => {
    say(`${each.name}, ${each.shape.name}, ${each.kvType}`);
    const { layerUs, gflops: asked, gigabytes } = measure(kernels, each);
    const name = `${each.name}, ${each.shape.name}, ${each.kvType}`;
    // AMX multiplies three parts of each product, and all of them count.
    const byTiles = each.limit === "tiles" && kernels.isa === "amx";
    const gflops = byTiles ? 3 * asked : asked;
    const peakGflops = byTiles ? peak.tiles(threadCount, "b16") : peak.gflops(threadCount);
    const peakGigabytes = peak.gigabytes(threadCount);
    if (each.limit === "multiply-add") bars.push(atLeast(`${name}: of peak multiply-adds`, gflops / peakGflops, 0.6));
    if (each.limit === "memory") bars.push(atLeast(`${name}: of memory rate`, gigabytes / peakGigabytes, 0.7));
    const figures = [layerUs, gflops, peakGflops, gigabytes, peakGigabytes].map(figure);
    return [each.name, each.shape.name, each.kvType, ...figures, ""];
  });
  for (const { each, bound } of packingCases) {
    say(`${each.name}, ${each.shape.name}, ${each.kvType}: packed and not`);
    const { measured: packed, gain } = packingGain(kernels, each);
    const rates = [packed.gflops, peak.gflops(threadCount), packed.gigabytes, peak.gigabytes(threadCount)];
    bars.push(atLeast(`${each.name}, ${each.shape.name}, ${each.kvType}: packed over not`, gain, bound));
    rows.push([each.name, each.shape.name, each.kvType, ...[packed.layerUs, ...rates, gain].map(figure)]);
  }
  say("products");
  const products = productRows(kernels, peak, threadCount);
  rows.push(...products.rows.map((row) => [...row]));
  bars.push(...products.bars);
  say("choices");
  const choices = choiceRows(kernels);
  rows.push(...choices.rows.map((row) => [...row]));
  bars.push(...choices.bars);
  kernels.close();
  const header = ["case", "shape", "KV", "us/layer", "GFLOP/s", "(peak)", "GB/s", "(peak)", "packing"];
  return { model: "synthetic K and V", bars, header, rows, details: { isa: kernels.isa, threadCount } };
}

export const kernelsBench: Bench = {
  name: "kernels",
  summary: "CPU attention and product kernels against the machine's peak rates",
  options: { threads: "N  threads that compute (2)" },
  run: runBench,
};
