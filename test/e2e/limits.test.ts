import { afterAll, beforeAll, expect, test } from "bun:test";
import OpenAI from "openai";
import { startTestServer, type TestServer } from "../support/server.ts";

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ model: "one-layer" });
}, 60_000);
afterAll(() => server?.[Symbol.asyncDispose]());

test("a tenant over its limit is refused at once, and the client's own retries get through", async () => {
  const tenant = await server.tenant("limited");
  await server.admin.json("PUT", `/admin/v1/tenants/${tenant.id}/limits`, { requests_per_minute: 60, concurrency: 2 });
  const client = (maxRetries: number) => new OpenAI({ baseURL: `${server.url}/v1`, apiKey: tenant.apiKey, maxRetries });
  const ask = (one: OpenAI) =>
    one.chat.completions
      .create({ model: server.model, messages: [{ role: "user", content: "Where is Tom?" }], max_tokens: 1 })
      .withResponse();

  const { response } = await ask(client(0));
  expect(response.headers.get("x-ratelimit-limit-requests")).toBe("60");
  expect(response.headers.get("x-ratelimit-limit-tokens")).toBeNull();

  // Two streams that nobody ends take both places.
  const streams = await Promise.all(
    [1, 2].map(() =>
      client(0).chat.completions.create({
        model: server.model,
        messages: [{ role: "user", content: "Count." }],
        max_tokens: 4_000,
        stream: true,
        ...{ ignore_eos: true },
      }),
    ),
  );
  const refused = await ask(client(0)).then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(refused).toBeInstanceOf(OpenAI.RateLimitError);
  expect(refused).toMatchObject({ status: 429, code: "concurrency_limited" });
  for (const stream of streams) stream.controller.abort();
  expect((await ask(client(5))).response.status).toBe(200);
}, 60_000);
