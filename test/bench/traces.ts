/**
 * What traces of the last requests cost: what keeping them adds to a stream (`support/trace-cost.ts`), over what a stream
 * takes of the gateway's processor time in `bench streams`, with traces kept as a server keeps them. A gateway without
 * sockets has none of what makes two rounds of a server differ by more than a hundredth.
 */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { mostStreams, openStreamServer, type StreamServer } from "../chaos/streams.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { processSeconds } from "./support/hardware.ts";
import { figure, median } from "./support/stats.ts";
import { type Measured, traceCost } from "./support/trace-cost.ts";

const [defaultStreams, defaultRounds, defaultTurns, defaultTokens] = [400, 4, 2_000, 32];
const warmUps = 2;

/** What traces may take of a stream's processor time, and what the method must be able to tell apart. */
const [mostShare, mostControl] = [0.01, 0.003];

interface ServerRounds {
  /** Milliseconds of the gateway's processor time for a stream, in each round. */
  readonly streamMs: readonly number[];
  readonly faults: readonly string[];
  readonly model: string;
  readonly traces: number;
}

/** Streams of a server with its workers, which keeps traces. */
async function serverRounds(streams: number, rounds: number, answerTokens: number): Promise<ServerRounds> {
  await using opened = await openStreamServer({ streams, answerTokens });
  const { pid } = opened.server.process;
  const streamMs: number[] = [];
  const faults: string[] = [];
  for (let index = -warmUps; index < rounds; index++) {
    const before = processSeconds(pid);
    const round = await opened.round(streams);
    faults.push(...opened.faultsOf(round));
    if (index >= 0) streamMs.push(((processSeconds(pid) - before) * 1e3) / streams);
  }
  return { streamMs, faults, model: opened.server.model, traces: await tracesOf(opened) };
}

async function tracesOf({ server }: StreamServer): Promise<number> {
  const { data } = await server.admin.json<{ data: unknown[] }>("GET", "/admin/v1/traces?limit=100");
  return data.length;
}

function wholeOption({ option }: BenchContext, name: string, byDefault: number, most: number): number {
  const value = Number(option(name) ?? byDefault);
  if (Number.isInteger(value) && value >= 1 && value <= most) return value;
  throw new CommandError(`--${name} is 1 to ${most}`);
}

async function run(context: BenchContext): Promise<BenchReport> {
  const streams = wholeOption(context, "streams", defaultStreams, mostStreams);
  const rounds = wholeOption(context, "rounds", defaultRounds, 1_000);
  const turns = wholeOption(context, "turns", defaultTurns, 1_000_000);
  const answerTokens = wholeOption(context, "tokens", defaultTokens, 128);
  context.say("streams of a server");
  const server = await serverRounds(streams, rounds, answerTokens);
  context.say("streams with traces and without, in turns");
  const { addedUs, controlUs, ...counts } = await traceCost({ turns, answerTokens });
  const streamUs = median(server.streamMs) * 1e3;
  const row = (name: string, { median: middle, low, high }: Measured) => [
    name,
    `${figure(middle)} (${figure(low)} to ${figure(high)})`,
    [middle, low, high].map((us) => figure((us / streamUs) * 100)).join(" | "),
  ];
  return {
    model: server.model,
    header: ["", "CPU µs a stream, median and its 95 % interval", "% of a server's: median | low | high"],
    rows: [row("with traces less without", addedUs), row("with traces less with traces", controlUs)],
    notes: [
      `A server's gateway takes ${figure(streamUs)} µs for a stream of ${answerTokens} tokens: ${rounds} rounds of ${streams}, with traces.`,
      `Differences are of ${turns} turns of three gateways in one process, two that keep traces and one that does not.`,
      ...[...new Set(server.faults)].slice(0, 5),
    ],
    bars: [
      atMost("what traces add over the gateway's time for a stream", addedUs.median / streamUs, mostShare),
      atMost("what two that keep traces differ by, the same way", Math.abs(controlUs.median) / streamUs, mostControl),
      atMost("half of that difference's interval", (controlUs.high - controlUs.low) / 2 / streamUs, mostControl),
      atMost("streams without their whole answer", server.faults.length, 0),
      atLeast("traces that the server has", server.traces, 1),
      atMost("streams without a trace where traces are kept", counts.streams - counts.kept, 0),
    ],
    details: { streams, rounds, turns, answerTokens, streamMs: server.streamMs, addedUs, controlUs },
  };
}

export const tracesBench: Bench = {
  name: "traces",
  summary: "What traces of the last requests cost: streams with them and without, in turn",
  options: {
    streams: `N  streams of a server at the same time (default ${defaultStreams})`,
    rounds: `N  times over (default ${defaultRounds})`,
    turns: `N  turns of batches with traces and without (default ${defaultTurns})`,
    tokens: `N  tokens of each answer (default ${defaultTokens})`,
  },
  run,
};
