/**
 * What traces of the last requests cost: the streams of `bench streams` on two servers in turn, of which one keeps
 * traces and the other none (SPANGATE_TRACE_BYTES=0). Each pair of rounds is one of each, the first of the two by turns.
 * The gateway's processor time is told apart from the seconds on the clock, which the workers' computing decides. A
 * difference of a hundredth is near what rounds differ by themselves, so what a trace takes is also measured alone: made,
 * filled with a stream's parts and kept, many times over in this process.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import type { EndedTrace } from "../../gateway/telemetry/ended-trace.ts";
import { TraceRing } from "../../gateway/telemetry/trace-ring.ts";
import { TraceStats } from "../../gateway/telemetry/trace-stats.ts";
import { Tracer, traced } from "../../gateway/telemetry/tracer.ts";
import { mostStreams, openStreamServer, type StreamServer } from "../chaos/streams.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { processSeconds } from "./support/hardware.ts";
import { figure, median, quantile } from "./support/stats.ts";

const [defaultStreams, defaultPairs, defaultTokens] = [400, 8, 32];
const warmUps = 2;

interface Measured {
  readonly cpuSeconds: number;
  readonly seconds: number;
  readonly faults: readonly string[];
}

async function measure(opened: StreamServer, streams: number): Promise<Measured> {
  const { pid } = opened.server.process;
  const before = processSeconds(pid);
  const round = await opened.round(streams);
  return { cpuSeconds: processSeconds(pid) - before, seconds: round.seconds, faults: opened.faultsOf(round) };
}

/** How many traces the server has: the side that keeps them must, and the other must not. */
async function tracesOf({ server }: StreamServer): Promise<number> {
  const { data } = await server.admin.json<{ data: unknown[] }>("GET", "/admin/v1/traces?limit=100");
  return data.length;
}

/** Microseconds of processor time of a trace as a stream's with four fragments: the fastest of some rounds. */
async function traceAloneUs(): Promise<number> {
  const ring = new TraceRing({ tracesPerTenant: 256, mostBytes: 2 ** 25 });
  const stats = new TraceStats();
  const keep = (trace: EndedTrace): void => {
    ring.add(trace);
    stats.add(trace.head);
  };
  const tracer = new Tracer({ keep });
  const rounds: number[] = [];
  for (let round = 0; round < 20; round++) {
    const start = process.cpuUsage();
    for (let at = 0; at < tracesARound; at++) await streamOf(at, tracer);
    const { user, system } = process.cpuUsage(start);
    rounds.push((user + system) / tracesARound);
  }
  return Math.min(...rounds);
}

const tracesARound = 2_000;
const plan = {};
const spans = Array.from({ length: 4 }, (_, at) => {
  const id = `frag_${String(at).padStart(24, "0")}`;
  return { id, tokens: 128, cachedTokens: 128, cacheWriteTokens: 0, source: "device" } as const;
});
const usage = { promptTokens: 600, completionTokens: 32, cachedTokens: 512, cacheWriteTokens: 64 };
const timings = { queueMs: 1, prefillMs: 2, ttftMs: 3 };
const times = { queueMs: 1, firstTokenMs: 3, totalMs: 90 };
const end = { type: "finished", reason: "length", usage, timings, times, spans, workerId: "worker-0" } as const;

/** What the gateway tells the trace of one streamed answer. */
async function streamOf(at: number, tracer: Tracer): Promise<void> {
  const requestId = `req_${at}`;
  tracer.begin(requestId, undefined);
  const trace = tracer.of(`${requestId}.0`);
  if (trace === undefined) throw new Error("the tracer keeps traces");
  const facts = {
    tenantId: `tenant_${at % 10}`,
    keyId: "key",
    method: "POST",
    route: "/v1/chat/completions",
    status: 200,
  };
  await traced(trace, "retrieval", () => undefined);
  await traced(trace, "lowering", () => undefined);
  const [startMs, run] = [performance.now(), trace.beginRun()];
  trace.ran(run, plan, end, startMs + 3);
  for (const name of ["queue", "prefill", "first_token", "decode"]) {
    trace.span(name, startMs, startMs + 1, {}, false, run);
  }
  trace.describe({ requestId, ...facts });
  trace.leave();
}

function wholeOption({ option }: BenchContext, name: string, byDefault: number, most: number): number {
  const value = Number(option(name) ?? byDefault);
  if (Number.isInteger(value) && value >= 1 && value <= most) return value;
  throw new CommandError(`--${name} is 1 to ${most}`);
}

async function run(context: BenchContext): Promise<BenchReport> {
  const streams = wholeOption(context, "streams", defaultStreams, mostStreams);
  const pairs = wholeOption(context, "pairs", defaultPairs, 1_000);
  const answerTokens = wholeOption(context, "tokens", defaultTokens, 128);
  const plan = { streams, answerTokens };
  await using kept = await openStreamServer(plan);
  await using none = await openStreamServer(plan, { SPANGATE_TRACE_BYTES: "0" });
  for (let index = 0; index < warmUps; index++) for (const side of [kept, none]) await measure(side, streams);
  const measured: { kept: Measured; none: Measured }[] = [];
  for (let index = 0; index < pairs; index++) {
    context.say(`pair ${index + 1} of ${pairs}`);
    const [first, second] = index % 2 === 0 ? [kept, none] : [none, kept];
    const [a, b] = [await measure(first, streams), await measure(second, streams)];
    measured.push(index % 2 === 0 ? { kept: a, none: b } : { kept: b, none: a });
  }
  const ratios = (of: (side: Measured) => number): number[] => measured.map((pair) => of(pair.kept) / of(pair.none));
  const [cpu, clock] = [ratios((side) => side.cpuSeconds), ratios((side) => side.seconds)];
  const faults = measured.flatMap((pair) => [...pair.kept.faults, ...pair.none.faults]);
  const [traces, noTraces] = [await tracesOf(kept), await tracesOf(none)];
  const perRequestMs = (side: "kept" | "none") => median(measured.map((pair) => pair[side].cpuSeconds / streams)) * 1e3;
  const aloneUs = await traceAloneUs();
  const row = (name: string, side: "kept" | "none") => [
    name,
    figure(perRequestMs(side)),
    figure(median(measured.map((pair) => pair[side].seconds))),
  ];
  return {
    model: kept.server.model,
    header: ["", "gateway's CPU ms a stream", "seconds a round"],
    rows: [row("with traces", "kept"), row("without", "none")],
    notes: [
      `${pairs} pairs of rounds of ${streams} streams of ${answerTokens} tokens. Gateway's CPU with traces over without: median ${figure(median(cpu))},`,
      `quartiles ${figure(quantile(cpu, 0.25))} and ${figure(quantile(cpu, 0.75))}; on the clock ${figure(median(clock))}, ${figure(quantile(clock, 0.25))} and ${figure(quantile(clock, 0.75))}.`,
      `A trace alone takes ${figure(aloneUs)} µs of processor time.`,
      ...[...new Set(faults)].slice(0, 5),
    ],
    bars: [
      atMost("seconds of a round with traces over without", median(clock), 1.01),
      atMost("gateway's processor time with traces over without", median(cpu), 1.01),
      atMost("a trace alone over the gateway's time for a stream", aloneUs / 1e3 / perRequestMs("none"), 0.01),
      atMost("streams without their whole answer", faults.length, 0),
      atLeast("traces on the side that keeps them", traces, 1),
      atMost("traces on the other side", noTraces, 0),
    ],
    details: { streams, pairs, answerTokens, cpu, clock, aloneUs },
  };
}

export const tracesBench: Bench = {
  name: "traces",
  summary: "What traces of the last requests cost: streams with them and without, in turn",
  options: {
    streams: `streams at the same time (default ${defaultStreams})`,
    pairs: `rounds of each side (default ${defaultPairs})`,
    tokens: `of each answer (default ${defaultTokens})`,
  },
  run,
};
