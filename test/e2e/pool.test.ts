import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import OpenAI from "openai";
import { prepareStore } from "../../gateway/cli/support/operations.ts";
import { type ChatParams, type ChatStreamParams, createStore, openaiClient, spangateOf } from "../support/openai.ts";
import { allReady, cacheOf, cachesOf, firstWorkerOf, workersOf } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";

// A server with two workers starts here.
setDefaultTimeout(60_000);

let server: TestServer;
beforeAll(async () => {
  // What a new worker holds is what it computed: it reads no files.
  const env = { SPANGATE_DEVICES: "cpu,cpu", SPANGATE_THREADS: "1", SPANGATE_KV_DISK_BYTES: "0" };
  server = await startTestServer({ model: "one-layer", env });
  await allReady(server, 2);
});
afterAll(async () => await server[Symbol.asyncDispose]());

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

describe("whose KV the workers hold", () => {
  test("is told per tenant and worker, and agrees with what the workers count themselves", async () => {
    const owner = await server.tenant("owner");
    const other = await server.tenant("other");
    const client = openaiClient(server.url, owner.apiKey);
    const text = Array.from({ length: 60 }, (_, n) => `Person ${n} has the extension ${1000 + n}.`).join("\n\n");
    const storeId = await createStore(client, "people", { "people.md": text });
    await prepareStore(owner.client, storeId, () => undefined);
    const prepared = await cacheOf(server, owner.id);
    // There is room on both workers, so both hold all fragments, and nothing else was computed for this tenant.
    expect(prepared?.workers.length).toBe(2);
    expect(new Set(prepared?.workers.map(({ blocks }) => blocks)).size).toBe(1);
    expect(prepared?.fragment_blocks).toBe(prepared?.blocks ?? 0);

    const ask = async (fields: Partial<ChatParams>, apiKey = owner.apiKey) => {
      const messages: ChatParams["messages"] = [{ role: "user", content: "What is the extension of Person 7?" }];
      const params: ChatParams = { model: server.model, messages, max_tokens: 40, ignore_eos: true, ...fields };
      return await openaiClient(server.url, apiKey).chat.completions.create(params);
    };
    const answer = await ask({ file_search: { vector_store_ids: [storeId], max_num_results: 4 } });
    expect(spangateOf(answer).spans.every(({ source }) => source === "device")).toBe(true);
    await Promise.all([ask({ documents: [{ text: "Bo lives in Fairhaven." }] }, other.apiKey), ask({}, other.apiKey)]);
    const after = await cacheOf(server, owner.id);
    // The question and its answer are the tenant's own text; fragments were found.
    expect(after?.fragment_blocks).toBe(prepared?.fragment_blocks ?? 0);
    expect(after?.blocks).toBeGreaterThan(prepared?.blocks ?? 0);
    expect((await cacheOf(server, other.id))?.fragment_blocks).toBe(0);

    const tenants = await cachesOf(server);
    const isAgreed = async (): Promise<boolean> =>
      (await workersOf(server)).every(({ id, keyed_blocks: keyed, stats }) => {
        const parts = tenants.flatMap((tenant) => tenant.workers.filter(({ worker }) => worker === id));
        const blocks = sum(parts.map((part) => part.blocks));
        return blocks === keyed && stats?.usedBlocks === 0 && stats.cachedBlocks === blocks;
      });
    await until(isAgreed, "the workers' own counters agree");
    expect(tenants.every(({ tenant_id: id }) => id !== "")).toBe(true);
    const { kv_bytes_per_block: blockBytes } = await firstWorkerOf(server);
    for (const tenant of tenants) expect(tenant.bytes).toBe(tenant.blocks * blockBytes);
  });
});

describe("a worker that dies", () => {
  test("ends its own streams only, comes back, and takes requests again", async () => {
    const { apiKey } = await server.tenant("crash");
    const client = openaiClient(server.url, apiKey);
    const started = Promise.withResolvers<void>();
    let open = 0;
    const stream = async (name: string): Promise<{ chunks: number; end: string | null }> => {
      const params: ChatStreamParams = {
        model: server.model,
        messages: [{ role: "user", content: `Tell me everything about ${name}.` }],
        max_tokens: 2_500,
        ignore_eos: true,
        stream: true,
      };
      let [chunks, end] = [0, null as string | null];
      try {
        for await (const chunk of await client.chat.completions.create(params)) {
          if (chunk.choices[0]?.delta.content && chunks++ === 0 && ++open === 2) started.resolve();
          end = chunk.choices[0]?.finish_reason ?? end;
        }
      } catch (error) {
        end = error instanceof OpenAI.APIError ? String(error.code) : String(error);
      }
      return { chunks, end };
    };
    const streams = [stream("Ada"), stream("Bo")];
    await started.promise;
    const before = await workersOf(server);
    expect(before.map((worker) => worker.in_flight_requests)).toEqual([1, 1]);
    const victim = before[0];
    if (victim?.pid == null) throw new Error("worker-0 does not run");
    process.kill(victim.pid, "SIGKILL");
    const ends = (await Promise.all(streams)).map(({ end }) => end);
    expect(ends.toSorted()).toEqual(["length", "worker_lost"]);
    await allReady(server, 2);
    expect((await workersOf(server)).map(({ restarts }) => restarts)).toEqual([
      victim.restarts + 1,
      before[1]?.restarts ?? 0,
    ]);
    // What it held is gone from the accounts, too.
    expect((await workersOf(server))[0]?.keyed_blocks).toBe(0);
    const params: ChatParams = { model: server.model, messages: [{ role: "user", content: "Hello?" }], max_tokens: 4 };
    const answers = await Promise.all(Array.from({ length: 6 }, () => client.chat.completions.create(params)));
    expect(answers.every(({ usage }) => (usage?.completion_tokens ?? 0) > 0)).toBe(true);
  });
});
