/**
 * Requests per second of several workers against one, on a mixed load: questions over prepared vector stores, questions
 * with documents of their own of which some are asked about much, and plain chat. Each arm has a server of its own.
 */
import { basename } from "node:path";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { allReady } from "../support/operator.ts";
import { startTestServer } from "../support/server.ts";
import { atLeast, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { mapConcurrent } from "./support/concurrent.ts";
import { processSeconds } from "./support/hardware.ts";
import { type LoadShape, longLoad, openMixedLoad, shortLoad } from "./support/mixed-load.ts";
import { figure, median, quantile } from "./support/stats.ts";

interface Settings {
  readonly requestCount: number;
  /** Requests at a time for each worker. */
  readonly concurrency: number;
  readonly load: LoadShape;
  readonly env: Readonly<Record<string, string>>;
}

interface Arm {
  readonly devices: readonly string[];
  /** From the start to all workers ready. */
  readonly readySeconds: number;
  readonly requestsPerSecond: number;
  readonly ttftP50Ms: number;
  readonly ttftP95Ms: number;
  readonly timePerTokenP50Ms: number;
  /** Mean of a request. */
  readonly promptTokens: number;
  readonly cachedShare: number;
  /** Processor time of the gateway by the clock's; above 1 there is more than its own thread. */
  readonly gatewayLoad: number;
  /** Requests that each worker answered. */
  readonly perWorker: Readonly<Record<string, number>>;
}

async function runArm(devices: readonly string[], settings: Settings): Promise<Arm> {
  const { requestCount, concurrency, load, env } = settings;
  const startedMs = performance.now();
  await using server = await startTestServer({ env: { ...env, SPANGATE_DEVICES: devices.join(",") } });
  await allReady(server, devices.length);
  const readySeconds = (performance.now() - startedMs) / 1_000;
  const atOnce = concurrency * devices.length;
  // As many for each worker, so that what is computed once, compiled or captured is in nobody's figure.
  const warmUpCount = Math.ceil(requestCount / 4) * devices.length;
  const ask = await openMixedLoad(server, load, warmUpCount + requestCount);
  const indexes = Array.from({ length: warmUpCount + requestCount }, (_, index) => index);
  await mapConcurrent(indexes.slice(requestCount), atOnce, ask);
  const cpuBefore = processSeconds(server.process.pid);
  const startMs = performance.now();
  const answers = await mapConcurrent(indexes.slice(0, requestCount), atOnce, ask);
  const seconds = (performance.now() - startMs) / 1_000;
  const gatewayLoad = (processSeconds(server.process.pid) - cpuBefore) / seconds;
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
  const perWorker = Object.groupBy(answers, ({ spangate }) => spangate.worker);
  const ttftMs = answers.map(({ clientTtftMs }) => clientTtftMs);
  const promptTokens = sum(answers.map(({ usage }) => usage.prompt_tokens));
  const tokenMs = answers.map(({ totalMs, clientTtftMs, usage }) => {
    return (totalMs - clientTtftMs) / (usage.completion_tokens - 1);
  });
  return {
    devices,
    readySeconds,
    requestsPerSecond: requestCount / seconds,
    ttftP50Ms: median(ttftMs),
    ttftP95Ms: quantile(ttftMs, 0.95),
    timePerTokenP50Ms: median(tokenMs),
    promptTokens: promptTokens / requestCount,
    cachedShare: sum(answers.map(({ usage }) => usage.prompt_tokens_details.cached_tokens)) / promptTokens,
    gatewayLoad,
    perWorker: Object.fromEntries(Object.entries(perWorker).map(([id, ofWorker]) => [id, ofWorker?.length ?? 0])),
  };
}

function wholeNumber({ option }: BenchContext, name: string, fallback: number, max: number): number {
  const value = Number(option(name) ?? fallback);
  if (Number.isInteger(value) && value >= 1 && value <= max) return value;
  throw new CommandError(`--${name} must be a whole number from 1 to ${max}`);
}

async function run(context: BenchContext): Promise<BenchReport> {
  const { option, say } = context;
  const devices = (option("devices") ?? "cpu,cpu").split(",");
  const model = option("model");
  const env: Record<string, string> = model === undefined ? {} : { SPANGATE_MODEL: model };
  // A worker on the CPU gets as many threads alone as it has beside others, so that the arms differ in workers only.
  if (devices.every((name) => name === "cpu")) env.SPANGATE_THREADS = "1";
  const requestCount = wholeNumber(context, "requests", 600, 100_000);
  const concurrency = wholeNumber(context, "concurrency", 16, 256);
  const load = model === undefined ? shortLoad() : longLoad();
  const arms: Arm[] = [];
  for (const used of devices.length === 1 ? [devices] : [devices.slice(0, 1), devices]) {
    say(`${used.join(",")}: ${requestCount} requests`);
    arms.push(await runArm(used, { requestCount, concurrency, load, env }));
  }
  const [one, all] = arms;
  const bars: Bar[] = [];
  if (one !== undefined && all !== undefined) {
    const ratio = all.requestsPerSecond / one.requestsPerSecond;
    bars.push(atLeast(`requests/s, ${devices.length} workers / 1`, ratio, 0.95 * devices.length));
  }
  return {
    model: `${model === undefined ? "demo" : basename(model)}, ${devices[0]}`,
    header: ["devices", "requests/s", "TTFT p50 ms", "p95", "ms/token", "tokens found", "gateway", "of each worker"],
    rows: arms.map((arm) => [
      arm.devices.join(","),
      figure(arm.requestsPerSecond),
      figure(arm.ttftP50Ms),
      figure(arm.ttftP95Ms),
      figure(arm.timePerTokenP50Ms),
      `${(100 * arm.cachedShare).toFixed(1)} %`,
      `${(100 * arm.gatewayLoad).toFixed(0)} %`,
      Object.values(arm.perWorker).join(" + "),
    ]),
    notes: [
      `${requestCount} requests, ${concurrency} at a time for each worker, ${load.answerTokens} tokens of answer.`,
      `60 % over prepared stores, 30 % with 4 of 200 documents of ${load.documentTokens} tokens (Zipf 1.1), 10 % plain.`,
      "Before it a quarter as many for each worker. Gateway: its processor time by the clock's.",
      "On the CPU each worker has one thread.",
    ],
    bars,
    details: { requestCount, concurrency, documentTokens: load.documentTokens, answerTokens: load.answerTokens, arms },
  };
}

export const poolBench: Bench = {
  name: "pool",
  summary: "Requests per second of several workers against one, on a mixed load",
  options: {
    devices: "LIST  as SPANGATE_DEVICES (cpu,cpu); one is measured alone",
    model: "FOLDER  served instead of the demo model, with longer documents and answers",
    requests: "N  of each arm (600)",
    concurrency: "N  at a time for each worker (16)",
  },
  run,
};
