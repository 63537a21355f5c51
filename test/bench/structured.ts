/**
 * What a schema costs an answer: to compile it, until the first token when it is new and when it is known, and for each
 * token after it; the same question without a schema beside it.
 */
import { askChat, type ChatRequest } from "../../gateway/cli/support/operations.ts";
import { largestGrammar } from "../../gateway/grammar/budget.ts";
import { answerGrammar } from "../../gateway/tools/answer-grammar.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { fillerWords } from "./support/prompts.ts";
import { figure, median, quantile } from "./support/stats.ts";

const requestCount = 40;
const warmUpCount = 8;
const maxTokens = 64;

type Schema = Readonly<Record<string, unknown>>;
const closed = (properties: Schema, required = Object.keys(properties)): Schema => {
  return { type: "object", properties, required, additionalProperties: false };
};
const text = (more: Schema = {}): Schema => ({ type: "string", ...more });
const line = closed({
  sku: text({ pattern: "^[A-Z]{3}-\\d{4}$" }),
  count: { type: "integer", minimum: 1, maximum: 9_999 },
  price: { type: "number", minimum: 0 },
});
const schemas: Readonly<Record<string, Schema>> = {
  person: closed({
    name: text({ maxLength: 60 }),
    age: { type: "integer" },
    kinds: { type: "array", items: { enum: ["a", "b"] } },
  }),
  contact: closed({ mail: text({ format: "email" }), at: text({ format: "date-time" }), id: text({ format: "uuid" }) }),
  invoice: closed({
    id: text({ pattern: "^INV-\\d{6}$" }),
    lines: { type: "array", items: line },
    total: { type: "number" },
  }),
  "300 properties": closed(
    Object.fromEntries(
      Array.from({ length: 300 }, (_, i) => [`field_${i}`, { type: ["string", "null"], maxLength: 80 }]),
    ),
  ),
};

interface Figures {
  readonly name: string;
  readonly compileMs: number;
  readonly newTtftMs: readonly number[];
  readonly knownTtftMs: readonly number[];
  readonly tokenMs: readonly number[];
}

function compileMs(schema: Schema): number {
  const times = Array.from({ length: warmUpCount + requestCount }, () => {
    const startMs = performance.now();
    answerGrammar({ format: { kind: "schema", schema, param: "schema" } }, largestGrammar);
    return performance.now() - startMs;
  });
  return median(times.slice(warmUpCount));
}

async function measure(server: TestServer, name: string, schema: Schema | undefined): Promise<Figures> {
  const { client } = await server.tenant(name);
  const ask = async (index: number, named: Schema | undefined) => {
    const format = { type: "json_schema", json_schema: { name: "answer", schema: named } };
    const request = {
      model: server.model,
      messages: [{ role: "user", content: fillerWords(index + 10_000, 12).join(" ") }],
      temperature: 0,
      max_tokens: maxTokens,
      ...(named === undefined ? { min_tokens: maxTokens, ignore_eos: true } : { response_format: format }),
    };
    const { clientTtftMs, totalMs, usage } = await askChat(client, request as ChatRequest);
    return { clientTtftMs, tokenMs: (totalMs - clientTtftMs) / Math.max(1, usage.completion_tokens - 1) };
  };
  const figures = { newTtftMs: [] as number[], knownTtftMs: [] as number[], tokenMs: [] as number[] };
  for (let index = -warmUpCount; index < requestCount; index++) {
    // A title makes it another schema with the same grammar.
    const first = await ask(index, schema && { ...schema, title: `${index}` });
    const again = await ask(index + requestCount * 2, schema && { ...schema, title: `${index}` });
    if (index < 0) continue;
    figures.newTtftMs.push(first.clientTtftMs);
    figures.knownTtftMs.push(again.clientTtftMs);
    figures.tokenMs.push(again.tokenMs);
  }
  return { name, compileMs: schema === undefined ? 0 : compileMs(schema), ...figures };
}

async function run({ say }: BenchContext): Promise<BenchReport> {
  await using server = await startTestServer();
  const all: Figures[] = [];
  for (const [name, schema] of Object.entries({ "no schema": undefined, ...schemas })) {
    say(name);
    all.push(await measure(server, name, schema));
  }
  return {
    model: server.model,
    header: ["schema", "compile ms", "TTFT new p50 ms", "p90", "TTFT known p50 ms", "p90", "token p50 ms"],
    rows: all.map(({ name, compileMs, newTtftMs, knownTtftMs, tokenMs }) => [
      name,
      figure(compileMs),
      ...[newTtftMs, knownTtftMs].flatMap((times) => [figure(median(times)), figure(quantile(times, 0.9))]),
      figure(median(tokenMs)),
    ]),
    notes: [
      `${requestCount} requests of each, one after the other, after ${warmUpCount} for warm-up. Compile: in one thread, without a server.`,
    ],
    bars: all.slice(1).map(({ name, compileMs }) => atMost(`compile ms, ${name}`, compileMs, 28)),
  };
}

export const structuredBench: Bench = {
  name: "structured",
  summary: "Answers of a JSON schema: time to compile, to the first token, and per token, beside answers without one",
  run,
};
