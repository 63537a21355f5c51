import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import OpenAI from "openai";
import { type ChatParams, errorOf, openaiClient } from "../support/openai.ts";
import { firstWorkerOf, type ReadyWorker } from "../support/operator.ts";
import { startTestServer, type TestServer } from "../support/server.ts";

// A server starts here.
setDefaultTimeout(60_000);

const waiting = 3;
let server: TestServer;
let apiKey: string;
beforeAll(async () => {
  // A pool of a few hundred tokens, and a short queue before it.
  const env = { SPANGATE_KV_BYTES: String(2 ** 20), SPANGATE_MAX_RUNNING: "8", SPANGATE_MAX_WAITING: String(waiting) };
  server = await startTestServer({ model: "one-layer", env });
  ({ apiKey } = await server.tenant("memory"));
});
afterAll(async () => await server[Symbol.asyncDispose]());

/** The worker's counters come now and then, and an answer is out before its blocks are given back: they agree in the end. */
async function idleWorker(limitMs = 10_000): Promise<ReadyWorker> {
  const deadlineMs = performance.now() + limitMs;
  for (;;) {
    const row = await firstWorkerOf(server);
    if (row.stats?.usedBlocks === 0 && row.stats.cachedBlocks === row.keyed_blocks) return row;
    if (performance.now() > deadlineMs) throw new Error(`the accounts never agree: ${JSON.stringify(row)}`);
    await Bun.sleep(20);
  }
}

const chat = async (content: string, maxTokens: number) => {
  const messages: ChatParams["messages"] = [{ role: "user", content }];
  const params: ChatParams = { model: server.model, messages, max_tokens: maxTokens, ignore_eos: true };
  return await openaiClient(server.url, apiKey).chat.completions.create(params);
};

describe("a server that cannot start", () => {
  test.each([
    [
      { SPANGATE_KV_BYTES: String(2 ** 42) },
      /SPANGATE_KV_BYTES is 4096\.0 GiB .* and the machine has [\d.]+ GiB; SPANGATE_KV_BYTES=\d+MiB would fit/,
    ],
    [{ SPANGATE_DEVICES: "cuda:99" }, /no NVIDIA driver: .* was not found|cuda:99 does not exist/],
  ])("for want of memory or device ends with one sentence: %j", async (env, sentence) => {
    const failure = await startTestServer({ env }).then(
      () => undefined,
      (error: Error) => error.message,
    );
    expect(failure).toContain("ended with exit code 1");
    expect(failure?.split("\n").at(-1)).toMatch(sentence);
  });
});

describe("a KV pool that is too small for what is asked", () => {
  test("lets requests wait, refuses those that find the queue full, and serves on", async () => {
    const { block_count: blocks, block_tokens: blockTokens } = await firstWorkerOf(server);
    // Each takes about half of the pool with its answer, so not more than two run at a time.
    const maxTokens = Math.floor((blocks * blockTokens) / 2) - 40;
    const outcomes = await Promise.all(
      Array.from({ length: 24 }, async (_, index) => {
        try {
          const { usage } = await chat(`Say ${index}.`, maxTokens);
          return usage?.completion_tokens ?? 0;
        } catch (error) {
          if (!(error instanceof OpenAI.APIError)) throw error;
          return error;
        }
      }),
    );
    const answered = outcomes.filter((outcome) => typeof outcome === "number");
    const refused = outcomes.filter((outcome) => typeof outcome !== "number");
    expect(answered.every((tokens) => tokens === maxTokens)).toBe(true);
    expect(answered.length).toBeGreaterThanOrEqual(waiting);
    expect(refused.length).toBeGreaterThan(0);
    for (const error of refused) {
      expect(error).toMatchObject({ status: 503, code: "overloaded" });
      expect(Number(error.headers?.get("retry-after"))).toBeGreaterThan(0);
    }
    expect((await chat("And now?", 8)).usage?.completion_tokens).toBe(8);
    expect((await firstWorkerOf(server)).restarts).toBe(0);
    // What was evicted, preempted and refused on the way has left the accounts exact.
    const { keyed_blocks: keyed, stats } = await idleWorker();
    const { data: tenants } = await server.admin.json<{ data: { blocks: number }[] }>("GET", "/admin/v1/cache");
    const held = tenants.reduce((sum, tenant) => sum + tenant.blocks, 0);
    expect(held).toBeGreaterThan(0);
    expect(keyed).toBe(held);
    expect(stats?.evictedBlocks).toBeGreaterThan(0);
  });

  test("a prompt that can never fit is refused at once, with the numbers", async () => {
    const { block_count: blocks, block_tokens: blockTokens } = await firstWorkerOf(server);
    const error = await errorOf(chat("amber ".repeat(blocks * blockTokens), 8));
    expect(error).toMatchObject({ status: 400, code: "context_length_exceeded" });
    expect(error.message).toContain("maximum context length");
  });
});
