/** How far two results may lie apart, and how far they do. */
import type { Elements, World } from "./world.ts";

const epsilon = 2 ** -24;
/** What a number loses when it becomes the sum of two bfloat16 numbers, or two such sums are multiplied without the least product. */
const partEpsilon = 2 ** -15;

/** Norm of each query head after its RMSNorm, [T][queryHeads]. */
function queryNorms(world: World): Float32Array {
  const { queryHeads, kvHeads, headDim } = world.options;
  const rowWidth = (queryHeads + 2 * kvHeads) * headDim;
  const rowCount = world.qkv.length / rowWidth;
  return Float32Array.from({ length: rowCount * queryHeads }, (_, index) => {
    const start = Math.floor(index / queryHeads) * rowWidth + (index % queryHeads) * headDim;
    return normOf(world.qkv.subarray(start, start + headDim), world.norms?.q);
  });
}

function normOf(head: Float32Array, weights: Float32Array | undefined): number {
  const norm = Math.hypot(...head);
  if (weights === undefined) return norm;
  return (Math.hypot(...head.map((x, d) => x * (weights[d] ?? 0))) / norm) * Math.sqrt(head.length);
}

/** Greatest norm of a stored token's K in `elements` (the pool's layout); poison does not count. */
function greatestKeyNorm(world: World, elements: Float32Array): number {
  const { headDim, blockTokens } = world.options;
  const headElements = 2 * headDim * blockTokens;
  let greatest = 0;
  for (let head = 0; head < elements.length; head += headElements) {
    for (let token = 0; token < blockTokens; token++) {
      let squares = 0;
      for (let d = 0; d < headDim; d++) squares += (elements[head + d * blockTokens + token] ?? 0) ** 2;
      if (squares > greatest) greatest = squares;
    }
  }
  return Math.sqrt(greatest);
}

/** The pool with |V| in place of V: attention over it gives the sums of weight * |v|, what errors scale with. */
export function withAbsoluteValues(world: World, elements: Float32Array | Uint16Array): Float32Array | Uint16Array {
  const { headDim, blockTokens } = world.options;
  const half = headDim * blockTokens;
  const absolute = elements.slice();
  for (let start = half; start < absolute.length; start += 2 * half) {
    for (let i = start; i < start + half; i++) {
      absolute[i] = absolute instanceof Uint16Array ? (absolute[i] ?? 0) & 0x7fff : Math.abs(absolute[i] ?? 0);
    }
  }
  return absolute;
}

/**
 * Bound of one element of a stored K, u = 2^-24: RMSNorm is a sum of headDim squares, a root and two products; the
 * rotation adds two products, a sum and the rounding of cos and sin. Rounding errors do not line up, so the root
 * of the count: (sqrt(headDim) + 8) u |k|; and one rounding to float16 that may fall to the other side.
 */
export function keyBound(world: World, elements: Float32Array): number {
  const halfRounding = world.options.kvType === "float16" ? 2 ** -10 : 0;
  return ((Math.sqrt(world.options.headDim) + 8) * epsilon + halfRounding) * greatestKeyNorm(world, elements);
}

/**
 * Bound of each element of attention's output. A score is a sum of headDim products whose absolute values sum to
 * at most |q| |k| (Cauchy-Schwarz), and q carries about as much error from its norm and rotation: its error is at
 * most (2 headDim + 16) u |q| |k| scale. A weight has the relative error of its score twice (numerator and
 * denominator) and some u of the polynomial; sums over n tokens add n u. Rounding errors do not line up, so the
 * roots of the counts:
 *   |error| <= u (2 sqrt(headDim) |q| |k| scale + sqrt(n) + 8) sum(weight |v|)
 * (Seen over thousands of steps: a fifth of it.)
 *
 * By AMX each product of a score, and each of a weight and a value, is off by up to p = 2^-15 more. Those of a score do not
 * line up: 4 p |q| |k| scale / sqrt(headDim); a weight's own rounding, its value's and their product are 3 p:
 *   |error| <= the above + p (4 |q| |k| scale / sqrt(headDim) + 3) sum(weight |v|)
 */
export function outBounds(
  world: World,
  elements: Float32Array,
  absoluteOut: Float32Array,
  byTiles: boolean,
): Float32Array {
  const { options, batch } = world;
  const factor = (options.rope.attentionFactor ?? 1) * (options.softmaxScale ?? 1 / Math.sqrt(options.headDim));
  const keyNorm = greatestKeyNorm(world, elements);
  const tokens = batch.segmentTokenCounts.reduce((sum, count) => sum + count, 0);
  const norms = queryNorms(world);
  return absoluteOut.map((sum, index) => {
    const scoreSize = (norms[Math.floor(index / options.headDim)] ?? 0) * keyNorm * factor;
    const parts = byTiles ? partEpsilon * ((4 * scoreSize) / Math.sqrt(options.headDim) + 3) : 0;
    return (epsilon * (2 * Math.sqrt(options.headDim) * scoreSize + Math.sqrt(tokens) + 8) + parts) * sum;
  });
}

/** Greatest |actual - expected| / bound; infinite when one is NaN where the other is not. */
export function greatestExcess(actual: Float32Array, expected: Float32Array, bounds: Float32Array): number {
  let greatest = 0;
  for (let i = 0; i < expected.length; i++) {
    const excess = Math.abs((actual[i] ?? Number.NaN) - (expected[i] ?? Number.NaN)) / (bounds[i] ?? 0);
    if (!(excess <= greatest)) greatest = Number.isNaN(excess) ? Number.POSITIVE_INFINITY : excess;
  }
  return greatest;
}

/** Greatest absolute difference; infinite when one is NaN where the other is not. */
export function greatestDifference(actual: Float32Array, expected: Float32Array): number {
  let greatest = 0;
  for (let i = 0; i < expected.length; i++) {
    const a = actual[i] ?? Number.NaN;
    const b = expected[i] ?? Number.NaN;
    if (Number.isNaN(a) && Number.isNaN(b)) continue;
    const difference = Math.abs(a - b);
    if (!(difference <= greatest)) greatest = Number.isNaN(difference) ? Number.POSITIVE_INFINITY : difference;
  }
  return greatest;
}

/** float32 values of stored elements. */
export function toFloats(elements: Elements): Float32Array {
  if (elements instanceof Uint8Array) throw new RangeError("mx8 has numbers and scales (mx8-twin.ts)");
  if (elements instanceof Float32Array) return elements;
  const floats = new Float32Array(elements.length);
  for (let i = 0; i < floats.length; i++) floats[i] = floatOfHalf(elements[i] ?? 0);
  return floats;
}

function floatOfHalf(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const sign = bits & 0x8000 ? -1 : 1;
  if (exponent === 31) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

/** Index of the first element whose bits differ, -1 when none does. */
export function firstDifferentBits(a: Float32Array, b: Float32Array): number {
  if (a.length !== b.length) return 0;
  const left = new Int32Array(a.buffer, a.byteOffset, a.length);
  const right = new Int32Array(b.buffer, b.byteOffset, b.length);
  return left.findIndex((bits, index) => bits !== right[index]);
}
