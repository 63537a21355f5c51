/** What rewriting and lowering a span query cost before anything runs: 32 fragments of 512 tokens each, tokenized before. */
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import type { LowerDocument } from "../../gateway/lower/plan.ts";
import { Lowerer } from "../../gateway/lower/plan.ts";
import type { QueryContext } from "../../gateway/lower/query-context.ts";
import { QueryLowerer } from "../../gateway/lower/query-lowerer.ts";
import type { Generate, Query } from "../../gateway/query/ir.ts";
import { ChatTemplate } from "../../gateway/text/chat-template.ts";
import { readModelText } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { rewrite } from "../support/span-queries.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { fillerWords, SpanTexts } from "./support/prompts.ts";
import { figure, median, quantile } from "./support/stats.ts";

const fragmentCount = 32;
const fragmentTokens = 512;
const repeatCount = 500;
const warmUpCount = 100;
const cacheBytes = 16_000_000;
const contextTokens = 32_768;

const salt = "dGVuYW50" as CacheSalt;
const corpusSalt = "Y29ycHVz" as CacheSalt;

/** The query of the n-th caller: the same fragments, another question. */
function queryOf(spans: readonly Query[], n: number): Generate {
  const input: Query = {
    kind: "cross",
    children: [
      { kind: "message", role: "system", text: "You answer from the documents." },
      { kind: "plus", children: spans },
      { kind: "message", role: "user", text: fillerWords(n + 1_000, 24).join(" ") },
    ],
  };
  return { kind: "generate", options: { model: "", maxTokens: 64, temperature: 0 }, input };
}

interface Timing {
  readonly name: string;
  readonly rewriteMs: number[];
  readonly lowerMs: number[];
  readonly totalMs: number[];
  promptTokens: number;
}

function measure(name: string, spans: readonly Query[], lowerer: QueryLowerer, context: QueryContext): Timing {
  const timing: Timing = { name, rewriteMs: [], lowerMs: [], totalMs: [], promptTokens: 0 };
  for (let n = -warmUpCount; n < repeatCount; n++) {
    const query = queryOf(spans, n);
    const startMs = performance.now();
    const { query: rewritten } = rewrite(query);
    const rewrittenMs = performance.now();
    if (rewritten.kind !== "generate") throw new Error("a generate is rewritten to a generate");
    const { promptTokens } = lowerer.lower(rewritten, context);
    const endMs = performance.now();
    if (n < 0) continue;
    timing.rewriteMs.push(rewrittenMs - startMs);
    timing.lowerMs.push(endMs - rewrittenMs);
    timing.totalMs.push(endMs - startMs);
    timing.promptTokens = promptTokens;
  }
  return timing;
}

async function run({ say }: BenchContext): Promise<BenchReport> {
  const text = readModelText(demoModelFolder);
  const template = new ChatTemplate(text);
  const tokenizer = new TextTokenizer(text, { cacheBytes });
  const card = { digest: "0".repeat(64), blockTokens: 16, contextTokens };
  const options = { template, tokenizer, card, cacheBytes };
  const lowerer = new QueryLowerer({ ...options, spans: new Lowerer(options) });
  const texts = new SpanTexts();
  const documents = Array.from({ length: fragmentCount }, (_, index) => texts.textOf(fragmentTokens, index + 1));
  const fragments = new Map(
    documents.map((document, index): [string, LowerDocument] => {
      const id = `fragment-${index}`;
      return [id, { id, text: document, salt: corpusSalt }];
    }),
  );
  const context: QueryContext = { salt, fragments, outputs: () => [] };
  const cases: readonly (readonly [string, readonly Query[]])[] = [
    ["fragments of a corpus", [...fragments.keys()].map((id) => ({ kind: "fragment", id }))],
    ["messages in the query", documents.map((document) => ({ kind: "message", role: "user", text: document }))],
  ];
  const timings = cases.map(([name, spans]) => {
    say(name);
    return measure(name, spans, lowerer, context);
  });
  return {
    model: "demo tokenizer",
    header: ["32 spans as", "prompt tokens", "rewrite p50 ms", "lower p50 ms", "both p50 ms", "p99"],
    rows: timings.map(({ name, promptTokens, rewriteMs, lowerMs, totalMs }) => [
      name,
      String(promptTokens),
      ...[median(rewriteMs), median(lowerMs), median(totalMs), quantile(totalMs, 0.99)].map(figure),
    ]),
    notes: [`${repeatCount} queries over the same spans, each with a question of its own, after ${warmUpCount}.`],
    bars: timings.map(({ name, totalMs }) => atMost(`rewrite and lower p50 ms, ${name}`, median(totalMs), 2)),
  };
}

export const loweringBench: Bench = {
  name: "lowering",
  summary: "Rewriting and lowering a span query of 32 fragments and 16k tokens, tokenized before",
  run,
};
