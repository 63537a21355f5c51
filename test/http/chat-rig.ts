/** The chat routes over workers in memory that answer with the tokens of the prompt's last run. */

import { z } from "zod";
import { openDb } from "../../db/open.ts";
import { insertTenant } from "../../db/tenants.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import type { RetrievedFragment } from "../../gateway/corpus/search/retrieve.ts";
import type { DispatcherOptions } from "../../gateway/dispatch/dispatcher.ts";
import type { OpenLink } from "../../gateway/dispatch/workers/link.ts";
import { Pipeline } from "../../gateway/generate/pipeline.ts";
import { PromptHistory } from "../../gateway/generate/prompt-history.ts";
import { metered } from "../../gateway/generate/token-metering.ts";
import { countChoice } from "../../gateway/generate/usage-counters.ts";
import { addOpsRoutes } from "../../gateway/http/admin/ops.ts";
import { type AppDeps, addGenerationRoutes, createApp } from "../../gateway/http/app.ts";
import { addMcpRoutes, type McpDeps } from "../../gateway/http/mcp/mcp.ts";
import { ConcurrencyLimiter } from "../../gateway/http/middleware/concurrency.ts";
import type { RateLimitDeps } from "../../gateway/http/middleware/rate-limits.ts";
import { addModelRoutes } from "../../gateway/http/openai/models.ts";
import type { TierUse } from "../../gateway/kv/account.ts";
import { Lowerer } from "../../gateway/lower/plan.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";
import { tracedDispatcher } from "../../gateway/telemetry/traced-dispatcher.ts";
import type { TraceOf, Tracer } from "../../gateway/telemetry/tracer.ts";
import type { Principal, Scope } from "../../gateway/tenant/principal.ts";
import { TenantStorage } from "../../gateway/tenant/storage.ts";
import { StoredResponses } from "../../gateway/tenant/stored-responses.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import type { ModelText } from "../../gateway/text/model-text.ts";
import { type CompileElsewhere, compileIn, Grammars } from "../../gateway/tools/grammars.ts";
import { openThreads } from "../../gateway/tools/open-threads.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import type { SamplingDefaults } from "../../worker/contract/model-card.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { type FakeProcess, fakeLinks } from "../dispatch/fake-link.ts";
import { makeRig } from "../dispatch/rig.ts";
import { models, textSide } from "../text/models.ts";

const principals: Readonly<Record<string, Principal>> = {
  "key-a": { keyId: "k1", tenantId: "tenant_a", scopes: new Set<Scope>(["inference"]) },
  "key-b": { keyId: "k2", tenantId: "tenant_b", scopes: new Set<Scope>(["inference"]) },
  "key-reader": { keyId: "k3", tenantId: "tenant_a", scopes: new Set<Scope>(["corpus:read"]) },
  "key-platform": { keyId: "k4", tenantId: undefined, scopes: new Set<Scope>(["inference", "platform:admin"]) },
};

const fragments = [
  { id: "frag_1", text: "The manager of Anna is Tom.", score: 0.9 },
  { id: "frag_2", text: "Tom lives in Oslo.", score: 0.4 },
].map((fields) => ({
  ...fields,
  corpusId: "vs_1",
  fileId: "file-1",
  filename: "people.md",
  attributes: {},
  salt: "Y29ycHVz",
})) as unknown as readonly RetrievedFragment[];

/** With the principals' tenants, for what is stored under them. */
function tenantsDb() {
  const db = openDb(":memory:");
  for (const id of ["tenant_a", "tenant_b"] as const) {
    insertTenant(db, { id, name: id, createdAt: 0 });
  }
  return db;
}

/** The tenants have no stores but the pipeline's own. */
const noCorpus = {
  corpora: { list: () => ({ rows: [], hasMore: false }) },
  retrieve: () => Promise.reject(new Error("a secret of the server's")),
} as unknown as McpDeps["corpus"];

export interface ChatRigOptions {
  /** false: workers stand still until `processes[i].core.tick()`. */
  readonly ticking?: boolean;
  readonly requestsPerTenant?: number;
  readonly ready?: boolean;
  /** Workers of another make; `ticking` and `ready` mean nothing to them. */
  readonly openLink?: OpenLink;
  readonly rateLimits?: RateLimitDeps;
  /** Bounds of the dispatcher that are other than the rig's. */
  readonly dispatch?: Partial<DispatcherOptions>;
  /** Another than the plain ChatML one. */
  readonly model?: ModelText;
  /** What the model answers, control tokens in it as such; absent: the prompt's last run. */
  readonly answer?: () => string;
  /** Of stored responses; absent: three. */
  readonly retention?: { readonly rows?: number; readonly bytes?: number };
  readonly compileElsewhere?: CompileElsewhere;
  readonly settings?: AppDeps["settings"];
  /** What the model's folder says of sampling; absent: nothing. */
  readonly samplingDefaults?: SamplingDefaults;
  /** Absent: nothing is traced. */
  readonly tracer?: Tracer;
}

/** Shared by all rigs; a thread without work keeps no test from its end. */
const threads = openThreads();

export function chatRig({ ticking = true, requestsPerTenant = 8, ready = true, ...other }: ChatRigOptions = {}) {
  const { processes, openLink } = fakeLinks();
  const workers = makeRig(
    other.openLink ?? (ticking ? tickingLinks(openLink, processes) : openLink),
    ["cpu"],
    other.dispatch,
  );
  workers.supervisor.start(workers.dispatcher);
  if (ready) processes[0]?.ready();
  const model = other.model ?? models.chatml;
  const text = textSide(model);
  const tokenBytes = new TokenBytes(model.tokenizer, text.template.signs);
  const { answer } = other;
  if (answer !== undefined) {
    const encode = (): number[] => [...text.tokenizer.encode([{ kind: "template", text: answer() }], false)];
    for (const process of processes) process.core.answer = encode;
  }
  const used: string[] = [];
  const queries: string[] = [];
  const signals: AbortSignal[] = [];
  const lowerers = new Map<string, Lowerer>();
  const { rateLimits, tracer } = other;
  const traceOf: TraceOf = (workId) => tracer?.of(workId);
  const dispatcher = tracedDispatcher(workers.dispatcher, traceOf);
  const metrics = new Metrics();
  const pipeline = new Pipeline({
    dispatcher: rateLimits === undefined ? dispatcher : metered(dispatcher, rateLimits.limiter),
    traceOf,
    tokenBytes,
    card: () => {
      const card = workers.registry.card();
      return card && { ...card, samplingDefaults: other.samplingDefaults };
    },
    lowererFor: (card) => {
      const lowerer = lowerers.get(card.digest) ?? new Lowerer({ ...text, card, cacheBytes: 100_000 });
      lowerers.set(card.digest, lowerer);
      return lowerer;
    },
    grammars: new Grammars(other.compileElsewhere ?? compileIn(threads)),
    cacheSalt: (tenantId, subdivision) => btoa(`${tenantId}/${subdivision ?? ""}`) as CacheSalt,
    readFiles: () => Promise.reject(new Error("the rig has no files")),
    retrieve: (_tenantId, query, search, signal) => {
      queries.push(query);
      signals.push(signal);
      if (search.vectorStoreIds[0] !== "vs_1") throw new ApiError("not_found", { param: "vector_store_ids" });
      return fragments.slice(0, search.maxResults);
    },
    fragmentsUsed: (ended) => used.push(...ended.map((fragment) => fragment.id)),
    requestMs: 5_000,
    onRunEnd: (tenantId, end, isFirst) => countChoice(metrics, tenantId, end, isFirst),
  });
  const limiter = new ConcurrencyLimiter(requestsPerTenant);
  const log = () => undefined;
  const tiers: TierUse[] = [];
  const state = { draining: false, warming: false, nowMs: Date.now(), storageBytes: null as number | null, tiers };
  const compared = new PromptHistory(1_000);
  const retention = { rows: 3, bytes: 2 ** 30, ...other.retention };
  const db = tenantsDb();
  const storage = new TenantStorage(db, {
    disk: { availableBytes: () => 2 ** 40, availableForSmall: () => 2 ** 40 },
    limitOf: () => state.storageBytes,
    defaultBytes: undefined,
  });
  const stored = new StoredResponses(db, { retention, keepMs: 60_000, nowMs: () => state.nowMs, log, storage });
  const chat = { pipeline, tokenBytes, limiter, metrics, filters: z.unknown(), nowMs: Date.now, log, stored, compared };
  const app = createApp({
    authenticator: { authenticate: (apiKey) => principals[apiKey] },
    routes: [
      (it) => addGenerationRoutes(it, chat),
      (it) => addMcpRoutes(it, { ...chat, corpus: noCorpus, translateError: () => undefined, corsOrigins: [] }),
      (it) => addModelRoutes(it, { card: () => workers.registry.card(), createdMs: 0 }),
      (it) => addOpsRoutes(it, { ...workers, metrics, state, tiers: () => state.tiers }),
    ],
    ...(rateLimits === undefined ? {} : { rateLimits }),
    ...(other.settings === undefined ? {} : { settings: other.settings }),
    metrics,
    log,
    tracer,
  });
  const submits = (): readonly SubmitMessage[] => processes.flatMap((process) => process.submits);
  return {
    app,
    db,
    stored,
    processes,
    limiter,
    used,
    queries,
    signals,
    submits,
    state,
    text: { ...text, tokenBytes },
    ...workers,
  };
}

export type ChatRig = ReturnType<typeof chatRig>;

export const question = { model: "fake-model", messages: [{ role: "user", content: "the thing" }], max_tokens: 4 };

export function post(
  app: ChatRig["app"],
  body: unknown,
  init: { key?: string; signal?: AbortSignal; type?: string; path?: string; headers?: Record<string, string> } = {},
) {
  return app.request(init.path ?? "/v1/chat/completions", {
    method: "POST",
    headers: {
      authorization: `Bearer ${init.key ?? "key-a"}`,
      "content-type": init.type ?? "application/json",
      ...init.headers,
    },
    body: typeof body === "string" || body instanceof Uint8Array ? (body as string) : JSON.stringify(body),
    ...(init.signal === undefined ? {} : { signal: init.signal }),
  });
}

/** Workers that tick after each submit until they have nothing to run. */
export function tickingLinks(openLink: OpenLink, processes: readonly FakeProcess[]): OpenLink {
  return (command, handlers) => {
    const link = openLink(command, handlers);
    const process = processes.at(-1);
    const turn = (): void => {
      if (process === undefined || !process.alive || process.core.runningCount === 0) return;
      process.core.tick();
      setImmediate(turn);
    };
    return {
      ...link,
      send(message) {
        const sent = link.send(message);
        if (message.type === "submit") setImmediate(turn);
        return sent;
      },
    };
  };
}
