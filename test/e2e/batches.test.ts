import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type OpenAI from "openai";
import { toFile } from "openai";
import { openaiClient } from "../support/openai.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// Servers start, are killed and start again.
setDefaultTimeout(60_000);

const dataDir = mkdtempSync(join(tmpdir(), "spangate-batches-"));
let server: TestServer;

beforeAll(async () => {
  server = await startTestServer({ model: "one-layer", dataDir });
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  rmSync(dataDir, { recursive: true, force: true });
});

const endpoint = "/v1/chat/completions";
async function createBatch(client: OpenAI, count: number, maxTokens: number): Promise<OpenAI.Batch> {
  const lines = Array.from({ length: count }, (_, i) => {
    const messages = [{ role: "user", content: `Who is number ${i}?` }];
    const body = { model: server.model, messages, max_tokens: maxTokens, ignore_eos: true };
    return JSON.stringify({ custom_id: `line-${i}`, method: "POST", url: endpoint, body });
  });
  const file = await toFile(Buffer.from(lines.join("\n")), "lines.jsonl");
  const { id } = await client.files.create({ file, purpose: "batch" });
  return await client.batches.create({ input_file_id: id, endpoint, completion_window: "24h" });
}
async function waitFor(client: OpenAI, { id }: OpenAI.Batch, isThere: (batch: OpenAI.Batch) => boolean) {
  for (;;) {
    const batch = await client.batches.retrieve(id);
    if (isThere(batch)) return batch;
    await Bun.sleep(20);
  }
}
const completed = (batch: OpenAI.Batch): number => batch.request_counts?.completed ?? 0;

test("a server that is killed twice while it runs a batch: each line has one result in the end", async () => {
  const { apiKey } = await server.tenant("killed");
  let client = openaiClient(server.url, apiKey);
  const lines = 50;
  const batch = await createBatch(client, lines, 120);
  for (const enough of [5, 20]) {
    const before = await waitFor(client, batch, (now) => completed(now) >= enough);
    expect(before.status).toBe("in_progress");
    server.process.kill("SIGKILL");
    await server.process.exited;
    server = await startTestServer({ model: "one-layer", dataDir });
    client = openaiClient(server.url, apiKey);
    // What was counted is kept.
    expect(completed(await client.batches.retrieve(batch.id))).toBeGreaterThanOrEqual(completed(before));
  }
  const ended = await waitFor(client, batch, ({ status }) => status === "completed");
  expect(ended.request_counts).toEqual({ total: lines, completed: lines, failed: 0 });
  const text = await (await client.files.content(ended.output_file_id ?? "")).text();
  const ids = text
    .trimEnd()
    .split("\n")
    .map((line) => (JSON.parse(line) as { custom_id: string }).custom_id);
  expect(ids).toEqual(Array.from({ length: lines }, (_, i) => `line-${i}`));
});

test("a batch keeps to its tenant's limits, and lets its tenant's other requests by", async () => {
  const tenant = await server.tenant("limited");
  const client = openaiClient(server.url, tenant.apiKey);
  await server.admin.json("PUT", `/admin/v1/tenants/${tenant.id}/limits`, { concurrency: 2 });
  const batch = await createBatch(client, 12, 20);
  const ended = await waitFor(client, batch, ({ status }) => status === "completed");
  expect(ended.request_counts).toEqual({ total: 12, completed: 12, failed: 0 });
  await server.admin.json("PUT", `/admin/v1/tenants/${tenant.id}/limits`, {});
  const long = await createBatch(client, 60, 600);
  await waitFor(client, long, (now) => completed(now) > 0);
  const messages = [{ role: "user" as const, content: "Who is it?" }];
  const answer = await client.chat.completions.create({ model: server.model, messages, max_tokens: 4 });
  expect(answer.choices[0]?.message.content).toBeString();
  expect((await client.batches.retrieve(long.id)).status).toBe("in_progress");
  await client.batches.cancel(long.id);
  await waitFor(client, long, ({ status }) => status === "cancelled");
});

test("result files end by themselves where the batch says so, and stay where it does not", async () => {
  const client = openaiClient(server.url, (await server.tenant("ending")).apiKey);
  const body = { model: server.model, messages: [{ role: "user", content: "Who?" }], max_tokens: 2 };
  const line = (custom_id: string, fields: object) =>
    JSON.stringify({ custom_id, method: "POST", url: endpoint, body: { ...body, ...fields } });
  const bytes = Buffer.from(`${line("good", {})}\n${line("bad", { temperature: 9 })}`);
  const { id } = await client.files.create({ file: await toFile(bytes, "lines.jsonl"), purpose: "batch" });
  const made = { input_file_id: id, endpoint, completion_window: "24h" } as const;
  const seconds = 7_200;
  for (const lasting of [{ output_expires_after: { anchor: "created_at" as const, seconds } }, {}]) {
    const { id: batchId } = await client.batches.create({ ...made, ...lasting });
    const ended = await waitFor(client, { id: batchId } as OpenAI.Batch, ({ status }) => status === "completed");
    expect(ended.request_counts).toEqual({ total: 2, completed: 1, failed: 1 });
    for (const fileId of [ended.output_file_id, ended.error_file_id]) {
      const { created_at, expires_at } = await client.files.retrieve(fileId ?? "");
      expect(expires_at).toBe("output_expires_after" in lasting ? created_at + seconds : undefined);
    }
  }
  const wrong = [
    [{ anchor: "created_at", seconds: 3_599 }, "output_expires_after.seconds"],
    [{ anchor: "created_at", seconds: 2_592_001 }, "output_expires_after.seconds"],
    [{ anchor: "last_active_at", seconds }, "output_expires_after.anchor"],
    [{ anchor: "created_at" }, "output_expires_after.seconds"],
  ] as const;
  for (const [output_expires_after, param] of wrong) {
    const sent = client.batches.create({ ...made, output_expires_after } as never);
    expect(await sent.catch((error: unknown) => error)).toMatchObject({ status: 400, param });
  }
});
