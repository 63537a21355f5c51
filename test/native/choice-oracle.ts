/** What kernels/abi_sparse.h says, in float64 and plain loops, from what the pool holds. */
import type { KvPool, KvPoolOptions } from "../../worker/native/cpu-kernels.ts";
import { type CandidateSegment, type SceneStep, shadowBytes } from "./choice-scene.ts";
import { toFloats } from "./compare.ts";
import { decodePool } from "./mx8-twin.ts";
import type { Elements } from "./world.ts";

/** A pool's contents as float32, whatever it holds them as. */
export function floatsOf(options: KvPoolOptions, kv: Elements): Float32Array {
  return kv instanceof Uint8Array ? decodePool(kv, options) : toFloats(kv);
}

/** The contents of a pool's memory, copied, as it holds them. */
export function elementsOfMemory(options: KvPoolOptions, memory: ArrayBuffer): Elements {
  const bytes = new Uint8Array(memory).slice();
  if (options.kvType === "mx8") return bytes;
  return options.kvType === "float32" ? new Float32Array(bytes.buffer) : new Uint16Array(bytes.buffer);
}

const bitCount = (value: number): number => value.toString(2).replaceAll("0", "").length;

/** -1 for a number with an odd count of ones, 1 for the others, of the rows and columns of the largest head. */
const signs = Array.from({ length: 256 }, (_, value) => (bitCount(value) % 2 === 0 ? 1 : -1));

/** The orthonormal Hadamard transform of each power-of-two part, as the sum that defines it. */
export function hadamard(x: ArrayLike<number>): Float64Array {
  const out = new Float64Array(x.length);
  for (let start = 0; start < x.length; ) {
    const part = 2 ** Math.floor(Math.log2(x.length - start));
    for (let row = 0; row < part; row++) {
      for (let column = 0; column < part; column++) {
        out[start + row] += signs[row & column] * x[start + column];
      }
      out[start + row] /= Math.sqrt(part);
    }
    start += part;
  }
  return out;
}

export function rotated(options: KvPoolOptions, layer: number, x: ArrayLike<number>, position: number, factor = 1) {
  const out = Float64Array.from(x);
  if (options.rope.layers?.[layer] === false) return out;
  const { inverseFrequencies, interleaved } = options.rope;
  const half = inverseFrequencies.length;
  for (let i = 0; i < half; i++) {
    const [a, b] = interleaved ? [2 * i, 2 * i + 1] : [i, i + half];
    const angle = position * inverseFrequencies[i];
    const [c, s] = [Math.cos(angle) * factor, Math.sin(angle) * factor];
    [out[a], out[b]] = [x[a] * c - x[b] * s, x[b] * c + x[a] * s];
  }
  return out;
}

/** A query head of the step's row, normed and unrotated. */
export function bareQuery(
  options: KvPoolOptions,
  qkv: Float32Array,
  head: number,
  weights?: Float32Array,
): Float64Array {
  const q = Float64Array.from(qkv.subarray(head * options.headDim, (head + 1) * options.headDim));
  if (weights === undefined) return q;
  const squares = q.reduce((sum, x) => sum + x * x, 0);
  const scale = 1 / Math.sqrt(squares / options.headDim + (options.normEpsilon ?? 1e-6));
  return q.map((x, d) => x * scale * weights[d]);
}

/** The slot of each candidate by its number, its segment's Δ, and whether it is forced. */
export function candidatesOf(options: KvPoolOptions, segments: readonly CandidateSegment[]) {
  return segments.flatMap(({ blockIds, firstToken, tokenCount, offset, forced }) =>
    Array.from({ length: tokenCount }, (_, i) => {
      const token = firstToken + i;
      const block = blockIds[Math.floor(token / options.blockTokens)] ?? -1;
      return { block, offset: token % options.blockTokens, delta: offset, forced: i < forced };
    }),
  );
}

/** A token's place in one layer and KV head. */
interface KvAt {
  readonly layer: number;
  readonly kvHead: number;
  readonly block: number;
  readonly offset: number;
}

/** K, or V, of a token in a pool's contents as floats. */
export function vectorOf(options: KvPoolOptions, floats: Float32Array, part: "key" | "value", at: KvAt): Float64Array {
  const { blockCount, kvHeads, headDim, blockTokens } = options;
  const start = ((at.layer * blockCount + at.block) * kvHeads + at.kvHead) * 2 * headDim * blockTokens;
  return Float64Array.from({ length: headDim }, (_, d) =>
    part === "key"
      ? floats[start + d * blockTokens + at.offset]
      : floats[start + headDim * (blockTokens + at.offset) + d],
  );
}

/** The numbers and the scale of a token's shadow. */
export function shadowOf({ options, seats }: KvPool, at: KvAt) {
  const { headDim } = options;
  if (seats === undefined) throw new Error("no seats");
  const bytes = seats.shadows(at.layer, at.block, at.kvHead, shadowBytes(options));
  const panel = bytes.subarray(Math.floor(at.offset / 16) * (headDim * 8 + 32));
  const lane = at.offset % 16;
  const halfOf = toFloats(Uint16Array.of(panel[headDim * 8 + lane * 2] | (panel[headDim * 8 + lane * 2 + 1] << 8)));
  const numbers = Float64Array.from({ length: headDim }, (_, d) => {
    const inHalf = d % (headDim / 2);
    const byte = panel[(Math.floor(inHalf / 4) * 16 + lane) * 4 + (inHalf % 4)];
    return (d < headDim / 2 ? byte & 15 : byte >> 4) - 8;
  });
  return { scale: halfOf[0], numbers };
}

/** Scores in log2 units less their query's L: the greatest over the queries. [queries][tokens] */
export function shares(scores: readonly Float64Array[]): Float64Array {
  const best = new Float64Array(scores[0]?.length ?? 0).fill(Number.NEGATIVE_INFINITY);
  for (const own of scores) {
    const top = own.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const log = top + Math.log2(own.reduce((sum, z) => sum + 2 ** (z - top), 0));
    own.forEach((z, i) => {
      best[i] = Math.max(best[i], z - log);
    });
  }
  return best;
}

/** Scores of all candidates for one query head, by keys that `keyOf` gives. */
export function scoresOf(
  options: KvPoolOptions,
  layer: number,
  step: SceneStep,
  bare: Float64Array,
  product: (query: Float64Array, number: number) => number,
): Float64Array {
  const queries = new Map<number, Float64Array>();
  return Float64Array.from(candidatesOf(options, step.segments), ({ delta }, number) => {
    const query =
      queries.get(delta) ?? rotated(options, layer, bare, step.position - delta, options.rope.attentionFactor);
    queries.set(delta, query);
    return product(query, number) * (options.softmaxScale ?? 1 / Math.sqrt(options.headDim)) * Math.LOG2E;
  });
}

export const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
};

/** Equations 2 to 5: the query after `newest`[0], of up to 17, the newest first. */
export function predictedQuery(newest: readonly ArrayLike<number>[], steps = 4, ridge = 0.03): Float64Array {
  const dim = newest[0].length;
  const windows = Math.max(1, newest.length - 1);
  const unit = newest.reduce((sum, x) => sum + dot(x, x) / newest.length, 0);
  const out = new Float64Array(dim);
  for (let k = 1; k <= windows; k++) {
    const p = k === 1 ? [1] : fitted(newest.slice(0, k + 1), unit, steps, ridge);
    p.forEach((weight, i) => {
      for (let d = 0; d < dim; d++) out[d] += (weight * newest[i][d]) / windows;
    });
  }
  return out;
}

function fitted([target, ...keys]: readonly ArrayLike<number>[], unit: number, steps: number, ridge: number): number[] {
  const gram = keys.map((a) => keys.map((b) => dot(a, b) / unit));
  const b = keys.map((key) => dot(key, target) / unit);
  let w = keys.map(() => 0);
  const objective = (): number => {
    const p = softmax(w);
    const u = gram.map((row) => dot(row, p));
    return dot(p, u) / 2 - dot(p, b) + (ridge / 2) * dot(w, w);
  };
  let before = objective();
  for (let n = 0; n < steps; n++) {
    const p = softmax(w);
    const u = gram.map((row) => dot(row, p));
    const s = dot(p, u);
    const beta = dot(p, b);
    const g = p.map((pi, i) => pi * (u[i] - b[i] - s + beta) + ridge * w[i]);
    const h = p.map((pi, i) => p.map((pj, j) => pi * pj * (gram[i][j] - u[i] - u[j] + s) + (i === j ? ridge : 0)));
    const step = solved(h, g);
    w = w.map((x, i) => x - step[i]);
    const after = objective();
    if (after > before + 1e-9) return keys.map(() => 1 / keys.length);
    before = after;
  }
  return softmax(w);
}

function softmax(w: readonly number[]): number[] {
  const weights = w.map((x) => Math.exp(x - Math.max(...w)));
  const sum = weights.reduce((a, x) => a + x, 0);
  return weights.map((x) => x / sum);
}

/** h x = g by Gaussian elimination with pivots. */
function solved(h: number[][], g: number[]): number[] {
  const rows = h.map((row, i) => [...row, g[i]]);
  for (let i = 0; i < rows.length; i++) {
    let best = i;
    for (let r = i; r < rows.length; r++) if (Math.abs(rows[r][i]) > Math.abs(rows[best][i])) best = r;
    [rows[i], rows[best]] = [rows[best], rows[i]];
    for (let r = 0; r < rows.length; r++) {
      if (r === i) continue;
      const factor = rows[r][i] / rows[i][i];
      for (let c = i; c <= rows.length; c++) rows[r][c] -= factor * rows[i][c];
    }
  }
  return rows.map((row, i) => row[rows.length] / row[i]);
}
