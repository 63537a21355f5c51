/**
 * What the gateway costs: HTTP in to worker, and worker's first token to first byte out. The client's time to
 * first token less the worker's own (arrival there to first token); the gateway's processor time for each request;
 * and for each token that it streams.
 */
import { askChat } from "../../gateway/cli/support/operations.ts";
import { startTestServer, type TestServer } from "../support/server.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { processSeconds } from "./support/hardware.ts";
import { fillerWords, SpanTexts } from "./support/prompts.ts";
import { figure, median, quantile } from "./support/stats.ts";

const requestCount = 600;
/** The gateway's code is compiled while it runs: the first hundreds of requests pay for that. */
const warmUpCount = 300;
const cases = [
  { name: "question alone", fragmentCount: 0 },
  { name: "4 prepared fragments of 128 tokens", fragmentCount: 4 },
] as const;
const mostFragments = Math.max(...cases.map(({ fragmentCount }) => fragmentCount));
const streamTokens = 256;
/** Streams at a time, and how many in all. */
const streamCases = [
  { atOnce: 8, count: 96 },
  { atOnce: 1, count: 16 },
] as const;

type Ask = (fragmentCount: number, tokens: number) => Promise<{ clientTtftMs: number; overheadMs: number }>;

async function asker(server: TestServer): Promise<Ask> {
  const { client } = await server.tenant("bench");
  const texts = new SpanTexts();
  // Made once: work of this process between two requests takes the gateway's caches and its core from it.
  const fragments = Array.from({ length: mostFragments }, (_, index) => ({ text: texts.textOf(128, index + 1) }));
  let asked = 10_000;
  return async (fragmentCount, tokens) => {
    const documents = fragments.slice(0, fragmentCount);
    const { clientTtftMs, spangate } = await askChat(client, {
      model: server.model,
      messages: [{ role: "user", content: fillerWords(asked++, 12).join(" ") }],
      ...(fragmentCount > 0 ? { documents } : {}),
      temperature: 0,
      max_tokens: tokens,
      min_tokens: tokens,
      ignore_eos: true,
    });
    return { clientTtftMs, overheadMs: clientTtftMs - spangate.ttft_ms };
  };
}

/** Milliseconds of the gateway's processor time while `work` runs. */
async function gatewayMs(server: TestServer, work: () => Promise<void>): Promise<number> {
  const startSeconds = processSeconds(server.process.pid);
  await work();
  return (processSeconds(server.process.pid) - startSeconds) * 1_000;
}

async function requestCosts(server: TestServer, ask: Ask, fragmentCount: number) {
  for (let index = 0; index < warmUpCount; index++) await ask(fragmentCount, 1);
  const overheadMs: number[] = [];
  const clientTtftMs: number[] = [];
  const allMs = await gatewayMs(server, async () => {
    for (let index = 0; index < requestCount; index++) {
      const answer = await ask(fragmentCount, 1);
      overheadMs.push(answer.overheadMs);
      clientTtftMs.push(answer.clientTtftMs);
    }
  });
  return { overheadMs, clientTtftMs, cpuMs: allMs / requestCount };
}

/** Microseconds of the gateway's processor time a token: what long answers take more than answers of one token. */
async function tokenCost(server: TestServer, ask: Ask, { atOnce, count }: (typeof streamCases)[number]) {
  const askAll = async (tokens: number): Promise<void> => {
    let left = count;
    const next = async (): Promise<void> => {
      while (left-- > 0) await ask(0, tokens);
    };
    await Promise.all(Array.from({ length: atOnce }, next));
  };
  await askAll(streamTokens / 4);
  const longMs = await gatewayMs(server, () => askAll(streamTokens));
  const shortMs = await gatewayMs(server, () => askAll(1));
  return ((longMs - shortMs) * 1_000) / (count * (streamTokens - 1));
}

const streamName = (atOnce: number): string => (atOnce === 1 ? "a stream alone" : `${atOnce} streams at a time`);

async function run({ say }: BenchContext): Promise<BenchReport> {
  await using server = await startTestServer();
  const ask = await asker(server);
  const results: ({ name: string } & Awaited<ReturnType<typeof requestCosts>>)[] = [];
  for (const { name, fragmentCount } of cases) {
    say(name);
    results.push({ name, ...(await requestCosts(server, ask, fragmentCount)) });
  }
  const streams: { name: string; tokenUs: number }[] = [];
  for (const streamCase of streamCases) {
    const name = streamName(streamCase.atOnce);
    say(name);
    streams.push({ name, tokenUs: await tokenCost(server, ask, streamCase) });
  }
  return {
    model: server.model,
    header: ["request", "overhead p50 ms", "p90", "p99", "client TTFT p50 ms", "gateway's CPU ms", "µs a token"],
    rows: [
      ...results.map(({ name, overheadMs, clientTtftMs, cpuMs }) => [
        name,
        ...[0.5, 0.9, 0.99].map((q) => figure(quantile(overheadMs, q))),
        figure(median(clientTtftMs)),
        figure(cpuMs),
        "",
      ]),
      ...streams.map(({ name, tokenUs }) => [name, "", "", "", "", "", figure(tokenUs)]),
    ],
    notes: [
      `${requestCount} requests one after the other, after ${warmUpCount} for warm-up. CPU: all of the gateway's threads, a`,
      "request; of all that is measured here it depends least on what else the machine does. A token: what answers of",
      `${streamTokens} tokens take of the gateway's CPU beyond answers of one. Of a stream alone each token wakes it by itself.`,
    ],
    bars: [
      ...results.map(({ name, overheadMs }) => atMost(`overhead p50 ms, ${name}`, median(overheadMs), 1)),
      ...results.map(({ name, cpuMs }) => atMost(`gateway's CPU ms a request, ${name}`, cpuMs, 1.2)),
      ...streams.slice(0, 1).map(({ name, tokenUs }) => atMost(`gateway's CPU µs a token, ${name}`, tokenUs, 30)),
    ],
    details: { tokenUs: Object.fromEntries(streams.map(({ name, tokenUs }) => [name, tokenUs])) },
  };
}

export const overheadBench: Bench = {
  name: "overhead",
  summary: "What the gateway adds to a request: client's TTFT less the worker's own",
  run,
};
