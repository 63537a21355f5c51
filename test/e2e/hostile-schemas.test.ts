/** Schemas that are made to cost, against a whole server: each has its answer, and memory does not stay with it. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import type OpenAI from "openai";
import { errorOf, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

setDefaultTimeout(60_000);

let server: TestServer;
let client: OpenAI;
beforeAll(async () => {
  server = await startTestServer({ model: "one-layer" });
  client = openaiClient(server.url, (await server.tenant("hostile")).apiKey);
});
afterAll(async () => await server[Symbol.asyncDispose]());

const letters = (count: number): string =>
  Array.from({ length: count }, (_, i) => String.fromCodePoint(0x4e00 + i)).join("");
const ask = (schema: Record<string, unknown>, stream = false) =>
  client.chat.completions.create({
    model: server.model,
    messages: [{ role: "user", content: "Who is Jon Vale?" }],
    max_tokens: 5,
    response_format: { type: "json_schema", json_schema: { name: "x", schema } },
    ...(stream ? { stream } : {}),
  });
const residentMib = (): number =>
  Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${server.process.pid}/status`, "utf8"))?.[1]) / 1_024;

test("a set of 20,000 characters, a thousand times: an answer, and the server is no larger for it", async () => {
  await ask({ type: "string", format: "email" });
  const before = residentMib();
  const { choices } = (await ask({ type: "string", pattern: `^[${letters(20_000)}]{1000}$` })) as OpenAI.ChatCompletion;
  expect(choices[0]?.message.content).toMatch(/^"/);
  await Bun.sleep(1_000);
  expect(residentMib() - before).toBeLessThan(128);
});

/** Three hundred tuples, each of which begins with one of three hundred. */
const ambiguous = {
  anyOf: Array.from({ length: 300 }, (_, i) => {
    return { type: "array", prefixItems: [{ $ref: "#/$defs/first" }, { const: i }], minItems: 2, maxItems: 2 };
  }),
  $defs: {
    first: {
      anyOf: Array.from({ length: 300 }, (_, i) => {
        return { type: "array", prefixItems: [{ const: i }], minItems: 1, maxItems: 1 };
      }),
    },
  },
};

test.each([false, true])(
  "a schema that is too ambiguous to follow is refused by its path; streamed: %p",
  async (stream) => {
    const { status, code, param } = await errorOf(ask(ambiguous, stream));
    expect([status, code, param]).toEqual([400, "schema_too_ambiguous", "response_format.json_schema.schema"]);
  },
);
