import { Database } from "bun:sqlite";
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI, { toFile } from "openai";
import { demoModelFolder } from "../../gateway/cli/demo-corpora.ts";
import { startServer } from "../../gateway/cli/support/server-process.ts";
import { type ChatParams, type ChatStreamParams, openaiClient, spangateOf } from "../support/openai.ts";
import { allReady, killWorker, workersOf } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

// Servers start here.
setDefaultTimeout(60_000);

const temporary: string[] = [];
afterAll(() => {
  for (const folder of temporary) rmSync(folder, { recursive: true, force: true });
});

function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "spangate-crash-"));
  temporary.push(folder);
  return folder;
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

/** No end token: the answer goes on until max_tokens. */
const endless = { max_tokens: 1_500, logit_bias: { 0: -100, 1: -100, 2: -100 } } as const;
const longQuestion = "Who works as a baker in Fairhaven and owns a red kite? ".repeat(100);

describe("a killed worker", () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({ model: "one-layer" });
  });
  afterAll(async () => await server[Symbol.asyncDispose]());

  test("in mid-stream ends the stream with worker_lost, and the next request is answered", async () => {
    const { apiKey } = await server.tenant("crash");
    const params: ChatStreamParams = {
      model: server.model,
      messages: [{ role: "user", content: "Tell me everything." }],
      ...endless,
      stream: true,
    };
    const stream = await openaiClient(server.url, apiKey).chat.completions.create(params);
    const consume = async () => {
      let isKilled = false;
      for await (const chunk of stream) {
        if (isKilled || !chunk.choices[0]?.delta.content) continue;
        isKilled = true;
        await killWorker(server);
      }
    };
    const error = await consume().then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(error).toBeInstanceOf(OpenAI.APIError);
    expect(error).toMatchObject({ code: "worker_lost" });
    const next = await openaiClient(server.url, apiKey, 5).chat.completions.create({
      model: server.model,
      messages: [{ role: "user", content: "Hello?" }],
      max_tokens: 4,
    });
    expect(next.usage?.completion_tokens).toBeGreaterThan(0);
  });

  test("before the first token is retried without a word", async () => {
    const { apiKey } = await server.tenant("crash");
    const client = openaiClient(server.url, apiKey);
    const params: ChatParams = {
      model: server.model,
      messages: [{ role: "user", content: longQuestion }],
      temperature: 0,
      max_tokens: 8,
      spangate: { reuse: false },
    };
    const undisturbed = await client.chat.completions.create(params);
    const disturbed = client.chat.completions.create(params);
    await Bun.sleep(15);
    const pid = await killWorker(server);
    expect((await disturbed).choices).toEqual(undisturbed.choices);
    expect(isAlive(pid)).toBe(false);
  });

  test("leaves the other worker serving; blocks draw requests to the worker that holds them", async () => {
    const env = { SPANGATE_DEVICES: "cpu,cpu", SPANGATE_THREADS: "1" };
    await using pair = await startTestServer({ model: "one-layer", env });
    await allReady(pair, 2, 10_000);
    const client = openaiClient(pair.url, (await pair.tenant("crash")).apiKey);
    const ask = async (name: string) => {
      const params: ChatParams = {
        model: pair.model,
        messages: [{ role: "user", content: "What is the extension?" }],
        documents: [{ text: `- The extension of ${name} is 4821.\n`.repeat(12) }],
        max_tokens: 4,
      };
      return await client.chat.completions.create(params);
    };
    const homes = new Map<string, string>();
    for (const name of ["Ada", "Bo", "Cy", "Di"]) homes.set(name, spangateOf(await ask(name)).worker);
    for (const [name, worker] of homes) {
      const again = await ask(name);
      expect(spangateOf(again).worker).toBe(worker);
      expect(again.usage?.prompt_tokens_details?.cached_tokens).toBeGreaterThan(0);
    }
    const [first] = homes.values();
    await killWorker(pair, first);
    expect((await ask("Ada")).choices).toHaveLength(1);
    await allReady(pair, 2, 10_000);
  });
});

describe("a killed gateway", () => {
  test("in mid-ingestion loses nothing it acknowledged, and shows nothing by halves", async () => {
    const dataDir = temporaryFolder();
    const first = await startTestServer({ model: "one-layer", dataDir });
    const { apiKey } = await first.tenant("crash");
    const client = openaiClient(first.url, apiKey);
    const workerPids = (await workersOf(first)).map(({ pid }) => pid);
    const store = await client.vectorStores.create({ name: "crash" });
    const acknowledged = new Map<string, string>();
    const uploadAll = async () => {
      for (let index = 0; index < 40; index++) {
        const text = `Paragraph ${index}. The code word is quartz${index}. `.repeat(200);
        const file = await client.files.create({
          file: await toFile(Buffer.from(text), `${index}.md`),
          purpose: "assistants",
        });
        await client.vectorStores.files.create(store.id, { file_id: file.id });
        acknowledged.set(file.id, text);
        if (acknowledged.size === 12) first.process.kill("SIGKILL");
      }
    };
    await uploadAll().catch(() => undefined);
    await first.process.exited;
    expect(acknowledged.size).toBeGreaterThanOrEqual(12);
    await until(() => workerPids.every((pid) => pid === null || !isAlive(pid)), "the orphaned workers end");
    for (const name of readdirSync(dataDir).filter((file) => /\.(?:db|sqlite)$/.test(file))) {
      const check = new Database(join(dataDir, name)).query("PRAGMA integrity_check").get();
      expect(check).toEqual({ integrity_check: "ok" });
    }

    await using second = await startTestServer({ model: "one-layer", dataDir });
    const after = openaiClient(second.url, apiKey);
    for (const [fileId, text] of acknowledged) {
      const ingested = async () =>
        (await after.vectorStores.files.retrieve(fileId, { vector_store_id: store.id })).status;
      await until(async () => (await ingested()) === "completed", `${fileId} is ingested`);
      expect(await (await after.files.content(fileId)).text()).toBe(text);
    }
    const { data: files } = await after.vectorStores.files.list(store.id, { limit: 100 });
    expect(files.every(({ status }) => status === "completed")).toBe(true);
    const found = await after.vectorStores.search(store.id, { query: "quartz7" });
    expect(found.data[0]?.filename).toBe("7.md");
  });
});

describe("a server that cannot start says why", () => {
  const startWith = async (env: Record<string, string>): Promise<string> => {
    const dataDir = temporaryFolder();
    const started = startServer({
      env: { SPANGATE_PORT: "0", ...env, SPANGATE_DATA: dataDir },
      readyTimeoutMs: 20_000,
    });
    const outcome = await started.then(
      async (server) => `it started and ended with ${await server.stop()}`,
      (error: unknown) => (error instanceof Error ? error.message : String(error)),
    );
    expect(outcome).toMatch(/ended with exit code [1-9]/);
    return outcome;
  };

  test("a port in use", async () => {
    using other = Bun.serve({ port: 0, hostname: "127.0.0.1", fetch: () => new Response() });
    expect(await startWith({ SPANGATE_PORT: String(other.port) })).toContain(`:${other.port} is in use`);
  });

  test("a setting out of bounds", async () => {
    expect(await startWith({ SPANGATE_PORT: "99999" })).toContain("SPANGATE_PORT");
  });

  test("a model folder that is none, an unknown architecture, a truncated weight file", async () => {
    const folder = temporaryFolder();
    expect(await startWith({ SPANGATE_MODEL: folder })).toContain(
      `${folder}: no config.json there; a model's folder has`,
    );

    const names = readdirSync(demoModelFolder).filter((name) => /\.(?:json|safetensors|jinja)$/.test(name));
    const copyModel = (name: string) => {
      const copy = join(folder, name);
      mkdirSync(copy);
      for (const file of names) copyFileSync(join(demoModelFolder, file), join(copy, file));
      return copy;
    };
    const unknown = copyModel("unknown");
    const config = JSON.parse(readFileSync(join(unknown, "config.json"), "utf8"));
    writeFileSync(join(unknown, "config.json"), JSON.stringify({ ...config, architectures: ["MambaForCausalLM"] }));
    expect(await startWith({ SPANGATE_MODEL: unknown })).toContain("MambaForCausalLM");

    const truncated = copyModel("truncated");
    const shard = names.find((name) => name.endsWith(".safetensors")) ?? "";
    writeFileSync(join(truncated, shard), readFileSync(join(truncated, shard)).subarray(0, 10_000));
    expect(await startWith({ SPANGATE_MODEL: truncated })).toContain(shard);
  });
});
