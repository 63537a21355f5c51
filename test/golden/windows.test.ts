/**
 * A window at its edges: fragments of W - 1, W and W + 1 tokens in several orders, against the slow twin; and the same
 * bits whether KV was computed for this prompt or found.
 */
import { afterAll, expect, test } from "bun:test";
import { join } from "node:path";
import { firstDifferentBits } from "../native/compare.ts";
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";
import { openOnCpu } from "./cpu-model.ts";
import type { SpanPrompt } from "./golden-model.ts";

const folder = join(import.meta.dir, "mistral-window");
const window = 24;
const model = await openOnCpu(folder, "float32", { dense: "native" });
const cold = await openOnCpu(folder, "float32", { dense: "native" });
const slow = await openOnCpu(folder, "float32", { dense: "native", isa: "reference" });
afterAll(() => Promise.all([model, cold, slow].map((each) => each.dispose())));

const random = new Random(testSeed());
const draw = (count: number) => Array.from({ length: count }, () => random.integer(3, 255));
const [system, near, exact, far] = [5, window - 1, window, window + 1].map(draw);
const spans = (fragments: number[][], userTokens: number): SpanPrompt => ({
  kind: "span",
  system,
  fragments,
  user: draw(userTokens),
});
const prompts: [string, SpanPrompt][] = [
  ["the last fragment ends where the window begins", spans([exact, near, far], window)],
  ["the window reaches one token into the last fragment", spans([far, exact, near], window - 1)],
  ["the window begins a token behind the fragments", spans([near, far, exact], window + 1)],
  ["fragments shorter than the window together", spans([near, exact], 2)],
];

test.each(prompts)("%s", async (_, prompt) => {
  const [answer, oracle] = [await model.answer(prompt, 4), await slow.answer(prompt, 4)];
  expect(answer.tokens).toEqual(oracle.tokens);
  const differences = answer.logits?.map((logit, i) => Math.abs(logit - (oracle.logits?.[i] ?? Number.NaN))) ?? [];
  expect(Math.max(...differences)).toBeLessThan(1e-3);
  const again = await model.answer(prompt, 4);
  expect(again.cachedTokens).toBeGreaterThanOrEqual(prompt.fragments.flat().length);
  const fresh = await cold.answer(prompt, 4);
  for (const other of [again, fresh]) {
    expect(other.tokens).toEqual(answer.tokens);
    const [a, b] = [other.logits ?? new Float32Array(0), answer.logits ?? new Float32Array(1)];
    expect(firstDifferentBits(a, b)).toBe(-1);
  }
});
