/** The whole gateway over real processes and sockets; only the model is missing. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import OpenAI from "openai";
import type { Log } from "../../gateway/base/log.ts";
import { parseConfig } from "../../gateway/config.ts";
import { type RunningServer, startServer } from "../../gateway/server.ts";

const adminKey = "test-admin-key-0123456789";
const fakeWorker = join(import.meta.dir, "..", "dispatch", "fake-worker.ts");
const dataDir = mkdtempSync(join(tmpdir(), "spangate-server-"));

const start = (
  settings: Record<string, string>,
  workerArguments: readonly string[] = [],
  log?: Log,
): Promise<RunningServer> => {
  const env = { ...process.env, SPANGATE_PORT: "0", SPANGATE_ADMIN_KEY: adminKey, SPANGATE_LOG: "silent", ...settings };
  return startServer(parseConfig(env), {
    env,
    workerArgv: [process.execPath, fakeWorker, ...workerArguments],
    ...(log && { log }),
  });
};

const context = { server: undefined as RunningServer | undefined, apiKey: "" };
const url = (): string => context.server?.url ?? "";
const headers = (key: string) => ({ authorization: `Bearer ${key}`, "content-type": "application/json" });
const post = async (path: string, body: unknown, key = adminKey): Promise<Record<string, unknown>> => {
  const response = await fetch(url() + path, { method: "POST", headers: headers(key), body: JSON.stringify(body) });
  return (await response.json()) as Record<string, unknown>;
};
const workers = async () => {
  const response = await fetch(`${url()}/admin/v1/workers`, { headers: headers(adminKey) });
  const { data } = (await response.json()) as {
    data: { pid: number; state: string; in_flight_requests: number; restarts: number }[];
  };
  return data[0] ?? { pid: 0, state: "none", in_flight_requests: 0, restarts: 0 };
};
const until = async (condition: () => Promise<boolean>): Promise<void> => {
  while (!(await condition())) await Bun.sleep(2);
};
const messages = [{ role: "user" as const, content: "Who is Anna?" }];
const client = () => new OpenAI({ baseURL: `${url()}/v1`, apiKey: context.apiKey, maxRetries: 0 });

beforeAll(async () => {
  context.server = await start({ SPANGATE_DATA: dataDir });
  await context.server.ready;
  const tenant = await post("/admin/v1/tenants", { name: "acme" });
  const key = await post(`/admin/v1/tenants/${tenant.id}/keys`, { scopes: ["inference"] });
  context.apiKey = String(key.key);
});
afterAll(async () => {
  await context.server?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

describe("through the official client", () => {
  test("whole and streamed answers agree", async () => {
    const whole = await client().chat.completions.create({ model: "fake-model", messages, max_tokens: 8 });
    const stream = await client().chat.completions.create({
      model: "fake-model",
      messages,
      max_tokens: 8,
      stream: true,
    });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? "";
    expect(text).toBe(whole.choices[0]?.message.content ?? "");
    expect(text.length).toBeGreaterThan(0);
    expect(whole.usage?.prompt_tokens_details?.cached_tokens).toBe(0);
  });

  test("errors arrive as the client's own classes", async () => {
    // The client's promise is not a Promise, so it is awaited by a function.
    const failure = (work: () => PromiseLike<unknown>): Promise<unknown> =>
      (async () => work())().catch((error: unknown) => error);
    const unknown = await failure(() => client().chat.completions.create({ model: "gpt-4", messages }));
    expect(unknown).toBeInstanceOf(OpenAI.NotFoundError);
    const keyless = new OpenAI({ baseURL: `${url()}/v1`, apiKey: "sk-wrong", maxRetries: 0 });
    expect(await failure(() => keyless.models.list())).toBeInstanceOf(OpenAI.AuthenticationError);
    const models = await client().models.list();
    expect(models.data.map((model) => model.id)).toEqual(["fake-model"]);
  });
});

describe("things that go wrong", () => {
  test("a client that goes away ends its request on the worker, streamed or not", async () => {
    for (const stream of [true, false]) {
      const controller = new AbortController();
      const body = JSON.stringify({ model: "fake-model", messages, max_tokens: 2_000, stream });
      const init = { method: "POST", headers: headers(context.apiKey), body, signal: controller.signal };
      const answer = fetch(`${url()}/v1/chat/completions`, init).then((response) => response.text());
      answer.catch(() => undefined);
      await until(async () => (await workers()).in_flight_requests === 1);
      controller.abort();
      await until(async () => (await workers()).in_flight_requests === 0);
    }
  });

  test("a worker killed in mid-stream ends the stream with worker_lost, and the next request is served", async () => {
    const stream = await client().chat.completions.create({
      model: "fake-model",
      messages,
      max_tokens: 1_000,
      stream: true,
    });
    const { pid, restarts } = await workers();
    let chunks = 0;
    const read = async (): Promise<void> => {
      for await (const _chunk of stream) {
        chunks += 1;
        if (chunks === 5) process.kill(pid, "SIGKILL");
      }
    };
    await expect(read()).rejects.toThrow("The worker that ran this request was lost.");
    await until(async () => (await workers()).restarts > restarts);
    const answer = await client().chat.completions.create({ model: "fake-model", messages, max_tokens: 2 });
    expect(answer.choices[0]?.finish_reason).toBe("length");
  });

  test("50 MB are refused with the error shape, and the server lives", async () => {
    const body = "x".repeat(50_000_000);
    const response = await fetch(`${url()}/v1/chat/completions`, {
      method: "POST",
      headers: headers(context.apiKey),
      body,
    });
    expect([response.status, await response.json()]).toMatchObject([413, { error: { code: "body_too_large" } }]);
    expect((await fetch(`${url()}/health`)).status).toBe(200);
  });

  test("a data folder that another server has is refused, and free again when that has stopped", async () => {
    const dir = mkdtempSync(join(tmpdir(), "spangate-lock-"));
    const first = await start({ SPANGATE_DATA: dir });
    await expect(start({ SPANGATE_DATA: dir })).rejects.toThrow(/data folder: another server has/);
    await first.stop();
    await (await start({ SPANGATE_DATA: dir })).stop();
    rmSync(dir, { recursive: true, force: true });
  });

  test("an admin key that is not this data folder's is told of, and it is no key", async () => {
    const dir = mkdtempSync(join(tmpdir(), "spangate-admin-"));
    const warned: string[] = [];
    const log: Log = (level, message) => void (level === "warn" && warned.push(message));
    await (await start({ SPANGATE_DATA: dir }, [], log)).stop();
    await (await start({ SPANGATE_DATA: dir }, [], log)).stop();
    expect(warned).toEqual([]);
    const other = "another-admin-key-0123456789";
    const server = await start({ SPANGATE_DATA: dir, SPANGATE_ADMIN_KEY: other }, [], log);
    expect(warned).toEqual([expect.stringContaining("SPANGATE_ADMIN_KEY is no key that administers this data folder")]);
    expect(warned.join()).not.toContain(other);
    expect((await fetch(`${server.url}/metrics`, { headers: headers(other) })).status).toBe(401);
    expect((await fetch(`${server.url}/metrics`, { headers: headers(adminKey) })).status).toBe(200);
    await server.stop();
    rmSync(dir, { recursive: true, force: true });
  });

  test("a port in use is one sentence that names the variable", async () => {
    const port = new URL(url()).port;
    const other = mkdtempSync(join(tmpdir(), "spangate-port-"));
    await expect(start({ SPANGATE_DATA: other, SPANGATE_PORT: port })).rejects.toThrow(/in use; set SPANGATE_PORT/);
    // An address for documentation: no machine has it.
    const nowhere = start({ SPANGATE_DATA: other, SPANGATE_HOST: "192.0.2.1" });
    await expect(nowhere).rejects.toThrow(/^cannot listen on 192\.0\.2\.1:0 \(\w+\); set SPANGATE_HOST/);
    rmSync(other, { recursive: true, force: true });
  });

  test("a data folder that cannot be made, or is a file, is one sentence that names the variable", async () => {
    const file = join(mkdtempSync(join(tmpdir(), "spangate-file-")), "file");
    writeFileSync(file, "");
    for (const folder of [file, join(file, "below")]) {
      const failed = start({ SPANGATE_DATA: folder });
      await expect(failed).rejects.toThrow(
        new RegExp(`data folder: ${folder} cannot be made \\(\\w+\\); name another with SPANGATE_DATA`),
      );
    }
    rmSync(dirname(file), { recursive: true, force: true });
  });

  test("a misspelled setting is told of, and one that the worker or the command line reads is not", async () => {
    const dir = mkdtempSync(join(tmpdir(), "spangate-settings-"));
    const warned: unknown[] = [];
    const settings = {
      SPANGATE_DATA: dir,
      SPANGATE_KVBYTES: "1",
      SPANGATE_MAX_RUNING: "1",
      SPANGATE_KV_TYPE: "float16",
      SPANGATE_MAX_PREFILL_BESIDE_DECODE: "64",
      SPANGATE_URL: "http://127.0.0.1",
      SPANGATE_API_KEY: "sk-x",
    };
    const server = await start(settings, [], (level, message, fields) => {
      if (level === "warn") warned.push([message, fields]);
    });
    await server.stop();
    rmSync(dir, { recursive: true, force: true });
    const message = "there is no such setting";
    expect(warned).toEqual([
      [message, { name: "SPANGATE_KVBYTES" }],
      [message, { name: "SPANGATE_MAX_RUNING" }],
    ]);
  });
});

test("a worker that fails for good is the server's own failure", async () => {
  const dir = mkdtempSync(join(tmpdir(), "spangate-fatal-"));
  const server = await start({ SPANGATE_DATA: dir }, ["config.json: architecture FooForCausalLM is not supported"]);
  await expect(server.ready).rejects.toThrow("FooForCausalLM is not supported");
  await server.ready.catch(() => undefined);
  const ready = await fetch(`${server.url}/ready`);
  expect([ready.status, await ready.json()]).toMatchObject([503, { workers: [{ state: "failed" }] }]);
  await server.stop();
  rmSync(dir, { recursive: true, force: true });
});

/** A server of its own, asked for that many tokens, of which one comes each millisecond, and stopped meanwhile. */
async function stoppedWhileAsked(settings: Record<string, string>, maxTokens: number): Promise<Response> {
  const dir = mkdtempSync(join(tmpdir(), "spangate-stop-"));
  const server = await start({ SPANGATE_DATA: dir, ...settings });
  await server.ready;
  const tenant = await fetch(`${server.url}/admin/v1/tenants`, {
    method: "POST",
    headers: headers(adminKey),
    body: '{"name":"a"}',
  });
  const { id } = (await tenant.json()) as { id: string };
  const made = await fetch(`${server.url}/admin/v1/tenants/${id}/keys`, {
    method: "POST",
    headers: headers(adminKey),
    body: '{"scopes":["inference"]}',
  });
  const { key } = (await made.json()) as { key: string };
  const body = JSON.stringify({ model: "fake-model", messages, max_tokens: maxTokens });
  const answer = fetch(`${server.url}/v1/chat/completions`, { method: "POST", headers: headers(key), body });
  let isAnswered = false;
  void answer.then(() => {
    isAnswered = true;
  });
  const isAsked = async (): Promise<boolean> => {
    const workers = await fetch(`${server.url}/admin/v1/workers`, { headers: headers(adminKey) });
    const { data } = (await workers.json()) as { data: { in_flight_requests: number }[] };
    return isAnswered || data.some((worker) => worker.in_flight_requests > 0);
  };
  await until(isAsked);
  await server.stop();
  await expect(fetch(`${server.url}/health`)).rejects.toThrow();
  rmSync(dir, { recursive: true, force: true });
  return await answer;
}

test("stopping lets a request finish, then is ready for nothing", async () => {
  expect((await stoppedWhileAsked({}, 60)).status).toBe(200);
});

test("stopping waits no longer than it is told to", async () => {
  const answer = await stoppedWhileAsked({ SPANGATE_DRAIN_SECONDS: "0" }, 2_000);
  expect([answer.status, await answer.json()]).toMatchObject([503, { error: { code: "server_shutdown" } }]);
});
