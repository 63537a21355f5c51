/** GET /admin/v1/kv-events of the whole server, over workers without a model. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HttpClient } from "../../../gateway/cli/support/client.ts";
import { readSse, type SseEvent } from "../../../gateway/client/sse.ts";
import { parseConfig } from "../../../gateway/config.ts";
import { kvEvents } from "../../../gateway/http/admin/cache-events.ts";
import { type RunningServer, startServer } from "../../../gateway/server.ts";

const fakeWorker = join(import.meta.dir, "..", "..", "dispatch", "fake-worker.ts");
const dataDir = mkdtempSync(join(tmpdir(), "spangate-kv-events-"));
const adminKey = "sk-admin-key-of-a-server-that-only-this-test-talks-to";
const context = { server: undefined as RunningServer | undefined, tenantKey: "" };
const url = (): string => context.server?.url ?? "";

beforeAll(async () => {
  const env = {
    ...process.env,
    SPANGATE_PORT: "0",
    SPANGATE_DATA: dataDir,
    SPANGATE_LOG: "silent",
    SPANGATE_ADMIN_KEY: adminKey,
  };
  context.server = await startServer(parseConfig(env), { env, workerArgv: [process.execPath, fakeWorker] });
  await context.server.ready;
  const admin = new HttpClient({ url: url(), apiKey: adminKey });
  const { id } = await admin.json<{ id: string }>("POST", "/admin/v1/tenants", { name: "acme" });
  const scopes = ["inference", "tenant:admin"];
  const { key } = await admin.json<{ key: string }>("POST", `/admin/v1/tenants/${id}/keys`, { scopes });
  context.tenantKey = key;
});
afterAll(async () => {
  await context.server?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

const follow = (headers: Readonly<Record<string, string>> = {}, key = adminKey) =>
  fetch(`${url()}/admin/v1/kv-events`, { headers: { ...headers, authorization: `Bearer ${key}` } });

/** Each event must be as the description of the API says. */
async function* opened(response: Response): AsyncGenerator<SseEvent> {
  for await (const event of readSse(response.body as ReadableStream<Uint8Array>)) {
    kvEvents[event.event as keyof typeof kvEvents].data.parse(JSON.parse(event.data));
    yield event;
  }
}

interface KvEventBody {
  readonly worker: string;
  readonly block_keys: readonly string[];
  readonly token_counts: readonly number[];
}

async function ask(content: string): Promise<void> {
  const body = JSON.stringify({ model: "fake-model", messages: [{ role: "user", content }], max_tokens: 1 });
  const headers = { authorization: `Bearer ${context.tenantKey}`, "content-type": "application/json" };
  expect((await fetch(`${url()}/v1/chat/completions`, { method: "POST", headers, body })).status).toBe(200);
}

test("what workers hold, then what they store; who comes back misses nothing and is told nothing twice", async () => {
  await ask("one ".repeat(40));
  const first = opened(await follow());
  const read = async (events: typeof first) => (await events.next()).value;
  expect(await read(first)).toMatchObject({ event: "cleared", data: '{"worker":null}' });
  const held = await read(first);
  expect([held?.event, held?.id]).toEqual(["stored", undefined]);
  const { worker, block_keys, token_counts }: KvEventBody = JSON.parse(held?.data ?? "");
  expect(worker).toBe("worker-0");
  expect(block_keys.length).toBeGreaterThan(2);
  expect(block_keys.every((key) => /^[0-9a-f]{32}$/.test(key))).toBe(true);
  expect(token_counts).toHaveLength(block_keys.length);
  const current = await read(first);
  expect(current).toMatchObject({ event: "current", data: "{}" });
  await first.return(undefined);

  await ask("two ".repeat(40));
  const again = opened(await follow({ "last-event-id": current?.id ?? "" }));
  const next = await read(again);
  expect(next?.event).toBe("stored");
  expect(JSON.parse(next?.data ?? "").block_keys).not.toContain(block_keys.at(-1));
  await again.return(undefined);
});

test("is the platform's: a tenant's administrator is refused, and so is a parameter", async () => {
  expect((await follow({}, context.tenantKey)).status).toBe(403);
  const headers = { authorization: `Bearer ${adminKey}` };
  expect((await fetch(`${url()}/admin/v1/kv-events?after=1`, { headers })).status).toBe(400);
});
