/**
 * What the gateway costs: HTTP in to worker, and worker's first token to first byte out. The client's time to
 * first token less the worker's own (arrival there to first token).
 */
import { askChat } from "../../gateway/cli/support/operations.ts";
import { startTestServer } from "../support/server.ts";
import { atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { processSeconds } from "./support/hardware.ts";
import { fillerWords, SpanTexts } from "./support/prompts.ts";
import { figure, median, quantile } from "./support/stats.ts";

const requestCount = 200;
const warmUpCount = 30;
const cases = [
  { name: "question alone", fragmentCount: 0 },
  { name: "4 prepared fragments of 128 tokens", fragmentCount: 4 },
] as const;

async function run({ say }: BenchContext): Promise<BenchReport> {
  await using server = await startTestServer();
  const { client } = await server.tenant("bench");
  const texts = new SpanTexts();
  const results: { name: string; overheadMs: number[]; clientTtftMs: number[]; gatewayCpuMs: number }[] = [];
  for (const { name, fragmentCount } of cases) {
    say(name);
    const documents = Array.from({ length: fragmentCount }, (_, index) => ({ text: texts.textOf(128, index + 1) }));
    const result = { name, overheadMs: [] as number[], clientTtftMs: [] as number[], gatewayCpuMs: Number.NaN };
    let startSeconds = 0;
    for (let index = -warmUpCount; index < requestCount; index++) {
      if (index === 0) startSeconds = processSeconds(server.process.pid);
      const { clientTtftMs, spangate } = await askChat(client, {
        model: server.model,
        messages: [{ role: "user", content: fillerWords(index + 10_000, 12).join(" ") }],
        ...(fragmentCount > 0 ? { documents } : {}),
        temperature: 0,
        max_tokens: 1,
        min_tokens: 1,
        ignore_eos: true,
      });
      if (index < 0) continue;
      result.overheadMs.push(clientTtftMs - spangate.ttft_ms);
      result.clientTtftMs.push(clientTtftMs);
    }
    result.gatewayCpuMs = ((processSeconds(server.process.pid) - startSeconds) * 1_000) / requestCount;
    results.push(result);
  }
  return {
    model: server.model,
    header: ["request", "overhead p50 ms", "p90", "p99", "client TTFT p50 ms", "gateway's CPU ms"],
    rows: results.map(({ name, overheadMs, clientTtftMs, gatewayCpuMs }) => [
      name,
      ...[0.5, 0.9, 0.99].map((q) => figure(quantile(overheadMs, q))),
      figure(median(clientTtftMs)),
      figure(gatewayCpuMs),
    ]),
    notes: [
      `${requestCount} requests one after the other, after ${warmUpCount} for warm-up. CPU: all of the gateway's threads, a`,
      "request; of all that is measured here it depends least on what else the machine does.",
    ],
    bars: results.map(({ name, overheadMs }) => atMost(`overhead p50 ms, ${name}`, median(overheadMs), 3)),
    details: { gatewayCpuMs: Object.fromEntries(results.map(({ name, gatewayCpuMs }) => [name, gatewayCpuMs])) },
  };
}

export const overheadBench: Bench = {
  name: "overhead",
  summary: "What the gateway adds to a request: client's TTFT less the worker's own",
  run,
};
