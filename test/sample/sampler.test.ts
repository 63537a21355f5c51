import { describe, expect, test } from "bun:test";
import type { SamplingParams } from "../../worker/contract/messages.ts";
import { TokenHistory } from "../../worker/sample/penalties.ts";
import { uniform } from "../../worker/sample/rng.ts";
import { type SampledToken, Sampler } from "../../worker/sample/sampler.ts";
import { defaultParams } from "../engine/plans.ts";
import { fc } from "../support/fast-check.ts";

interface Setting extends Partial<SamplingParams> {
  readonly prompt?: readonly number[];
  readonly generated?: readonly number[];
  readonly banned?: readonly number[];
  readonly index?: number;
}

function sample(logits: readonly number[], setting: Setting = {}): SampledToken {
  const { prompt = [], generated = [], banned = [], index = 0, ...rest } = setting;
  const params = { ...defaultParams.sampling, ...rest };
  const history = TokenHistory.forParams(params, () => [Int32Array.from(prompt)]);
  for (const tokenId of generated) history?.add(tokenId);
  const sampler = new Sampler(logits.length);
  return sampler.sample(Float32Array.from(logits), { params, history, bannedTokenIds: banned, index });
}

/** Shares of each token over many draws. */
function shares(logits: readonly number[], setting: Setting, draws = 4_000): number[] {
  const counts = logits.map(() => 0);
  for (let index = 0; index < draws; index++) counts[sample(logits, { ...setting, index }).tokenId] += 1;
  return counts.map((count) => count / draws);
}

describe("greedy", () => {
  test("the highest logit, ties to the lowest id", () => {
    expect(sample([1, 5, 5, 2]).tokenId).toBe(1);
    expect(sample([-3, -2, Number.NEGATIVE_INFINITY]).tokenId).toBe(1);
  });

  test("a known greatest logit is taken where nothing changes the logits, and looked for where it is not known", () => {
    const sampler = new Sampler(4);
    const request = { params: defaultParams.sampling, history: undefined, bannedTokenIds: [], index: 0 };
    const draw = (greatest: number, bannedTokenIds: number[] = []) =>
      sampler.sample(Float32Array.of(1, 4, 3, 2), { ...request, bannedTokenIds }, greatest).tokenId;
    // 2 is wrong, which shows that it was taken.
    expect([draw(1), draw(2), draw(-1), draw(1, [1]), draw(2, [2])]).toEqual([1, 2, 1, 2, 1]);
  });

  test("logits that are not finite are an error", () => {
    expect(() => sample([1, Number.NaN, 3])).toThrow("logit of token 1 is NaN");
    expect(() => sample([3, Number.NaN, 1])).toThrow("logit of token 1 is NaN");
    expect(() => sample([1, Number.POSITIVE_INFINITY])).toThrow("the highest logit is Infinity");
    expect(() => sample([1, 2], { banned: [0, 1] })).toThrow("the highest logit is -Infinity");
  });
});

describe("penalties", () => {
  test("repetition divides positive logits and multiplies negative ones, of prompt and output", () => {
    expect(sample([3, 2], { repetitionPenalty: 2, prompt: [0] }).tokenId).toBe(1);
    expect(sample([3, 1], { repetitionPenalty: 2, prompt: [0] }).tokenId).toBe(0);
    expect(sample([-1, -1.5], { repetitionPenalty: 2, generated: [0, 0] }).tokenId).toBe(1);
    expect(sample([-1, -2.5], { repetitionPenalty: 2, generated: [0, 0] }).tokenId).toBe(0);
  });

  test("frequency counts each generated token, presence counts it once, the prompt counts for neither", () => {
    expect(sample([3, 2], { frequencyPenalty: 0.6, generated: [0] }).tokenId).toBe(0);
    expect(sample([3, 2], { frequencyPenalty: 0.6, generated: [0, 0] }).tokenId).toBe(1);
    expect(sample([3, 2], { presencePenalty: 0.6, generated: [0, 0] }).tokenId).toBe(0);
    expect(sample([3, 2], { presencePenalty: 1.1, generated: [0] }).tokenId).toBe(1);
    expect(sample([3, 2], { presencePenalty: 1.1, frequencyPenalty: 1.1, prompt: [0] }).tokenId).toBe(0);
  });

  test("bias comes after the penalties, a ban after all", () => {
    expect(sample([3, 2], { logitBias: [[1, 1.5]] }).tokenId).toBe(1);
    expect(sample([3, 2], { logitBias: [[1, 100]], banned: [1] }).tokenId).toBe(0);
    expect(sample([4, 2], { repetitionPenalty: 2, prompt: [0], logitBias: [[0, 1]] }).tokenId).toBe(0);
  });

  test("the caller's logits are left as they are", () => {
    const logits = Float32Array.of(1, 2);
    const params = { ...defaultParams.sampling, logitBias: [[0, 5]] as const };
    new Sampler(2).sample(logits, { params, history: undefined, bannedTokenIds: [], index: 0 });
    expect(logits).toEqual(Float32Array.of(1, 2));
  });
});

describe("drawing", () => {
  const logits = [0.5, 0.25, 0.15, 0.1].map(Math.log);

  test("temperature 1 draws by probability, a higher one more evenly", () => {
    const drawn = shares(logits, { temperature: 1, seed: 5 });
    for (const [i, share] of [0.5, 0.25, 0.15, 0.1].entries()) expect(Math.abs(drawn[i] - share)).toBeLessThan(0.03);
    const flat = shares(logits, { temperature: 4, seed: 5 });
    expect(flat[3]).toBeGreaterThan(0.15);
    expect(flat[0]).toBeLessThan(0.4);
  });

  test("the same seed and index draw the same token", () => {
    const draw = (seed: number, index: number): number => sample(logits, { temperature: 1, seed, index }).tokenId;
    const once = Array.from({ length: 50 }, (_, index) => draw(1, index));
    expect(Array.from({ length: 50 }, (_, index) => draw(1, index))).toEqual(once);
    expect(Array.from({ length: 50 }, (_, index) => draw(2, index))).not.toEqual(once);
  });

  test("the filters keep what they say, with the shares of what is left", () => {
    const kept = (setting: Setting): number[] => {
      const drawn = shares(logits, { temperature: 1, ...setting }, 2_000);
      return drawn.flatMap((share, tokenId) => (share > 0 ? [tokenId] : []));
    };
    expect(kept({ topK: 2 })).toEqual([0, 1]);
    expect(kept({ topP: 0.7 })).toEqual([0, 1]);
    expect(kept({ topP: 0.76 })).toEqual([0, 1, 2]);
    expect(kept({ topP: 0 })).toEqual([0]);
    expect(kept({ minP: 0.29 })).toEqual([0, 1, 2]);
    expect(kept({ minP: 1 })).toEqual([0]);
    // Of the two that top-k leaves, the first has two thirds, which is enough for top-p.
    expect(kept({ topK: 2, topP: 0.6 })).toEqual([0]);
    const [first] = shares(logits, { temperature: 1, topK: 2 });
    expect(Math.abs(first - 2 / 3)).toBeLessThan(0.03);
  });

  test("agrees with sorting the whole vocabulary, whatever the filters", () => {
    const setting = fc.record({
      temperature: fc.constantFrom(0.2, 1, 3),
      topK: fc.constantFrom(0, 1, 3, 50, 1_000),
      topP: fc.constantFrom(0, 0.3, 0.9, 0.999_999, 1),
      minP: fc.constantFrom(0, 1e-7, 0.01, 0.5, 1),
      seed: fc.integer(),
    });
    const row = fc.array(fc.integer({ min: -400, max: 400 }), { minLength: 1, maxLength: 120 });
    const property = fc.property(row, setting, (values, params) => {
      const spread = values.map((value) => Math.fround(value / 16));
      expect(sample(spread, params).tokenId).toBe(drawBySorting(spread, { ...defaultParams.sampling, ...params }));
    });
    fc.assert(property, { numRuns: 2_000 });
  });
});

/** The definition, over the sorted vocabulary; weights in float32 as the sampler keeps them. */
function drawBySorting(logits: readonly number[], params: SamplingParams): number {
  const max = Math.max(...logits);
  const weights = logits.map((logit) => Math.fround(Math.exp((logit - max) * (1 / params.temperature))));
  const all = logits.map((_, tokenId) => tokenId);
  const filtered = params.topK > 0 || params.topP < 1 || params.minP > 0;
  let kept = filtered ? all.toSorted((a, b) => logits[b] - logits[a] || a - b) : all;
  if (params.topK > 0) kept = kept.slice(0, params.topK);
  if (params.topP < 1) {
    const target = params.topP * kept.reduce((sum, tokenId) => sum + weights[tokenId], 0);
    let mass = 0;
    kept = kept.filter((tokenId) => {
      const before = mass;
      mass += weights[tokenId];
      return before < target || before === 0;
    });
  }
  if (filtered) kept = kept.filter((tokenId) => weights[tokenId] >= params.minP);
  const random = uniform(params.seed, 0);
  let left = random * kept.reduce((sum, tokenId) => sum + weights[tokenId], 0);
  for (const tokenId of kept) {
    left -= weights[tokenId];
    if (left < 0) return tokenId;
  }
  return kept[kept.length - 1];
}
