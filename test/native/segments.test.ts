/**
 * What segments mean, from the definition: a span computed once at its own positions 0, 1, … and read with an
 * offset gives what plain attention gives over the whole prompt, every key rotated to where it then stands.
 */
import { afterAll, expect, test } from "bun:test";
import { buildCpuKernels } from "../../kernels/build.ts";
import { CpuKernels, type KvPool } from "../../worker/native/cpu-kernels.ts";
import { Random } from "./random.ts";
import { batchOf, type Piece } from "./world.ts";

const kernels = new CpuKernels(await buildCpuKernels(), { threadCount: 1 });
afterAll(() => kernels.close());

const headDim = 16;
const [queryHeads, kvHeads, blockTokens] = [4, 2, 4];
const frequencies = Float32Array.from({ length: headDim / 2 }, (_, i) => 100 ** (-i / 8));
const width = (queryHeads + 2 * kvHeads) * headDim;

interface Token {
  /** [width] q, k and v heads. */
  readonly qkv: Float32Array;
  /** Where it stands in the prompt. */
  readonly position: number;
}

function rotated(head: ArrayLike<number>, position: number): number[] {
  const out = Array.from(head);
  for (let i = 0; i < headDim / 2; i++) {
    const [c, s] = [Math.cos(position * (frequencies[i] ?? 0)), Math.sin(position * (frequencies[i] ?? 0))];
    const [a, b] = [head[i] ?? 0, head[i + headDim / 2] ?? 0];
    out[i] = a * c - b * s;
    out[i + headDim / 2] = b * c + a * s;
  }
  return out;
}

/** Plain attention of one token over those it sees. */
function plainAttention(token: Token, seen: readonly Token[]): number[] {
  return Array.from({ length: queryHeads }, (_, head) => {
    const start = (queryHeads + Math.floor((head * kvHeads) / queryHeads)) * headDim;
    const q = rotated(token.qkv.subarray(head * headDim, (head + 1) * headDim), token.position);
    const weights = seen.map((other) => {
      const k = rotated(other.qkv.subarray(start, start + headDim), other.position);
      return Math.exp(k.reduce((sum, x, d) => sum + x * (q[d] ?? 0), 0) / Math.sqrt(headDim));
    });
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const valueStart = start + kvHeads * headDim;
    return Array.from({ length: headDim }, (_, d) =>
      seen.reduce((sum, other, t) => sum + ((weights[t] ?? 0) / total) * (other.qkv[valueStart + d] ?? 0), 0),
    );
  }).flat();
}

const maxPositions = 1_000;
/**
 * Numbers are about 1 here, scores below 2, and what is summed up some tens. float32's rounding is 1e-6 then; AMX
 * multiplies sums of two bfloat16 numbers, each product off by up to 2^-15: some 4 of them of scores and 3 of values
 * (compare.ts).
 */
const bound = kernels.isa === "amx" ? 7 * 2 ** -15 : 1e-5;
const openPool = (blockCount: number): KvPool =>
  kernels.openPool({
    layerCount: 1,
    blockCount,
    blockTokens,
    queryHeads,
    kvHeads,
    headDim,
    kvType: "float32",
    rope: { inverseFrequencies: frequencies },
    maxPositions,
  });

/** Of two rows of numbers, how far they are from each other at most. */
const distance = (expected: readonly number[], actual: ArrayLike<number>): number =>
  Math.max(...expected.map((value, i) => Math.abs(value - (actual[i] ?? Number.NaN))));

function step(pool: KvPool, piece: Piece, tokens: readonly Token[]): Float32Array {
  pool.beginStep(batchOf([piece], blockTokens));
  const out = new Float32Array(tokens.length * pool.outWidth);
  pool.attention(0, Float32Array.from(tokens.flatMap((token) => [...token.qkv])), out);
  return out;
}

test("one stored span serves two places and a sub-run of it a third", () => {
  const random = new Random(7);
  const pool = openPool(16);
  const qkvs = (count: number) => Array.from({ length: count }, () => random.normals(width, 1e9));
  const spans = [qkvs(6), qkvs(9)];
  const question = qkvs(5);
  const spanBlocks = [
    [4, 1],
    [9, 0, 5],
  ];
  spans.forEach((span, index) => {
    const tokens = span.map((qkv, position) => ({ qkv, position }));
    const own = { blockIds: spanBlocks[index] ?? [], firstToken: 0, tokenCount: span.length, offset: 0 };
    const out = step(pool, { firstPosition: 0, rowCount: span.length, seen: [], own }, tokens);
    const expected = tokens.flatMap((token, row) => plainAttention(token, tokens.slice(0, row + 1)));
    expect(distance(expected, out)).toBeLessThan(bound);
  });

  // Each place: [span, its tokens from, to, where its token `from` stands in the prompt].
  const places = [
    [
      [0, 0, 6, 3],
      [1, 0, 9, 9],
    ],
    [
      [1, 0, 9, 3],
      [0, 0, 6, 12],
    ],
    [
      [1, 5, 9, 2],
      [0, 1, 4, 40],
    ],
  ] as const;
  for (const placed of places) {
    const seen = placed.map(([span, from, to, place]) => ({
      blockIds: (spanBlocks[span] ?? []).slice(Math.floor(from / blockTokens)),
      firstToken: from % blockTokens,
      tokenCount: to - from,
      offset: place - from,
    }));
    const others = placed.flatMap(([span, from, to, place]) =>
      (spans[span] ?? []).slice(from, to).map((qkv, i) => ({ qkv, position: place + i })),
    );
    const main = question.map((qkv, i) => ({ qkv, position: 50 + i }));
    const own = { blockIds: [12, 13], firstToken: 0, tokenCount: 5, offset: 0 };
    const out = step(pool, { firstPosition: 50, rowCount: 5, seen, own }, main);
    const expected = main.flatMap((token, row) => plainAttention(token, [...others, ...main.slice(0, row + 1)]));
    expect(distance(expected, out)).toBeLessThan(bound);
  }
});

test("a span computed at the end of the context, read from the end while it stands at the beginning", () => {
  const random = new Random(9);
  const pool = openPool(8);
  const chain = maxPositions - 6;
  const span = Array.from({ length: 6 }, (_, i) => ({ qkv: random.normals(width, 1e9), position: chain + i }));
  const stored = { blockIds: [2, 5], firstToken: 0, tokenCount: 6, offset: 0 };
  step(pool, { firstPosition: chain, rowCount: 6, seen: [], own: stored }, span);
  const question = { qkv: random.normals(width, 1e9), position: maxPositions - 1 };
  const [place, own] = [1, { blockIds: [7], firstToken: 0, tokenCount: 1, offset: 0 }];
  // q is rotated to 1,992: nearly twice the context, and still 998 tokens from the span's first.
  const seen = [{ ...stored, offset: place - chain }];
  const out = step(pool, { firstPosition: question.position, rowCount: 1, seen, own }, [question]);
  const moved = span.map((token, i) => ({ ...token, position: place + i }));
  const expected = plainAttention(question, [...moved, question]);
  expect(distance(expected, out)).toBeLessThan(bound);
});

test("a span that is copied to another place scores there as before", () => {
  const random = new Random(8);
  const pool = openPool(8);
  const tokens = Array.from({ length: 8 }, (_, position) => ({ qkv: random.normals(width, 1e9), position }));
  const own = { blockIds: [0, 1], firstToken: 0, tokenCount: 8, offset: 0 };
  step(pool, { firstPosition: 0, rowCount: 8, seen: [], own }, tokens);
  const question = { qkv: random.normals(width, 1e9), position: 300 };
  const read = (blockIds: number[], offset: number) =>
    step(
      pool,
      {
        firstPosition: 300,
        rowCount: 1,
        seen: [{ blockIds, firstToken: 0, tokenCount: 8, offset }],
        own: { blockIds: [7], firstToken: 0, tokenCount: 1, offset: 0 },
      },
      [question],
    );
  const before = read([0, 1], 120);
  const sourceSlots = Int32Array.from({ length: 8 }, (_, slot) => slot);
  const targetSlots = sourceSlots.map((slot) => 16 + slot);
  pool.copyTokens({ sourceSlots, targetSlots, deltas: new Int32Array(8).fill(120) });
  const after = read([4, 5], 0);
  expect(distance([...after], before)).toBeLessThan(bound);
  expect([...read([0, 1], 120)]).toEqual([...before]);
  expect(distance([...read([4, 5], 120)], before)).toBeGreaterThan(1e-2);
});
