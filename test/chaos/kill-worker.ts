/**
 * kill -9 of workers under load, again and again, while clients keep requests of all kinds open. Every request has to
 * end with its whole answer, the same as without a kill, or with `worker_lost`, and none may be silent for long.
 */
import type { HttpClient } from "../../gateway/cli/support/client.ts";
import { Choices } from "../sim/random.ts";
import { testSeed } from "../support/seed.ts";
import type { TestServer } from "../support/server.ts";
import { until as untilSo } from "../support/until.ts";
import { type Outcome, type RequestKind, requestOf, send } from "./requests.ts";

export interface KillPlan {
  readonly times: number;
  /** Requests that are open at the same time. */
  readonly open: number;
  /** How long a worker is left alone, and up to a quarter more. */
  readonly calmMs: number;
  readonly say: (line: string) => void;
}

/** How a request ended, and at how many kills it was open. */
export interface KillOutcome extends Outcome {
  readonly metKills: number;
}

export interface KillReport {
  readonly kills: number;
  readonly outcomes: readonly KillOutcome[];
  /** Requests that were open at a kill, in all. */
  readonly openAtKills: number;
  /** From a kill to the error of each stream that it cut. */
  readonly toldMs: readonly number[];
  /** From a kill to a worker that is ready again. */
  readonly backMs: readonly number[];
}

interface WorkerRow {
  readonly id: string;
  readonly pid: number | null;
  readonly state: string;
  readonly in_flight_requests: number;
}

/** Requests that are told apart: their answers are known before the first kill. */
const kinds = 20;

export async function killWorkers(server: TestServer, plan: KillPlan): Promise<KillReport> {
  const clients = [(await server.tenant("one")).client, (await server.tenant("two")).client];
  const clientOf = (n: number): HttpClient => clients[n % clients.length] ?? server.admin;
  const requests = Array.from({ length: kinds }, (_, n) => requestOf(server.model, n));
  const answers: string[] = [];
  for (const [n, request] of requests.entries()) {
    const { end, text } = await send(clientOf(n), request);
    if (end !== "whole") throw new Error(`${request.kind} before any kill: ${end}`);
    answers.push(text);
  }
  const outcomes: Outcome[] = [];
  const open = new Set<number>();
  let [next, over] = [0, false];
  const askOn = async (): Promise<void> => {
    while (!over) {
      const n = next++;
      open.add(n);
      const at = (n * 7) % kinds;
      const outcome = await send(clientOf(n), requests[at] as RequestKind);
      open.delete(n);
      const isOther = outcome.end === "whole" && outcome.text !== answers[at];
      outcomes.push(isOther ? { ...outcome, end: "another answer" } : outcome);
    }
  };
  const asking = Array.from({ length: plan.open }, askOn);
  const choices = new Choices(testSeed());
  const [kills, backMs]: [number[], number[]] = [[], []];
  let openAtKills = 0;
  for (let kill = 0; kill < plan.times; kill++) {
    await Bun.sleep(plan.calmMs * (1 + choices.next() / 4));
    const victim = await busyWorker(server);
    openAtKills += open.size;
    const killMs = performance.now();
    process.kill(victim, "SIGKILL");
    kills.push(killMs);
    const isBack = async () => (await workersOf(server)).every(({ pid, state }) => pid !== victim && state === "ready");
    await until(isBack, "a worker is ready again");
    backMs.push(performance.now() - killMs);
    if (kill % 10 === 9) plan.say(`${kill + 1} kills, ${outcomes.length} requests ended`);
  }
  // However slow the machine is, work goes on after the last kill.
  const wholeCount = () => outcomes.filter(({ end }) => end === "whole").length;
  const enough = wholeCount() + plan.open;
  await until(() => wholeCount() >= enough, "as many requests end whole as are open");
  over = true;
  await Promise.all(asking);
  const lost = outcomes.filter(({ end }) => end === "worker_lost");
  const toldMs = lost.map(({ endMs }) => endMs - Math.max(...kills.filter((killMs) => killMs <= endMs)));
  const met = ({ startMs, endMs }: Outcome): number =>
    kills.filter((killMs) => killMs >= startMs && killMs <= endMs).length;
  const withKills = outcomes.map((outcome) => ({ ...outcome, metKills: met(outcome) }));
  return { kills: kills.length, outcomes: withKills, openAtKills, toldMs, backMs };
}

async function workersOf(server: TestServer): Promise<readonly WorkerRow[]> {
  return (await server.admin.json<{ data: WorkerRow[] }>("GET", "/admin/v1/workers")).data;
}

/** Pid of the worker with the most requests, once there are any. */
async function busyWorker(server: TestServer): Promise<number> {
  let found: WorkerRow | undefined;
  await until(async () => {
    const rows = await workersOf(server);
    found = rows.toSorted((a, b) => b.in_flight_requests - a.in_flight_requests)[0];
    return found?.pid != null && found.state === "ready" && found.in_flight_requests > 0;
  }, "a worker has requests");
  return found?.pid ?? 0;
}

const longestWaitMs = 60_000;
const until = (condition: () => boolean | Promise<boolean>, what: string) =>
  untilSo(condition, what, longestWaitMs, 10);

/** Ends that are neither a whole answer nor `worker_lost`. */
export const wrongEnds = ({ outcomes }: KillReport): readonly Outcome[] =>
  outcomes.filter(({ end }) => end !== "whole" && end !== "worker_lost");
