/** The query routes over workers in memory: the real engine over a backend whose tokens depend on all that they see. */

import { ApiError } from "../../gateway/base/errors.ts";
import { attributeFilterSchema } from "../../gateway/corpus/search/filters.ts";
import type { OpenLink } from "../../gateway/dispatch/workers/link.ts";
import { QueryService } from "../../gateway/execute/query-service.ts";
import type { FoundFragment, Search } from "../../gateway/execute/resolve.ts";
import { createApp } from "../../gateway/http/app.ts";
import { ConcurrencyLimiter } from "../../gateway/http/middleware/concurrency.ts";
import { addQueryRoutes } from "../../gateway/http/query/query.ts";
import { Lowerer } from "../../gateway/lower/plan.ts";
import { QueryLowerer } from "../../gateway/lower/query-lowerer.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";
import type { Principal, Scope } from "../../gateway/tenant/principal.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import type { ModelText } from "../../gateway/text/model-text.ts";
import type { GatewayMessage, SubmitMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { engineCard, engineLink } from "../contract/engine-link.ts";
import { makeRig } from "../dispatch/rig.ts";
import { models, textSide } from "../text/models.ts";

const principals: Readonly<Record<string, Principal>> = {
  "key-a": { keyId: "k1", tenantId: "tenant_a", scopes: new Set<Scope>(["inference"]) },
  "key-b": { keyId: "k2", tenantId: "tenant_b", scopes: new Set<Scope>(["inference"]) },
  "key-preparer": { keyId: "k3", tenantId: "tenant_a", scopes: new Set<Scope>(["corpus:prepare"]) },
  "key-reader": { keyId: "k4", tenantId: "tenant_a", scopes: new Set<Scope>(["corpus:read"]) },
};

/** Of tenant_a alone. */
export const storedFragments = [
  { id: "frag_1", text: "The manager of Anna is Tom." },
  { id: "frag_2", text: "Tom lives in Oslo." },
  { id: "frag_3", text: "Oslo is a town by the sea." },
].map((fields) => ({ ...fields, salt: "Y29ycHVz" })) as unknown as readonly FoundFragment[];

export interface QueryRigOptions {
  readonly openLink?: OpenLink;
  readonly requestsPerTenant?: number;
  readonly reduceArity?: number;
  readonly devices?: readonly string[];
  /** Another than the plain ChatML one. */
  readonly model?: ModelText;
  /** After so long a stream begins without its first event; an error that comes later has no status of its own. */
  readonly firstEventMs?: number;
  /** Called with the signal of each search. */
  readonly onSearch?: (signal: AbortSignal) => void;
}

export function queryRig(options: QueryRigOptions = {}) {
  const { openLink = engineLink, requestsPerTenant = 8, reduceArity, devices = ["cpu"], firstEventMs = 20 } = options;
  const { model = models.chatml } = options;
  const traffic: Traffic[] = [];
  const workers = makeRig(recording(openLink, traffic), devices);
  workers.supervisor.start(workers.dispatcher);
  const text = textSide(model);
  const tokenBytes = new TokenBytes(model.tokenizer, text.template.signs);
  const searches: Search[] = [];
  const used: string[] = [];
  const lowererOf = (card: ModelCard) => {
    const spans = new Lowerer({ ...text, card, cacheBytes: 100_000 });
    return new QueryLowerer({ ...text, card, spans, cacheBytes: 100_000 });
  };
  const lowerer = lowererOf(engineCard);
  const queries = new QueryService({
    dispatcher: workers.dispatcher,
    tokenBytes,
    card: () => workers.registry.card(),
    lowererFor: (card) => (card.digest === engineCard.digest ? lowerer : lowererOf(card)),
    cacheSalt: (tenantId) => btoa(tenantId) as CacheSalt,
    retrieve: (tenantId, search, signal) => {
      searches.push(search);
      options.onSearch?.(signal);
      if (tenantId === "tenant_a" && search.vectorStoreIds[0] === "vs_1") {
        return storedFragments.slice(0, search.maxResults);
      }
      throw new ApiError("not_found", { param: "vector_store_ids", message: "No such vector store." });
    },
    fragments: (tenantId, ids) =>
      ids.map((id) => (tenantId === "tenant_a" ? storedFragments.find((one) => one.id === id) : undefined)),
    fragmentsUsed: (fragments) => used.push(...fragments.map(({ id }) => id)),
    countTokens: (part) => text.tokenizer.countTokens(part),
    filters: attributeFilterSchema,
    residents: (run, blockTokens) => {
      const cachedTokens = workers.residency.cachedTokens("worker-0", [run], blockTokens);
      return { worker: cachedTokens > 0 ? "worker-0" : "", cachedTokens };
    },
    reduceArity,
  });
  const limiter = new ConcurrencyLimiter(requestsPerTenant);
  const metrics = new Metrics();
  const log = () => undefined;
  const app = createApp({
    authenticator: { authenticate: (apiKey) => principals[apiKey] },
    routes: [(it) => addQueryRoutes(it, { queries, limiter, metrics, nowMs: Date.now, log, firstEventMs })],
    metrics,
    log,
  });
  return { app, queries, limiter, metrics, searches, used, text, lowerer, ...workers, ...readingOf(traffic) };
}

/** A message to a worker or from one, in the order they went. */
interface Traffic {
  readonly worker: number;
  readonly sent?: GatewayMessage;
  readonly got?: WorkerMessage;
}

function readingOf(traffic: readonly Traffic[]) {
  const submits = (): readonly SubmitMessage[] =>
    traffic.flatMap(({ sent }) => (sent?.type === "submit" ? [sent] : []));
  return {
    submits,
    aborts: (): readonly string[] => traffic.flatMap(({ sent }) => (sent?.type === "abort" ? [sent.requestId] : [])),
    /** Tokens that the worker gave for a request. */
    tokensOf: (requestId: string): readonly number[] =>
      traffic.flatMap(({ got }) => (got?.type === "tokens" && got.requestId === requestId ? got.tokenIds : [])),
    /** Workers that requests went to. */
    workersSent: (): readonly number[] =>
      traffic.flatMap(({ sent, worker }) => (sent?.type === "submit" ? [worker] : [])),
  };
}

export type QueryRig = ReturnType<typeof queryRig>;

/** A rig whose worker is ready. */
export async function readyRig(options: QueryRigOptions = {}): Promise<QueryRig> {
  const rig = queryRig(options);
  await rig.supervisor.firstReady();
  return rig;
}

export interface PostOptions {
  readonly key?: string;
  readonly type?: string;
  readonly signal?: AbortSignal;
}

export function post(rig: Pick<QueryRig, "app">, path: string, query: unknown, options: PostOptions = {}) {
  return rig.app.request(`/v1/query/${path}`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${options.key ?? "key-a"}`,
      "content-type": options.type ?? "application/json",
    },
    body: typeof query === "string" || query instanceof Uint8Array ? (query as string) : JSON.stringify(query),
    ...(options.signal === undefined ? {} : { signal: options.signal }),
  });
}

export interface QueryAnswer {
  readonly object: string;
  readonly model: string;
  readonly choices: readonly {
    readonly index: number;
    readonly text?: string;
    readonly message?: { readonly content: string; readonly reasoning_content?: string };
    readonly reasoning_content?: string;
    readonly finish_reason: string;
  }[];
  readonly usage: {
    readonly prompt_tokens: number;
    readonly completion_tokens: number;
    readonly total_tokens: number;
    readonly completion_tokens_details: { readonly reasoning_tokens: number };
    readonly prompt_tokens_details: { readonly cached_tokens: number; readonly cache_write_tokens: number };
  };
  readonly spangate: {
    readonly request_id: string;
    readonly worker: string;
    readonly spans: readonly { readonly id: string; readonly tokens: number; readonly source: string }[];
    readonly generates: readonly {
      readonly path: string;
      readonly index: number;
      readonly prompt_tokens: number;
      readonly completion_tokens: number;
      readonly cached_tokens: number;
      readonly finish_reason: string;
    }[];
    readonly prepared: { readonly tokens: number; readonly computed_tokens: number };
    readonly blend?: { readonly tokens: number; readonly recomputed_tokens: number };
  };
}

interface ErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string;
  };
}

export async function refusalOf(response: Response | Promise<Response>) {
  const answer = await response;
  const { error } = (await answer.json()) as ErrorBody;
  return { status: answer.status, ...error };
}

/** Executes a query that must go well. */
export async function ask(rig: QueryRig, query: unknown, search = "", key = "key-a"): Promise<QueryAnswer> {
  const response = await post(rig, `execute${search}`, query, { key });
  const body: unknown = await response.json();
  if (response.status !== 200) throw new Error(`${response.status}: ${JSON.stringify(body)}`);
  return body as QueryAnswer;
}

function recording(openLink: OpenLink, traffic: Traffic[]): OpenLink {
  let count = 0;
  return (command, handlers) => {
    const worker = count++;
    const link = openLink(command, {
      onMessage: (got) => {
        traffic.push({ worker, got });
        handlers.onMessage(got);
      },
      onExit: (exit) => handlers.onExit(exit),
    });
    return {
      ...link,
      send(sent) {
        traffic.push({ worker, sent });
        return link.send(sent);
      },
    };
  };
}
