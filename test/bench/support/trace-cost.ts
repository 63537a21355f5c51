/**
 * What keeping traces adds to a stream, measured where a hundredth can be seen: three gateways in one process, without
 * sockets and over workers in memory, of which two keep traces and one does not. Batches of streams go to each of them
 * in turns of changing order, and processor time is compared within a turn. What the two that are alike differ by says
 * what the method can tell apart. Two servers in processes of their own differ by more than what is looked for.
 */
import type { EndedTrace } from "../../../gateway/telemetry/ended-trace.ts";
import { TraceRing } from "../../../gateway/telemetry/trace-ring.ts";
import { TraceStats } from "../../../gateway/telemetry/trace-stats.ts";
import { Tracer } from "../../../gateway/telemetry/tracer.ts";
import { type ChatRig, chatRig, post, question } from "../../http/chat-rig.ts";
import { median } from "./stats.ts";

export interface TraceCostPlan {
  /** Of each gateway. */
  readonly turns: number;
  /** Before they count: code is compiled while it runs. */
  readonly warmUpTurns?: number;
  readonly answerTokens: number;
}

/** A median and its 95 % interval, which asks nothing of how values are distributed. */
export interface Measured {
  readonly median: number;
  readonly low: number;
  readonly high: number;
}

export interface TraceCost {
  /** Microseconds of processor time that a stream takes more with traces. */
  readonly addedUs: Measured;
  /** The same between the two that both keep traces. */
  readonly controlUs: Measured;
  /** Traces that were kept by each of the two: all streams'. */
  readonly kept: number;
  readonly streams: number;
}

const streamsATurn = 16;

/** As the server keeps them: the last of each tenant, and sums by time. */
function keeper() {
  const ring = new TraceRing({ tracesPerTenant: 256, mostBytes: 2 ** 25 });
  const stats = new TraceStats();
  const counted = { traces: 0 };
  const keep = (trace: EndedTrace): void => {
    ring.add(trace);
    stats.add(trace.head);
    counted.traces += 1;
  };
  return { counted, tracer: new Tracer({ keep }) };
}

/** Microseconds of processor time for each of some streams at the same time. */
async function streamUs({ app }: ChatRig, answerTokens: number): Promise<number> {
  const body = { ...question, stream: true, max_tokens: answerTokens, min_tokens: answerTokens };
  const start = process.cpuUsage();
  const answers = Array.from({ length: streamsATurn }, async () => {
    const response = await post(app, body);
    const text = await response.text();
    if (!text.endsWith("data: [DONE]\n\n")) throw new Error(`a stream ended with ${text.slice(-200)}`);
  });
  await Promise.all(answers);
  const { user, system } = process.cpuUsage(start);
  return (user + system) / streamsATurn;
}

const orders = [
  [0, 1, 2],
  [2, 1, 0],
  [1, 2, 0],
  [0, 2, 1],
  [2, 0, 1],
  [1, 0, 2],
] as const;

export async function traceCost({ turns, warmUpTurns = 60, answerTokens }: TraceCostPlan): Promise<TraceCost> {
  const keepers = [keeper(), keeper()] as const;
  const rigs = [...keepers.map(({ tracer }) => ({ tracer })), {}].map((options) =>
    chatRig({ ...options, requestsPerTenant: streamsATurn }),
  );
  const added: number[] = [];
  const control: number[] = [];
  for (let turn = -warmUpTurns; turn < turns; turn++) {
    const order = orders[(turn + warmUpTurns) % orders.length] ?? orders[0];
    const took: [number, number, number] = [0, 0, 0];
    for (const index of order) took[index] = await streamUs(rigs[index] as ChatRig, answerTokens);
    if (turn < 0) continue;
    const [first, second, without] = took;
    added.push((first + second) / 2 - without);
    control.push(first - second);
  }
  const kept = Math.min(...keepers.map(({ counted }) => counted.traces));
  const streams = (turns + warmUpTurns) * streamsATurn;
  return { addedUs: measured(added), controlUs: measured(control), kept, streams };
}

/** The interval between the order statistics that hold the median in 95 of 100 samples: np ± 1.96 √(np(1-p)), p = 1/2. */
export function measured(samples: readonly number[]): Measured {
  const sorted = samples.toSorted((a, b) => a - b);
  const half = 0.98 * Math.sqrt(sorted.length);
  const at = (place: number): number =>
    sorted[Math.min(Math.max(Math.round(place), 0), sorted.length - 1)] ?? Number.NaN;
  const middle = (sorted.length - 1) / 2;
  return { median: median(sorted), low: at(middle - half), high: at(middle + half) };
}
