/** One of the workers gets SIGKILL while all of them stream: who notices, and how. */
import type { HttpClient } from "../../gateway/cli/support/client.ts";
import { allReady, workersOf } from "../support/operator.ts";
import type { TestServer } from "../support/server.ts";
import { until } from "../support/until.ts";
import { assertThat } from "./report.ts";

const streamCount = 8;

interface Outcome {
  readonly chunks: number;
  /** Finish reason, or the error's code. */
  readonly end: string;
  /** Who answered, if it was told. */
  readonly worker: string;
}

interface Chunk {
  readonly spangate?: { readonly worker: string };
  readonly error?: { readonly code: string };
  readonly choices?: readonly {
    readonly delta: { readonly content?: string | null };
    readonly finish_reason?: string;
  }[];
}

class Streams {
  /** Streams of which something was seen. */
  begun = 0;
  readonly #client: HttpClient;
  readonly #model: string;

  constructor(client: HttpClient, model: string) {
    this.#client = client;
    this.#model = model;
  }

  async run(content: string, maxTokens: number): Promise<Outcome> {
    const body = {
      model: this.#model,
      messages: [{ role: "user", content }],
      max_tokens: maxTokens,
      ignore_eos: true,
      stream: true,
      stream_options: { include_usage: true },
    };
    let [chunks, end, worker] = [0, "nothing", ""];
    for await (const { data } of this.#client.events("POST", "/v1/chat/completions", body)) {
      if (data === "[DONE]") break;
      const { error, choices, spangate } = JSON.parse(data) as Chunk;
      const [choice] = choices ?? [];
      if (choice?.delta.content && chunks++ === 0) this.begun += 1;
      end = error?.code ?? choice?.finish_reason ?? end;
      worker = spangate?.worker ?? worker;
    }
    return { chunks, end, worker };
  }
}

/** @returns a line of what was seen. @throws Error when it is not as promised */
export async function killUnderLoad(server: TestServer, answerTokens: number): Promise<string> {
  const { client } = await server.tenant("kill");
  const streams = new Streams(client, server.model);
  const long = Array.from({ length: streamCount }, (_, n) => streams.run(`Tell me all about ${n}.`, answerTokens));
  await until(() => streams.begun === streamCount, "every stream has begun", 60_000);
  const before = await workersOf(server);
  const [victim, ...others] = before;
  assertThat(victim?.pid != null && before.every((worker) => worker.in_flight_requests > 0), JSON.stringify(before));
  const killMs = performance.now();
  process.kill(victim?.pid ?? 0, "SIGKILL");
  // Some of these are sent to the worker before its end is known; nothing of them was seen, so they start again.
  const fresh = await Promise.all(Array.from({ length: streamCount }, (_, n) => streams.run(`And what of ${n}?`, 16)));
  const freshMs = performance.now() - killMs;
  assertThat(
    fresh.every(({ end }) => end === "length"),
    `requests after the kill: ${JSON.stringify(fresh)}`,
  );
  const outcomes = await Promise.all(long);
  const lost = outcomes.filter(({ end }) => end === "worker_lost").length;
  const whole = outcomes.filter(({ end, chunks }) => end === "length" && chunks > 0).length;
  assertThat(lost === victim?.in_flight_requests && lost + whole === streamCount, JSON.stringify(outcomes));
  await allReady(server, before.length);
  const backMs = performance.now() - killMs;
  const after = await workersOf(server);
  assertThat(after[0]?.restarts === 1 && after[0].pid !== victim?.pid, JSON.stringify(after));
  assertThat(
    others.every(({ pid }, index) => after[index + 1]?.pid === pid),
    JSON.stringify(after),
  );
  const again = await Promise.all(Array.from({ length: 12 }, (_, n) => streams.run(`Once more, ${n}.`, 64)));
  const byVictim = again.filter(({ end, worker }) => end === "length" && worker === victim?.id).length;
  assertThat(byVictim > 0 && again.every(({ end }) => end === "length"), JSON.stringify(again));
  return [
    `${lost} streams of ${victim?.id} ended with worker_lost, ${whole} of the others whole`,
    `${fresh.length} requests sent at the kill answered within ${freshMs.toFixed(0)} ms`,
    `${victim?.id} ready again after ${backMs.toFixed(0)} ms, and answers ${byVictim} of the next ${again.length}`,
  ].join("; ");
}
