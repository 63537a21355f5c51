/** Many streams at the same time on a server with two workers: what became of each, and what they cost the gateway. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { openStream, type RawStream } from "../bench/support/raw-streams.ts";
import { startTestServer, type TestServer, type TestTenant } from "../support/server.ts";

export interface StreamsPlan {
  readonly streams: number;
  /** Times that all of them are opened. */
  readonly rounds: number;
  readonly answerTokens: number;
  readonly say: (line: string) => void;
}

export interface Round {
  readonly streams: readonly RawStream[];
  readonly mostOpen: number;
  readonly seconds: number;
  readonly cost: Cost;
}

/** Of the gateway; NaN where there is no /proc. */
export interface Cost {
  readonly residentBytes: number;
  readonly peakBytes: number;
  readonly descriptors: number;
}

export interface StreamsReport {
  readonly model: string;
  readonly before: Cost;
  readonly rounds: readonly Round[];
  /** What is wrong with the streams that did not end whole. */
  readonly faults: readonly string[];
}

const streamsPerTenant = 200;
/** Each of two workers runs as many at a time. */
const runningPerWorker = 1_024;
const warmUpStreams = 100;
export const mostStreams = 2 * runningPerWorker;

export interface StreamServer extends AsyncDisposable {
  readonly server: TestServer;
  /** Opens streams, each with a question of its own, and reads them all to their end. */
  round(streams: number): Promise<Round>;
  faultsOf(round: Round): readonly string[];
}

/**
 * A server with two workers, and tenants for so many streams at the same time.
 * @param more settings of the server
 */
export async function openStreamServer(
  { streams: count, answerTokens }: Pick<StreamsPlan, "streams" | "answerTokens">,
  more: Readonly<Record<string, string>> = {},
): Promise<StreamServer> {
  const atOnce = String(runningPerWorker);
  const env = { SPANGATE_MAX_RUNNING: atOnce, SPANGATE_STEP_TOKENS: atOnce, SPANGATE_DEVICES: "cpu,cpu" };
  const server = await startTestServer({ env: { ...env, SPANGATE_THREADS: "1", ...more } });
  await untilReady(server, 2);
  const tenants: TestTenant[] = [];
  while (tenants.length * streamsPerTenant < count) tenants.push(await server.tenant(`tenant ${tenants.length}`));
  let asked = 0;
  return {
    server,
    round: (streams) => {
      asked += streams;
      return round(server, tenants, { streams, from: asked - streams, answerTokens });
    },
    faultsOf: ({ streams }) => streams.flatMap((stream) => faultOf(stream, answerTokens) ?? []),
    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
  };
}

export async function openStreams({ streams: count, rounds, say, ...plan }: StreamsPlan): Promise<StreamsReport> {
  await using opened = await openStreamServer({ streams: count, ...plan });
  // What is opened once and kept is open before it counts.
  const { cost: before } = await opened.round(Math.min(count, warmUpStreams));
  const measured: Round[] = [];
  for (let index = 1; index <= rounds; index++) {
    say(`round ${index} of ${rounds}`);
    measured.push(await opened.round(count));
  }
  return { model: opened.server.model, before, rounds: measured, faults: measured.flatMap(opened.faultsOf) };
}

interface RoundPlan {
  readonly streams: number;
  /** Number of the first question; no two are the same. */
  readonly from: number;
  readonly answerTokens: number;
}

async function round(
  server: TestServer,
  tenants: readonly TestTenant[],
  { streams: count, from, answerTokens }: RoundPlan,
): Promise<Round> {
  const startMs = performance.now();
  let [open, mostOpen] = [0, 0];
  const onOpen = (change: 1 | -1): void => {
    open += change;
    mostOpen = Math.max(mostOpen, open);
  };
  const streams = await Promise.all(
    Array.from({ length: count }, (_, index) => {
      const apiKey = tenants[index % tenants.length]?.apiKey ?? "";
      const body = {
        model: server.model,
        messages: [{ role: "user", content: `Tell me about number ${from + index}.` }],
        max_tokens: answerTokens,
        min_tokens: answerTokens,
        ignore_eos: true,
        stream: true,
        stream_options: { include_usage: true },
      };
      return openStream(server.url, { apiKey, path: "/v1/chat/completions", body }, onOpen);
    }),
  );
  const seconds = (performance.now() - startMs) / 1_000;
  return { streams, mostOpen, seconds, cost: await costOf(server.process.pid) };
}

/** undefined: a whole answer. */
function faultOf({ status, error, text }: RawStream, answerTokens: number): string | undefined {
  if (error !== undefined) return error;
  if (status !== 200) return `status ${status}: ${text.slice(0, 200)}`;
  const events = text.split("\n\n").filter((event) => event.startsWith("data: "));
  if (events.at(-1) !== "data: [DONE]") return `ends with ${events.at(-1)?.slice(0, 200)}`;
  const { usage } = JSON.parse(events.at(-2)?.slice("data: ".length) ?? "{}") as {
    usage?: { completion_tokens: number };
  };
  return usage?.completion_tokens === answerTokens ? undefined : `has ${usage?.completion_tokens} tokens`;
}

async function untilReady(server: TestServer, workers: number): Promise<void> {
  const deadlineMs = performance.now() + 60_000;
  const ready = async (): Promise<number> => {
    const { data } = await server.admin.json<{ data: { state: string }[] }>("GET", "/admin/v1/workers");
    return data.filter(({ state }) => state === "ready").length;
  };
  while ((await ready()) < workers) {
    if (performance.now() > deadlineMs) throw new Error("the workers are not ready within a minute");
    await Bun.sleep(50);
  }
}

/** Once connections that were closed are gone. */
async function costOf(pid: number): Promise<Cost> {
  const folder = `/proc/${pid}/fd`;
  if (!existsSync(folder)) return { residentBytes: Number.NaN, peakBytes: Number.NaN, descriptors: Number.NaN };
  let descriptors = Number.POSITIVE_INFINITY;
  for (let look = 0; look < 10; look++) {
    await Bun.sleep(100);
    descriptors = Math.min(descriptors, readdirSync(folder).length);
  }
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const bytes = (field: string): number =>
    Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(status)?.[1]) * 1_024;
  return { residentBytes: bytes("VmRSS"), peakBytes: bytes("VmHWM"), descriptors };
}
