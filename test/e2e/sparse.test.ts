/** Sparse decoding in a whole server: the choices of the CPU's kernels, told in the answer. */
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

setDefaultTimeout(120_000);

interface Answer {
  readonly choices: readonly { readonly message: { readonly content: string } }[];
  readonly spangate: { readonly sparse?: Readonly<Record<string, number | string | null>> };
}

const text = Array.from({ length: 60 }, (_, i) => `The extension of guest ${i} is ${3000 + 7 * i}.`).join(" ");
const context: { server?: TestServer; tenant?: TestTenant } = {};

beforeAll(async () => {
  const sparse = { SPANGATE_SPARSE: "ahead", SPANGATE_SPARSE_FROM: "200", SPANGATE_SPARSE_TOKENS: "64" };
  const server = await startTestServer({
    model: "one-layer",
    // The invariants are looked at in each step, over all blocks that there are.
    env: { ...sparse, SPANGATE_DEBUG: "1", SPANGATE_THREADS: "1", SPANGATE_KV_BYTES: "16MiB" },
  });
  Object.assign(context, { server, tenant: await server.tenant("one") });
});
afterAll(async () => {
  await context.server?.[Symbol.asyncDispose]();
});

async function ask(sparse: unknown, more: object = {}): Promise<Answer> {
  const { server, tenant } = context;
  if (server === undefined || tenant === undefined) throw new Error("there is no server");
  const messages = [{ role: "user", content: "What is the extension of guest 7?" }];
  const documents = [{ text }, { text: "The porter is called Ann." }];
  const body = { model: server.model, messages, documents, max_tokens: 72, min_tokens: 72, temperature: 0, ...more };
  const asked = sparse === undefined ? body : { ...body, spangate: { sparse } };
  return await tenant.client.json<Answer>("POST", "/v1/chat/completions", asked);
}

describe("an answer over a long prompt", () => {
  test("chooses in either mode, and says how well", async () => {
    for (const [wish, mode] of [
      [undefined, "ahead"],
      [true, "ahead"],
      [{ mode: "now" }, "now"],
    ] as const) {
      const { sparse } = (await ask(wish)).spangate;
      expect(sparse).toMatchObject({ mode, selected_tokens: 64 });
      const { steps = 0, dense_steps = 0, refreshes = 0, changed = 0, rectified_tokens: rectified = 0 } = sparse ?? {};
      expect(Number(steps) + Number(dense_steps)).toBe(72);
      expect(Number(steps)).toBeGreaterThan(60);
      expect(Number(refreshes)).toBeGreaterThan(0);
      expect(Number(changed)).toBeGreaterThan(64);
      expect(Number(rectified)).toBeWithin(60, 70);
      expect(Number(sparse?.mass)).toBeWithin(0.01, 1.001);
      expect(Number(sparse?.overlap)).toBeWithin(0.01, 1.001);
    }
  });

  test("keeps to a schema", async () => {
    const schema = { type: "object", properties: { extension: { type: "integer" } }, required: ["extension"] };
    const format = { type: "json_schema", json_schema: { name: "extension", schema, strict: true } };
    const { choices, spangate } = await ask(true, { response_format: format, min_tokens: 0 });
    for (const { message } of choices) expect(() => JSON.parse(message.content)).not.toThrow();
    expect(Number(spangate.sparse?.steps)).toBeGreaterThan(0);
  });
});

test("a dense answer says nothing, and is the same before and after sparse ones", async () => {
  const before = await ask(false);
  await ask(true);
  const after = await ask(false);
  expect(after.choices[0]?.message.content).toBe(before.choices[0]?.message.content as string);
  expect(before.spangate).not.toHaveProperty("sparse");
});

test("an answer whose client leaves gives its seat back", async () => {
  const { server, tenant } = context;
  if (server === undefined || tenant === undefined) throw new Error("there is no server");
  for (let round = 0; round < 2; round++) {
    const leaving = new AbortController();
    const body = { model: server.model, messages: [{ role: "user", content: text }], max_tokens: 100, stream: true };
    const response = await fetch(`${server.url}/v1/chat/completions`, {
      method: "POST",
      headers: { authorization: `Bearer ${tenant.apiKey}`, "content-type": "application/json" },
      body: JSON.stringify({ ...body, min_tokens: 100 }),
      signal: leaving.signal,
    });
    const reader = response.body?.getReader();
    for (let read = 0; read < 20; read++) await reader?.read();
    leaving.abort();
  }
  expect((await ask(true)).spangate.sparse).toMatchObject({ mode: "ahead" });
});
