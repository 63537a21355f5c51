/**
 * What the gateway costs: HTTP in to worker, and worker's first token to first byte out. The client's time to
 * first token less the worker's own (arrival there to first token); the gateway's processor time for each request;
 * and for each token that it streams. Beside it stands what no gateway on Bun can do without.
 */
import { HttpClient } from "../../gateway/cli/support/client.ts";
import { askChat } from "../../gateway/cli/support/operations.ts";
import { startTestServer } from "../support/server.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { startBareServer } from "./support/bare-server.ts";
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

function asker(client: HttpClient, model: string): Ask {
  const texts = new SpanTexts();
  // Made once: work of this process between two requests takes the gateway's caches and its core from it.
  const fragments = Array.from({ length: mostFragments }, (_, index) => ({ text: texts.textOf(128, index + 1) }));
  let asked = 10_000;
  return async (fragmentCount, tokens) => {
    const documents = fragments.slice(0, fragmentCount);
    const { clientTtftMs, spangate } = await askChat(client, {
      model,
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
async function gatewayMs(pid: number, work: () => Promise<void>): Promise<number> {
  const startSeconds = processSeconds(pid);
  await work();
  return (processSeconds(pid) - startSeconds) * 1_000;
}

async function requestCosts(pid: number, ask: Ask, fragmentCount: number) {
  for (let index = 0; index < warmUpCount; index++) await ask(fragmentCount, 1);
  const overheadMs: number[] = [];
  const clientTtftMs: number[] = [];
  const allMs = await gatewayMs(pid, async () => {
    for (let index = 0; index < requestCount; index++) {
      const answer = await ask(fragmentCount, 1);
      overheadMs.push(answer.overheadMs);
      clientTtftMs.push(answer.clientTtftMs);
    }
  });
  return { overheadMs, clientTtftMs, cpuMs: allMs / requestCount };
}

/** Microseconds of the gateway's processor time a token: what long answers take more than answers of one token. */
async function tokenCost(pid: number, ask: Ask, { atOnce, count }: (typeof streamCases)[number]) {
  const askAll = async (tokens: number): Promise<void> => {
    let left = count;
    const next = async (): Promise<void> => {
      while (left-- > 0) await ask(0, tokens);
    };
    await Promise.all(Array.from({ length: atOnce }, next));
  };
  await askAll(streamTokens / 4);
  const longMs = await gatewayMs(pid, () => askAll(streamTokens));
  const shortMs = await gatewayMs(pid, () => askAll(1));
  return ((longMs - shortMs) * 1_000) / (count * (streamTokens - 1));
}

const streamName = (atOnce: number): string => (atOnce === 1 ? "a stream alone" : `${atOnce} streams at a time`);

const bareName = "Bun alone: a request, and a message to a process and back";

async function bareCosts() {
  await using server = await startBareServer();
  const ask = asker(new HttpClient({ url: server.url, apiKey: "none" }), "none");
  return { name: bareName, ...(await requestCosts(server.pid, ask, 0)) };
}

async function run({ say }: BenchContext): Promise<BenchReport> {
  say(bareName);
  const bare = await bareCosts();
  await using server = await startTestServer();
  const { client } = await server.tenant("bench");
  const { pid } = server.process;
  const ask = asker(client, server.model);
  const results: ({ name: string } & Awaited<ReturnType<typeof requestCosts>>)[] = [];
  for (const { name, fragmentCount } of cases) {
    say(name);
    results.push({ name, ...(await requestCosts(pid, ask, fragmentCount)) });
  }
  const streams: { name: string; tokenUs: number }[] = [];
  for (const streamCase of streamCases) {
    const name = streamName(streamCase.atOnce);
    say(name);
    streams.push({ name, tokenUs: await tokenCost(pid, ask, streamCase) });
  }
  return {
    model: server.model,
    header: ["request", "overhead p50 ms", "p90", "p99", "client TTFT p50 ms", "gateway's CPU ms", "µs a token"],
    rows: [
      ...[...results, bare].map(({ name, overheadMs, clientTtftMs, cpuMs }) => [
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
      "Bun alone is a server that parses the body's JSON, sends a message to a process, which is busy for 2 ms, and answers then.",
    ],
    bars: [
      ...results.map(({ name, overheadMs }) => atMost(`overhead p50 ms, ${name}`, median(overheadMs), 1)),
      ...results.map(({ name, cpuMs }) => atMost(`gateway's CPU ms a request, ${name}`, cpuMs, 1.2)),
      ...streams.slice(0, 1).map(({ name, tokenUs }) => atMost(`gateway's CPU µs a token, ${name}`, tokenUs, 30)),
    ],
    details: {
      tokenUs: Object.fromEntries(streams.map(({ name, tokenUs }) => [name, tokenUs])),
      bunAlone: { overheadMs: median(bare.overheadMs), cpuMs: bare.cpuMs },
    },
  };
}

export const overheadBench: Bench = {
  name: "overhead",
  summary: "What the gateway adds to a request: client's TTFT less the worker's own",
  run,
};
