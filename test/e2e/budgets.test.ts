/** What an operator does about keys and tokens from the shell, and what a tenant meets over every API when its tokens are used up. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runSpangate } from "../support/command-line.ts";
import { createStore, openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// A server starts in each of these tests.
setDefaultTimeout(120_000);

const dataDir = mkdtempSync(join(tmpdir(), "spangate-budgets-"));
let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ model: "one-layer", dataDir });
});
afterAll(async () => {
  await server?.[Symbol.asyncDispose]();
  rmSync(dataDir, { recursive: true, force: true });
});

const spangate = (...args: string[]) =>
  runSpangate(args, { env: { ...process.env, SPANGATE_URL: server.url, SPANGATE_API_KEY: server.adminKey } });

test("a key with an expiry: made, listed, and a wrong one is told how to say it", async () => {
  const { id } = await server.tenant("expiring");
  const wrong = await spangate("key", "create", "--tenant", id, "--expires", "30 days");
  expect(wrong).toMatchObject({ code: 2, output: "" });
  expect(wrong.errors).toContain("--expires 30 days: say hours, days or weeks, as in 12h, 30d or 52w");
  const made = await spangate("key", "create", "--tenant", id, "--expires", "30d", "--name", "guest");
  const day = new Date(Date.now() + 30 * 86_400_000).toISOString().slice(0, 10);
  expect(made.output).toStartWith("sk-");
  expect(made.errors).toContain(`It expires at ${day}`);
  const listed = await spangate("key", "list", "--tenant", id);
  expect(listed.output.split("\n").find((line) => line.includes("guest"))).toContain(`expires at ${day}`);
  // A key's second may be all it has.
  const keys = `/admin/v1/tenants/${id}/keys`;
  const askNew = async () => {
    const madeMs = Date.now();
    const fields = { scopes: ["inference"], expires_in_seconds: 1 };
    const { key } = await server.admin.json<{ key: string }>("POST", keys, fields);
    const ask = async () => await fetch(`${server.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
    const { status } = await ask();
    return { ask, status, isInTime: Date.now() - madeMs < 1_000 };
  };
  let short = await askNew();
  // On a machine that has other things to do a second may be over by then.
  while (!short.isInTime) short = await askNew();
  const { ask } = short;
  expect(short.status).toBe(200);
  await Bun.sleep(1_100);
  const refused = await ask();
  expect([refused.status, await refused.json()]).toMatchObject([401, { error: { code: "api_key_expired" } }]);
  expect((await spangate("key", "list", "--tenant", id)).output).toContain("expired at");
});

test("a budget: set from the shell, refused on every route that computes, kept over a restart", async () => {
  const tenant = await server.tenant("budgeted");
  const client = openaiClient(server.url, tenant.apiKey);
  const store = await createStore(client, "notes", { "a.txt": "The extension of Jon Vale is 3057." });
  const model = server.model;
  const messages = [{ role: "user" as const, content: "What is the extension of Jon Vale?" }];
  const set = await spangate("tenant", "budget", tenant.id, "--day", "40", "--month", "1000000");
  expect(set.output).toMatch(/^day: 0 of 40 tokens used; the next day begins at .*Z\nmonth: 0 of 1000000 tokens used/);
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 64, ...{ ignore_eos: true } });
  expect(answer.usage?.completion_tokens).toBe(64);

  const refusedEverywhere = async () => {
    const works: readonly (readonly [path: string, body: object])[] = [
      ["/v1/chat/completions", { model, messages, stream: true }],
      ["/v1/completions", { model, prompt: "Jon" }],
      ["/v1/responses", { model, input: "Jon" }],
      ["/v1/messages", { model, messages, max_tokens: 4 }],
      ["/v1/embeddings", { model, input: "Jon" }],
      ["/v1/rerank", { model, query: "Jon", documents: ["Vale"] }],
      ["/v1/query/execute", { g: { model, max_tokens: 2, input: { user: "Jon" } } }],
      [
        "/v1/query/prepare",
        { g: { model, max_tokens: 2, input: { plus: [{ fragment: { text: "Jon is new here." } }] } } },
      ],
    ];
    for (const [path, body] of works) {
      const askedS = Date.now() / 1000;
      const response = await fetch(`${server.url}${path}`, {
        method: "POST",
        headers: { authorization: `Bearer ${tenant.apiKey}`, "content-type": "application/json" },
        body: JSON.stringify(body),
      });
      const text = await response.text();
      expect([path, response.status, text]).toEqual([path, 429, expect.stringContaining("40 tokens of this day")]);
      const waitS = Number(response.headers.get("retry-after"));
      const tomorrow = Math.ceil(askedS / 86_400) * 86_400;
      // However long the answer took.
      expect(waitS).toBeWithin(tomorrow - Date.now() / 1000 - 2, tomorrow - askedS + 2);
    }
  };
  await refusedEverywhere();
  const job = await tenant.client.json<{ id: string }>("POST", `/admin/v1/vector_stores/${store}/prepare`);
  const read = async () =>
    await tenant.client.json<{ status: string; error: unknown }>("GET", `/admin/v1/jobs/${job.id}`);
  let now = await read();
  for (; now.status === "queued" || now.status === "running"; now = await read()) await Bun.sleep(20);
  expect(now).toMatchObject({ status: "failed", error: { code: "quota_exceeded" } });

  const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body: { model, messages } };
  const input = await client.files.create({ file: new File([JSON.stringify(line)], "in.jsonl"), purpose: "batch" });
  const fields = { endpoint: "/v1/chat/completions", completion_window: "24h", input_file_id: input.id } as const;
  let batch = await client.batches.create(fields);
  while (!["completed", "failed"].includes(batch.status)) {
    await Bun.sleep(20);
    batch = await client.batches.retrieve(batch.id);
  }
  const results = await (await client.files.content(batch.error_file_id ?? "")).text();
  expect(results).toContain('"quota_exceeded"');

  // What computes nothing goes on: the tenant can search by words, and read and remove what is its own.
  expect((await client.vectorStores.search(store, { query: "extension" })).data).toHaveLength(1);
  expect((await client.files.list()).data.length).toBeGreaterThan(0);

  const used = (await spangate("tenant", "budget", tenant.id)).output;
  const usage = await server.admin.json<{ data: { computed_tokens: number }[] }>(
    "GET",
    `/admin/v1/usage?tenant_id=${tenant.id}`,
  );
  expect(used).toStartWith(`day: ${usage.data[0]?.computed_tokens} of 40 tokens used`);
  await server[Symbol.asyncDispose]();
  server = await startTestServer({ model: "one-layer", dataDir });
  await refusedEverywhere();
  expect((await spangate("tenant", "budget", tenant.id)).output).toBe(used);

  const raised = await spangate("tenant", "budget", tenant.id, "--day", "none");
  expect(raised.output).toMatch(/^day: \d+ of any number of tokens used/);
  expect(raised.output).toContain("of 1000000 tokens used");
  const again = await fetch(`${server.url}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${tenant.apiKey}`, "content-type": "application/json" },
    body: JSON.stringify({ model, messages, max_tokens: 1 }),
  });
  expect(again.status).toBe(200);
});
