/** What the gateway lowers, the real engine takes and reuses: the two sides of worker/contract against each other. */
import { describe, expect, test } from "bun:test";
import { Lowerer } from "../../gateway/lower/plan.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { planFault } from "../../worker/contract/validate.ts";
import { greedy } from "../dispatch/rig.ts";
import { chatRig, post } from "../http/chat-rig.ts";
import { fc } from "../support/fast-check.ts";
import { models, textSide } from "../text/models.ts";
import { engineCard, engineLink } from "./engine-link.ts";

interface Answer {
  choices: { message: { content: string } }[];
  usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number; cache_write_tokens: number } };
  spangate: { spans: { id: string; tokens: number; source: string }[] };
}

const documents = [
  "Anna lives in Oslo.",
  "The manager of Anna is Tom, who likes the sea and the mountains.",
  "Tom is 47.",
].map((text, index) => ({ id: `d${index}`, text }));
const body = {
  model: "fake-model",
  messages: [
    { role: "system", content: "You answer from the documents." },
    { role: "user", content: "Who is the manager of Anna?" },
  ],
  max_tokens: 12,
  temperature: 0,
};

async function rigAndAsk() {
  const rig = chatRig({ openLink: engineLink });
  await rig.supervisor.firstReady();
  const ask = async (fields: object, key?: string): Promise<Answer> => {
    const response = await post(rig.app, { ...body, ...fields }, key === undefined ? {} : { key });
    expect(response.status).toBe(200);
    return (await response.json()) as Answer;
  };
  return { rig, ask };
}
const sources = (answer: Answer): string[] => answer.spangate.spans.map((span) => span.source);

describe("chat over the real engine", () => {
  test("documents are computed once and found again in any order; the answer is that of a cold start", async () => {
    const { ask } = await rigAndAsk();
    const first = await ask({ documents });
    expect(sources(first)).toEqual(["computed", "computed", "computed"]);
    const reversed = [...documents].reverse();
    const warm = await ask({ documents: reversed });
    expect(sources(warm)).toEqual(["device", "device", "device"]);
    const spanTokens = warm.spangate.spans.reduce((sum, span) => sum + span.tokens, 0);
    expect(warm.usage.prompt_tokens_details.cached_tokens).toBeGreaterThanOrEqual(spanTokens);
    const cold = await ask({ documents: reversed, spangate: { reuse: false } });
    expect(cold.usage.prompt_tokens_details.cached_tokens).toBe(0);
    expect(warm.choices).toEqual(cold.choices);
    expect(warm.choices[0]?.message.content).not.toBe(first.choices[0]?.message.content ?? "");
  });

  test("attention over all is another computation of the same prompt", async () => {
    const { ask } = await rigAndAsk();
    const span = await ask({ documents });
    const full = await ask({ documents, spangate: { attention: "full" } });
    expect(full.usage.prompt_tokens).toBe(span.usage.prompt_tokens);
    expect(full.spangate.spans).toEqual([]);
    expect(full.choices).not.toEqual(span.choices);
  });

  test("another tenant computes for itself, and gets the same answer", async () => {
    const { ask } = await rigAndAsk();
    const mine = await ask({ documents });
    const theirs = await ask({ documents }, "key-b");
    expect(theirs.usage.prompt_tokens_details.cached_tokens).toBe(0);
    expect(theirs.choices).toEqual(mine.choices);
  });

  test("a conversation that goes on finds what was said", async () => {
    const { ask } = await rigAndAsk();
    const long = "the thing in the thing ".repeat(20);
    const first = [...body.messages, { role: "assistant", content: long }, { role: "user", content: "And then?" }];
    await ask({ messages: first });
    const more = await ask({
      messages: [...first, { role: "assistant", content: "x" }, { role: "user", content: "And?" }],
    });
    expect(more.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(100);
  });

  test("routing knows what the worker stored, and an eviction reaches it", async () => {
    const { rig, ask } = await rigAndAsk();
    await ask({ documents });
    const stored = rig.residency.blockCount("worker-0");
    expect(stored).toBeGreaterThanOrEqual(3);
    const lowerer = new Lowerer({ ...textSide(models.chatml), card: engineCard, cacheBytes: 1_000 });
    const salt = btoa("tenant_a/") as CacheSalt;
    const spans = documents.map((document) => lowerer.lowerSpan({ ...document, salt }));
    for (const span of spans)
      expect(rig.residency.holders(span.blockKeys.at(-1) ?? span.rootKey)).toEqual(["worker-0"]);
    rig.dispatcher.evictions.evict(spans[1]?.blockKeys ?? [], lowerer.spanRoot(salt));
    expect(sources(await ask({ documents }))).toEqual(["device", "computed", "device"]);
  });
});

test("any messages and documents lower to a plan that the engine takes", () => {
  const text = fc.string({
    unit: fc.constantFrom("the ", "\n", "é", "<|im_end|>", "7", " "),
    minLength: 1,
    maxLength: 40,
  });
  const salt = "c2FsdA==" as CacheSalt;
  for (const model of [models.chatml, models.llama3, models.strict]) {
    const lowerer = new Lowerer({ ...textSide(model), card: engineCard, cacheBytes: 10_000 });
    const property = fc.property(
      fc.array(text, { maxLength: 6 }),
      fc.array(text, { minLength: 1, maxLength: 3 }),
      (texts, turns) => {
        const messages = turns.map((content, index) => ({ role: index % 2 === 0 ? "user" : "assistant", content }));
        const all = texts.map((content, index) => ({ id: String(index), text: content, salt }));
        const plan = lowerer.lower({ messages, documents: all, salt, attention: "span" });
        const submit = { type: "submit" as const, requestId: "r", plan, params: greedy(4), reuse: true };
        expect(planFault(submit, engineCard)).toBeUndefined();
        const prepare = { ...submit, plan: lowerer.preparePlan(all), params: greedy(0) };
        if (all.length > 0) expect(planFault(prepare, engineCard)).toBeUndefined();
      },
    );
    fc.assert(property, { numRuns: 60 });
  }
});
