/**
 * What a worker does, without a model: keeps block keys, answers each request with the tokens of its last run,
 * one a tick. The same core runs in a process (fake-worker.ts) and in memory (fake-link.ts).
 */
import type {
  GatewayMessage,
  PlanRun,
  SubmitMessage,
  WorkerMessage,
  WorkerStats,
} from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { type PipedMessage, planOfPiped } from "../../worker/contract/piped-plan.ts";
import type { BlockKey } from "../../worker/contract/units.ts";

export const fakeCard: ModelCard = {
  id: "fake-model",
  digest: "fa".repeat(32),
  vocabSize: 512,
  contextTokens: 2048,
  blockTokens: 16,
  blockCount: 1024,
  kvBytesPerBlock: 4096,
  eosTokenIds: [2],
  numericMode: "float32",
  backend: "fake",
};

export const fakeStats: WorkerStats = {
  ...{ queriedTokens: 10, hitTokens: 5, lackedTokens: 5, broughtTokens: 2, computedTokens: 5, generatedTokens: 1 },
  ...{ preemptions: 0, evictedBlocks: 0, steps: 1, runningRequests: 0, waitingRequests: 0 },
  ...{ usedBlocks: 0, cachedBlocks: 0, freeBlocks: fakeCard.blockCount, residentBytes: 1, tiers: [] },
};

/** A message as it was before it went through the pipe. */
export function unpiped(message: PipedMessage): GatewayMessage {
  if (message.type !== "submit") return message;
  const plan = planOfPiped(message.plan);
  if (plan === undefined) throw new Error("the plan's numbers do not fit together");
  return { ...message, plan };
}

export class FakeCore {
  readonly received: GatewayMessage[] = [];
  /** Tokens of whole answers, instead of the last run's: such an answer ends by itself. */
  answer: ((submit: SubmitMessage) => readonly number[]) | undefined;
  readonly #send: (message: WorkerMessage) => void;
  readonly #resident = new Set<BlockKey>();
  readonly #running = new Map<string, { submit: SubmitMessage; emitted: number }>();
  #sequence = 0;
  #draining = false;

  constructor(send: (message: WorkerMessage) => void) {
    this.#send = send;
  }

  get runningCount(): number {
    return this.#running.size;
  }

  receive(message: GatewayMessage): void {
    this.received.push(message);
    if (message.type === "submit") this.#running.set(message.requestId, { submit: message, emitted: 0 });
    if (message.type === "abort") this.#finish(message.requestId, "abort");
    if (message.type === "evict") this.#remove(message.blockKeys);
    if (message.type === "drain") this.#draining = true;
    if (message.type === "stats") this.#send({ type: "stats", id: message.id, stats: this.#stats() });
  }

  /** One token for every running request. False when it has drained and may exit. */
  tick(): boolean {
    for (const [requestId, state] of this.#running) {
      const { params, plan } = state.submit;
      const answer = this.answer?.(state.submit);
      const source = answer ?? plan.runs.at(-1)?.tokenIds ?? new Int32Array(0);
      if (state.emitted >= params.maxTokens) {
        this.#finish(requestId, params.maxTokens === 0 ? "prepared" : "length");
        continue;
      }
      const tokenId = source[state.emitted % Math.max(1, source.length)] ?? 0;
      state.emitted += 1;
      const { topLogprobs } = params.sampling;
      const top = Array.from({ length: topLogprobs }, (_, i) => [tokenId + i, -0.5 - i] as const);
      const logprobs = topLogprobs < 0 ? {} : { logprobs: [{ tokenId, logprob: -0.5, top }] };
      this.#send({ type: "tokens", requestId, tokenIds: [tokenId], ...logprobs });
      if (state.emitted === answer?.length) this.#finish(requestId, "stop");
      else if (state.emitted >= params.maxTokens) this.#finish(requestId, "length");
    }
    return !(this.#draining && this.#running.size === 0);
  }

  #finish(requestId: string, reason: "stop" | "length" | "abort" | "prepared"): void {
    const state = this.#running.get(requestId);
    if (state === undefined) return;
    this.#running.delete(requestId);
    const { plan, reuse } = state.submit;
    const spans = plan.runs
      .filter((run) => run.kind === "span")
      .map((run) => {
        const lastKey = run.blockKeys.at(-1);
        const held = reuse && lastKey !== undefined && this.#resident.has(lastKey);
        const source = held ? ("device" as const) : ("computed" as const);
        const tokens = run.tokenIds.length;
        const [cachedTokens, cacheWriteTokens] = held ? [tokens, 0] : [0, reuse ? tokens : 0];
        return { id: run.spanId ?? "", tokens, source, cachedTokens, cacheWriteTokens };
      });
    const foundTokens = plan.runs.map((run) => (run.kind === "span" && reuse ? this.#foundTokens(run) : 0));
    const promptTokens = plan.runs.reduce((sum, run) => sum + run.tokenIds.length, 0);
    const cachedTokens = spans.reduce((sum, span) => sum + (span.source === "device" ? span.tokens : 0), 0);
    if (reuse) for (const run of plan.runs) this.#store(run);
    this.#send({
      type: "finished",
      requestId,
      reason,
      usage: {
        promptTokens,
        completionTokens: state.emitted,
        cachedTokens,
        cacheWriteTokens: promptTokens - cachedTokens,
      },
      timings: { queueMs: 1, prefillMs: 2, ttftMs: 3 },
      spans,
      ...(state.submit.tellFound === true ? { foundTokens } : {}),
    });
  }

  #foundTokens({ blockKeys, tokenIds }: PlanRun): number {
    const lastKey = blockKeys.at(-1);
    return lastKey !== undefined && this.#resident.has(lastKey) ? tokenIds.length : 0;
  }

  #store({ blockKeys, rootKey, tokenIds }: PlanRun): void {
    const { blockTokens } = fakeCard;
    const previousKeys = [rootKey, ...blockKeys].slice(0, blockKeys.length);
    const tokenCounts = blockKeys.map((_, index) => Math.min(blockTokens, tokenIds.length - index * blockTokens));
    for (const key of blockKeys) this.#resident.add(key);
    this.#sequence += 1;
    const event = { sequence: this.#sequence, type: "stored", blockKeys, previousKeys, tokenCounts } as const;
    this.#send({ type: "kv", events: [event] });
  }

  #remove(blockKeys: readonly BlockKey[]): void {
    const gone = blockKeys.filter((key) => this.#resident.delete(key));
    if (gone.length === 0) return;
    this.#sequence += 1;
    this.#send({ type: "kv", events: [{ sequence: this.#sequence, type: "removed", blockKeys: gone }] });
  }

  #stats(): WorkerStats {
    const held = this.#resident.size;
    const running = this.#running.size;
    return { ...fakeStats, runningRequests: running, cachedBlocks: held, freeBlocks: fakeCard.blockCount - held };
  }
}
