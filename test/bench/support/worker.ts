/** A worker without a gateway: token plans in, tokens and timings out. For figures that are the engine's alone. */
import { join } from "node:path";
import { CommandError } from "../../../gateway/cli/support/command.ts";
import { repositoryRoot } from "../../../gateway/cli/support/setup.ts";
import { rootKey, runBlockKeys } from "../../../worker/contract/block-key.ts";
import { greedySampling } from "../../../worker/contract/greedy-sampling.ts";
import type {
  GatewayMessage,
  GenerateParams,
  RequestTimings,
  RequestUsage,
  TokenPlan,
  WorkerMessage,
  WorkerMessages,
} from "../../../worker/contract/messages.ts";
import type { ModelCard } from "../../../worker/contract/model-card.ts";
import { piped } from "../../../worker/contract/piped-plan.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";

export interface WorkerAnswer {
  readonly tokenIds: readonly number[];
  /** Arrival of each message with tokens, in ms of performance.now(), with how many it brought. */
  readonly arrivals: readonly { readonly atMs: number; readonly count: number }[];
  readonly usage: RequestUsage;
  readonly timings: RequestTimings;
}

interface Pending {
  readonly tokenIds: number[];
  readonly arrivals: { atMs: number; count: number }[];
  readonly resolve: (answer: WorkerAnswer) => void;
  readonly reject: (error: Error) => void;
}

export interface BenchWorker {
  readonly card: ModelCard;
  readonly pid: number;
  generate(plan: TokenPlan, params: GenerateParams, reuse: boolean): Promise<WorkerAnswer>;
  stop(): Promise<void>;
}

/** @param env SPANGATE_MODEL and whatever else worker/config.ts knows. */
export async function startWorker(env: Readonly<Record<string, string>>): Promise<BenchWorker> {
  const pending = new Map<string, Pending>();
  const ready = Promise.withResolvers<ModelCard>();
  const child = Bun.spawn([process.execPath, join(repositoryRoot, "worker", "main.ts")], {
    env: { ...process.env, ORT_DISABLE_TELEMETRY: "1", ...env },
    stdio: ["ignore", 2, 2],
    serialization: "advanced",
    ipc: (messages: WorkerMessages) => {
      for (const message of messages) onMessage(message, pending, ready);
    },
  });
  void child.exited.then((code) => {
    const error = new CommandError(`the worker ended with exit code ${code}`);
    ready.reject(error);
    for (const request of pending.values()) request.reject(error);
  });
  const card = await ready.promise;
  const send = (message: GatewayMessage) => child.send(piped(message));
  return {
    card,
    pid: child.pid,
    generate: (plan, params, reuse) =>
      new Promise((resolve, reject) => {
        const requestId = crypto.randomUUID();
        pending.set(requestId, { tokenIds: [], arrivals: [], resolve, reject });
        send({ type: "submit", requestId, plan, params, reuse });
      }),
    stop: async () => {
      send({ type: "drain" });
      await child.exited;
    },
  };
}

function onMessage(
  message: WorkerMessage,
  pending: Map<string, Pending>,
  ready: PromiseWithResolvers<ModelCard>,
): void {
  if (message.type === "ready") ready.resolve(message.card);
  if (message.type === "fatal") ready.reject(new CommandError(message.message));
  if (!("requestId" in message)) return;
  const request = pending.get(message.requestId);
  if (request === undefined) return;
  if (message.type === "tokens") {
    request.tokenIds.push(...message.tokenIds);
    request.arrivals.push({ atMs: performance.now(), count: message.tokenIds.length });
    return;
  }
  pending.delete(message.requestId);
  if (message.type === "failed") {
    request.reject(new CommandError(`${message.code}: ${message.message}`));
    return;
  }
  const { tokenIds, arrivals } = request;
  request.resolve({ tokenIds, arrivals, usage: message.usage, timings: message.timings });
}

/** A plan of one main chain. */
export function chainPlan(tokenIds: Int32Array, card: Pick<ModelCard, "digest" | "blockTokens">): TokenPlan {
  const root = rootKey(card.digest, "YmVuY2g=" as CacheSalt, "main");
  const blockKeys = runBlockKeys(root, tokenIds, card.blockTokens, false);
  return { runs: [{ kind: "main", tokenIds, position: 0, sees: [], blockKeys, rootKey: root }] };
}

/** Greedy, exactly `maxTokens` tokens. */
export function greedyParams(maxTokens: number): GenerateParams {
  return {
    maxTokens,
    minTokens: 0,
    ignoreEos: true,
    stopTokenIds: [],
    sampling: greedySampling,
  };
}
