/** How good a choice is, and how far rounding may lead. */
import { expect } from "bun:test";
import type { KvPool } from "../../worker/native/cpu-kernels.ts";
import { bareQuery, candidatesOf, dot, hadamard, scoresOf, shadowOf, shares, vectorOf } from "./choice-oracle.ts";
import type { Scene, SceneStep } from "./choice-scene.ts";

/**
 * What each candidate is worth in float64, [tokens], and how far rounding may move it, when the queries of one KV head's group
 * choose. A query's numbers are off by up to half a step, 1/127 of the greatest, each way as often as the other: the sum of
 * n such products is off by step / sqrt(12) times the length of y, and by 6 times that once in 10^9. K and q are float32.
 */
export function worthOf(pool: KvPool, at: WorthOf, queries: readonly Float64Array[]): Worth {
  const { scene, step, floats, layer, kvHead, isExact } = at;
  const { options } = scene;
  const candidates = candidatesOf(options, step.segments);
  const keys = candidates.map(({ block, offset }) => {
    if (isExact) return vectorOf(options, floats, "key", { layer, kvHead, block, offset });
    const { scale, numbers } = shadowOf(pool, { layer, kvHead, block, offset });
    return numbers.map((x) => x * scale);
  });
  const lengths = keys.map((key) => Math.hypot(...key));
  const slack = new Float64Array(candidates.length);
  const transformed = new Map<Float64Array, Float64Array>();
  const factor = (options.softmaxScale ?? 1 / Math.sqrt(options.headDim)) * Math.LOG2E;
  const relative = isExact ? 0 : 6 / 127 / Math.sqrt(12);
  const scores = queries.map((bare) => {
    const own = new Float64Array(candidates.length);
    const z = scoresOf(options, layer, step, bare, (query, number) => {
      const turned = transformed.get(query) ?? (isExact ? query : hadamard(query));
      transformed.set(query, turned);
      const most = turned.reduce((a, x) => Math.max(a, Math.abs(x)), 0);
      const rounding = Math.hypot(...turned) * 2 ** -18;
      own[number] = lengths[number] * (most * relative + rounding) * factor;
      return dot(turned, keys[number]);
    });
    // L is off by what the tokens that weigh are off by.
    const top = z.reduce((a, b) => Math.max(a, b));
    const weights = z.map((x) => 2 ** (x - top));
    const ofSum = dot(weights, own) / weights.reduce((sum, x) => sum + x, 0);
    own.forEach((x, i) => {
      slack[i] = Math.max(slack[i], x + ofSum);
    });
    return z;
  });
  return { shares: shares(scores), slack };
}

export interface Worth {
  readonly shares: Float64Array;
  readonly slack: Float64Array;
}

export interface WorthOf {
  readonly scene: Scene;
  readonly step: SceneStep;
  readonly floats: Float32Array;
  readonly layer: number;
  readonly kvHead: number;
  readonly isExact: boolean;
}

/** The queries of a KV head's group in a step. */
export const groupOf = ({ options, norms }: Scene, qkv: Float32Array, kvHead: number): Float64Array[] => {
  const group = options.queryHeads / options.kvHeads;
  return Array.from({ length: group }, (_, g) => bareQuery(options, qkv, kvHead * group + g, norms?.q));
};

/** Forced tokens first, then tokens none of which is worse than one that was left out, but for rounding. */
export function expectBest(scene: Scene, step: SceneStep, list: Int32Array, { shares, slack }: Worth): void {
  const candidates = candidatesOf(scene.options, step.segments);
  const forced = candidates.flatMap((each, number) => (each.forced ? [number] : []));
  expect([...list.subarray(0, forced.length)]).toEqual(forced);
  const chosen = new Set(list);
  expect(chosen.size).toBe(list.length);
  expect(list.length).toBe(step.batch.segmentTokenCounts[0]);
  const own = [...list.subarray(forced.length)];
  // A share is rounded to float16.
  const most = (number: number) => shares[number] + slack[number] + Math.abs(shares[number]) * 2 ** -11 + 2 ** -14;
  const least = (number: number) => shares[number] - slack[number] - Math.abs(shares[number]) * 2 ** -11 - 2 ** -14;
  const worst = Math.min(...own.map(most));
  const better = candidates.flatMap((each, number) =>
    chosen.has(number) || each.forced || least(number) <= worst ? [] : [number],
  );
  expect(better).toEqual([]);
}

/**
 * How far the outputs of attention over copied K may lie from those over K itself: a score moves by |q| |k| times K's
 * rounding, a weight by twice that, and an output by a weight's change of the values' size.
 */
export function copyBound(scene: Scene, step: SceneStep, floats: Float32Array): number {
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
