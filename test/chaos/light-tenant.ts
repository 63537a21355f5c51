/**
 * One tenant asks once a second, first alone, then beside another for which a hundred times as many requests are due, of
 * which it sends as many as are answered in time: what that does to the first one's times and to what is found of its prompts. Both ask about documents of their own, in a pool that the other's
 * documents fill several times over.
 */
import { askChat } from "../../gateway/cli/support/operations.ts";
import { fillerWords, SpanTexts } from "../bench/support/prompts.ts";
import { openStream } from "../bench/support/raw-streams.ts";
import { randomNumbers } from "../bench/support/reuse-order.ts";
import { poolOf } from "../bench/support/worker-stats.ts";
import { startTestServer, type TestServer, type TestServerOptions, type TestTenant } from "../support/server.ts";

export interface LightTenantPlan {
  /** Of the light tenant in each of both parts. */
  readonly requests: number;
  readonly requestMs: number;
  /** Requests of the heavy tenant that are due for each of the light one's. */
  readonly times: number;
  /** Requests of the heavy tenant that are open at the same time, at most. */
  readonly heavyAtOnce?: number;
  /** Documents of the light tenant, on which the pool's size depends. */
  readonly documents?: number;
  readonly server?: Pick<TestServerOptions, "model">;
  readonly say: (line: string) => void;
}

export interface LightAnswer {
  readonly ttftMs: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
}

export interface LightTenantReport {
  readonly model: string;
  readonly alone: readonly LightAnswer[];
  readonly beside: readonly LightAnswer[];
  /** The heavy tenant's requests by HTTP status, and those that it did not send since too many were open. */
  readonly heavy: ReadonlyMap<number | "not sent", number>;
}

const documentTokens = 128;
const documentsPerRequest = 2;
const answerTokens = 16;
const heavyDocuments = 400;
/** The heavy tenant's texts begin here. */
const heavySeed = 1_000;
/** In tokens of the light tenant's documents. */
const poolShare = 5;
/** Requests of the heavy tenant that are open at the same time unless the plan says another number: what is due beyond them is not sent. */
export const heavyAtOnce = 250;
const rampMs = 5_000;

export async function lightBesideHeavy(plan: LightTenantPlan): Promise<LightTenantReport> {
  const { documents = 40 } = plan;
  const { kvBytes } = await poolOf(poolShare * documents * documentTokens, plan.server);
  await using server = await startTestServer({ ...plan.server, env: { SPANGATE_KV_BYTES: String(kvBytes) } });
  const asker = new Asker(server);
  const askLight = () => asker.ask(light, asker.draw(documents));
  const [light, heavy] = [await server.tenant("light"), await server.tenant("heavy")];
  // Everything it has is in the pool before it counts.
  for (let index = 0; index < 2 * documents; index++) await asker.ask(light, [index % documents]);
  plan.say(`${plan.requests} requests alone`);
  const alone = await atPace(plan, askLight);
  const { requestMs, times, heavyAtOnce: atOnce = heavyAtOnce } = plan;
  const load = new HeavyLoad(asker, heavy, { requestMs: requestMs / times, atOnce });
  await Bun.sleep(Math.min(rampMs, 2 * plan.requestMs));
  plan.say(`${plan.requests} requests beside ${plan.times} times as many that are due`);
  const beside = await atPace(plan, askLight);
  return { model: server.model, alone, beside, heavy: await load.stop() };
}

/** Sends at fixed times, whether or not the one before has ended. */
async function atPace({ requests, requestMs }: LightTenantPlan, ask: () => Promise<LightAnswer>) {
  const startMs = performance.now();
  const answers: Promise<LightAnswer>[] = [];
  for (let index = 0; index < requests; index++) {
    await Bun.sleep(Math.max(0, startMs + index * requestMs - performance.now()));
    answers.push(ask());
  }
  return await Promise.all(answers);
}

class Asker {
  readonly #server: TestServer;
  readonly #texts = new SpanTexts();
  readonly #random = randomNumbers(3);
  readonly #documents = new Map<number, string>();
  #asked = 0;

  constructor(server: TestServer) {
    this.#server = server;
  }

  async ask({ client }: TestTenant, ids: readonly number[]): Promise<LightAnswer> {
    const { usage, clientTtftMs: ttftMs } = await askChat(client, this.#body(ids));
    const { prompt_tokens: promptTokens, prompt_tokens_details: details } = usage;
    return { ttftMs, promptTokens, cachedTokens: details.cached_tokens };
  }

  /** @returns the status */
  async askRaw({ apiKey }: TestTenant): Promise<number> {
    const ids = this.draw(heavyDocuments).map((id) => heavySeed + id);
    const body = { ...this.#body(ids), stream: true };
    const request = { apiKey, path: "/v1/chat/completions", body };
    return (await openStream(this.#server.url, request, () => undefined)).status;
  }

  /** Different documents by chance. */
  draw(count: number): readonly number[] {
    const drawn = new Set<number>();
    while (drawn.size < documentsPerRequest) drawn.add(Math.floor(this.#random() * count));
    return [...drawn];
  }

  /** A question that was never asked, over these documents. */
  #body(ids: readonly number[]) {
    this.#asked += 1;
    const documents = ids.map((id) => {
      const text = this.#documents.get(id) ?? this.#texts.textOf(documentTokens, 60_000 + id);
      this.#documents.set(id, text);
      return { text };
    });
    return {
      model: this.#server.model,
      messages: [{ role: "user", content: fillerWords(3_000_000 + this.#asked, 12).join(" ") }],
      documents,
      temperature: 0,
      max_tokens: answerTokens,
      min_tokens: answerTokens,
      ignore_eos: true,
    };
  }
}

/** Sends from now on. */
class HeavyLoad {
  readonly #statuses = new Map<number | "not sent", number>();
  readonly #open = new Set<Promise<void>>();
  readonly #timer: ReturnType<typeof setInterval>;
  readonly #startMs = performance.now();
  #sent = 0;

  constructor(asker: Asker, tenant: TestTenant, { requestMs, atOnce }: { requestMs: number; atOnce: number }) {
    this.#timer = setInterval(() => {
      // As many as are due: timers come late on a machine at its limit.
      for (; this.#sent < (performance.now() - this.#startMs) / requestMs; this.#sent++) {
        if (this.#open.size >= atOnce) this.#count("not sent");
        else this.#send(asker, tenant);
      }
    }, requestMs);
  }

  async stop(): Promise<ReadonlyMap<number | "not sent", number>> {
    clearInterval(this.#timer);
    await Promise.all(this.#open);
    return this.#statuses;
  }

  #send(asker: Asker, tenant: TestTenant): void {
    const open = asker.askRaw(tenant).then((status) => {
      this.#open.delete(open);
      this.#count(status);
    });
    this.#open.add(open);
  }

  #count(status: number | "not sent"): void {
    this.#statuses.set(status, (this.#statuses.get(status) ?? 0) + 1);
  }
}

/** Part of the prompts' tokens that was found. */
export function hitRate(answers: readonly LightAnswer[]): number {
  const sum = (field: keyof LightAnswer): number => answers.reduce((total, answer) => total + answer[field], 0);
  return sum("cachedTokens") / sum("promptTokens");
}
