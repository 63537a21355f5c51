/** The app that answers HTTP: every route with what it needs. */
import type { Hono } from "hono";
import { DbError } from "../../db/errors.ts";
import type { TenantId } from "../../db/ids.ts";
import { version } from "../../package.json";
import { ApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { BatchService } from "../batches/service.ts";
import { type Config, limits } from "../config.ts";
import type { Corpus } from "../corpus/corpus.ts";
import type { AttributeFilter } from "../corpus/search/attribute-filter.ts";
import { attributeFilterSchema } from "../corpus/search/filters.ts";
import type { EmbeddingService } from "../embedding/embedding-service.ts";
import type { EndEvent } from "../generate/events.ts";
import { Pipeline, type PipelineDeps } from "../generate/pipeline.ts";
import { PromptHistory } from "../generate/prompt-history.ts";
import { embedderMeter, metered } from "../generate/token-metering.ts";
import { countChoice } from "../generate/usage-counters.ts";
import { addCacheRoutes } from "../http/admin/cache.ts";
import { addCacheEventRoutes } from "../http/admin/cache-events.ts";
import { addGrantRoutes } from "../http/admin/grants.ts";
import { addOpsRoutes } from "../http/admin/ops.ts";
import { addPrepareRoutes } from "../http/admin/prepare.ts";
import { addSourceRoutes } from "../http/admin/sources.ts";
import { addLimitRoutes } from "../http/admin/tenant-limits.ts";
import { addTenantRoutes } from "../http/admin/tenants.ts";
import { addTraceRoutes } from "../http/admin/traces.ts";
import { addMessageBatchRoutes } from "../http/anthropic/message-batches.ts";
import { addGenerationRoutes, createApp } from "../http/app.ts";
import { addConsoleRoutes } from "../http/console/console.ts";
import { addSessionRoutes } from "../http/console/session.ts";
import { addMcpRoutes } from "../http/mcp/mcp.ts";
import { ConcurrencyLimiter } from "../http/middleware/concurrency.ts";
import type { ConsoleDoor } from "../http/middleware/console-door.ts";
import { addBatchRoutes } from "../http/openai/batches.ts";
import { addEmbeddingRoutes } from "../http/openai/embeddings.ts";
import { addFileBatchRoutes } from "../http/openai/file-batches.ts";
import { addFileRoutes } from "../http/openai/files.ts";
import { addModelRoutes, type ModelsDeps } from "../http/openai/models.ts";
import { addUploadRoutes } from "../http/openai/uploads.ts";
import { addVectorStoreFileRoutes } from "../http/openai/vector-store-files.ts";
import { addVectorStoreRoutes } from "../http/openai/vector-stores.ts";
import { addDocsRoutes } from "../http/openapi/docs.ts";
import { addBulkRoutes } from "../http/query/bulk.ts";
import { addQueryRoutes } from "../http/query/query.ts";
import type { AppEnv } from "../http/transport/context.ts";
import type { TenantTierUse } from "../kv/account.ts";
import type { KvObjects } from "../kv/objects.ts";
import { tracedDispatcher } from "../telemetry/traced-dispatcher.ts";
import type { RateLimiter } from "../tenant/rate-limiter.ts";
import type { Sessions } from "../tenant/sessions.ts";
import { SignInFailures } from "../tenant/sign-in-failures.ts";
import type { TenantStorage } from "../tenant/storage.ts";
import type { TenantService } from "../tenant/tenants.ts";
import { compileIn, Grammars } from "../tools/grammars.ts";
import type { Threads } from "../tools/open-threads.ts";
import { type LimitedWorkers, openBulk, openQueries } from "./queries.ts";
import type { Records } from "./records.ts";
import type { TextSide } from "./text.ts";
import type { Workers } from "./workers.ts";

export interface AppParts {
  readonly workers: Workers;
  readonly kv: KvObjects;
  readonly text: TextSide;
  readonly tenants: TenantService;
  /** Of the console. */
  readonly sessions: Sessions;
  readonly storage: TenantStorage;
  readonly corpus: Corpus;
  readonly batches: BatchService;
  readonly embedding: EmbeddingService;
  readonly records: Records;
  readonly threads: Threads;
  readonly rateLimiter: RateLimiter;
  readonly config: Config;
  readonly log: Log;
  readonly state: { readonly draining: boolean; readonly warming: boolean };
}

export function openApp(parts: AppParts): Hono<AppEnv> {
  const { workers, text, tenants, storage, corpus, batches, embedding, records, kv } = parts;
  const { rateLimiter, config, log, state } = parts;
  const { registry, residency, dispatcher } = workers;
  const { metrics, traceOf } = records;
  const metering = metered(tracedDispatcher(dispatcher, traceOf), rateLimiter, (id) => batches.isLine(id));
  const limited = { registry, residency, dispatcher: metering };
  // Counted once what was read of the answer has left: a dozen counters take longer than the answer's JSON.
  const onRunEnd = (tenantId: TenantId, end: EndEvent, isFirst: boolean): void => {
    setImmediate(() => countChoice(metrics, tenantId, end, isFirst));
  };
  const onLateEnd = (tenantId: TenantId, end: EndEvent): void => countChoice(metrics, tenantId, end, true);
  const chat = {
    stored: records.stored,
    compared: new PromptHistory(limits.comparedTurns),
    pipeline: openPipeline({ ...parts, workers: limited, onRunEnd, traceOf }),
    tokenBytes: text.tokenBytes,
    limiter: new ConcurrencyLimiter(limits.requestsPerTenant),
    metrics,
    filters: attributeFilterSchema,
    nowMs: Date.now,
    log,
  };
  const { limiter, nowMs } = chat;
  const query = {
    queries: openQueries({
      ...{ workers: limited, text, tenants, corpus, onLateEnd, traceOf },
      reduceArity: config.queryReduceArity,
    }),
    ...{ limiter, metrics, nowMs, log },
  };
  const bulk = openBulk(query, rateLimiter, () => registry.card());
  const uploads = new ConcurrencyLimiter(limits.uploadsPerTenant);
  const downloads = new ConcurrencyLimiter(limits.downloadsPerTenant);
  const shown = { registry, residency, tiers: () => kv.usage() };
  return createApp({
    ...{ authenticator: tenants.apiKeys, door: doorOf(parts) },
    settings: config,
    rateLimits: { limiter: rateLimiter, ownersOf: (principal) => tenants.limits.owners(principal) },
    routes: [
      (it) => addTenantRoutes(it, { tenants, corpus, batches, stored: records.stored, traces: records.traces }),
      (it) =>
        addLimitRoutes(it, {
          tenants,
          storage,
          budgets: records.budgets,
          onTenantSet: (id) => void kv.account.trim(id),
        }),
      (it) => addFileRoutes(it, { corpus, uploads, downloads }),
      (it) => addUploadRoutes(it, { corpus, uploads }),
      (it) => addVectorStoreRoutes(it, { corpus }),
      (it) => addGrantRoutes(it, { corpus }),
      (it) => addVectorStoreFileRoutes(it, { corpus }),
      (it) => addFileBatchRoutes(it, { corpus }),
      (it) => addSourceRoutes(it, { corpus }),
      (it) => addPrepareRoutes(it, { corpus, jobStreams: new ConcurrencyLimiter(limits.jobStreamsPerTenant) }),
      (it) => addGenerationRoutes(it, chat),
      (it) => addEmbeddingRoutes(it, { embedding, limiter, meter: embedderMeter(rateLimiter, metrics) }),
      (it) => addQueryRoutes(it, query),
      (it) => addBulkRoutes(it, bulk),
      (it) => addMcpRoutes(it, { ...chat, corpus, translateError, corsOrigins: config.corsOrigins }),
      (it) => addBatchRoutes(it, batches),
      (it) => addMessageBatchRoutes(it, { batches, uploads, downloads }),
      (it) => addModelRoutes(it, modelsOf(parts)),
      (it) => addCacheViews(it, parts),
      (it) => addOpsRoutes(it, { ...shown, dispatcher, metrics, state }),
      (it) => addTraceRoutes(it, { ...records.traces, dispatcher }),
      records.addRoutes,
      (it) => addPages(it, parts),
    ],
    translateError,
    audit: records.audit,
    tracer: records.tracer,
    metrics,
    log,
  });
}

/** Whose KV there is, and what becomes of it. */
function addCacheViews(app: Hono<AppEnv>, { workers, kv }: AppParts): void {
  addCacheRoutes(app, {
    ...workers,
    tiers: () => kv.usage(),
    tiersByTenant: () => kv.places?.usesByTenant() ?? new Map<string, readonly TenantTierUse[]>(),
    tiersOf: (tenantId) => kv.places?.usesOf(tenantId) ?? [],
  });
  addCacheEventRoutes(app, {
    ...{ feed: workers.kvFeed, feedStreams: new ConcurrencyLimiter(limits.kvFeedStreams) },
    ...{ activity: workers.activity, activityStreams: new ConcurrencyLimiter(limits.cacheEventStreams) },
  });
}

const doorOf = ({ sessions, config }: AppParts): ConsoleDoor => ({ sessions, publicUrl: config.publicUrl });

/** What people look at: the console and its sessions, and the description of the API. */
function addPages(app: Hono<AppEnv>, parts: AppParts): void {
  const { signInFailures: mostAMinute, signInAddresses: addresses } = limits;
  const failures = new SignInFailures({ mostAMinute, addresses, nowMs: Date.now });
  addSessionRoutes(app, { door: doorOf(parts), failures, tenants: parts.tenants });
  addConsoleRoutes(app, version);
  addDocsRoutes(app, { version });
}

function modelsOf({ workers, config, embedding }: AppParts): ModelsDeps {
  // A model for embeddings alone has been opened at the start.
  const embeddingCard = config.embeddingModelDir === undefined ? undefined : () => embedding.card();
  const rerankerCard = () => embedding.rerankerCard();
  return { card: () => workers.registry.card(), embeddingCard, rerankerCard, createdMs: Date.now() };
}

interface PipelineParts extends Pick<AppParts, "text" | "tenants" | "corpus" | "threads"> {
  readonly workers: Pick<LimitedWorkers, "dispatcher" | "registry">;
  readonly onRunEnd: NonNullable<PipelineDeps["onRunEnd"]>;
  readonly traceOf: NonNullable<PipelineDeps["traceOf"]>;
}

function openPipeline({ workers, text, tenants, corpus, threads, onRunEnd, traceOf }: PipelineParts): Pipeline {
  return new Pipeline({
    dispatcher: workers.dispatcher,
    tokenBytes: text.tokenBytes,
    card: () => workers.registry.card(),
    lowererFor: text.lowererFor,
    grammars: new Grammars(compileIn(threads)),
    cacheSalt: (tenantId, subdivision) => tenants.cacheSalt(tenantId, subdivision),
    retrieve: (tenantId, query, search, signal) =>
      corpus.retrieve({ tenantId, query, ...search, filters: search.filters as AttributeFilter | undefined, signal }),
    readFiles: (tenantId, files, signal) => corpus.promptFiles.read(tenantId, files, signal),
    fragmentsUsed: (fragments, use) => corpus.fragmentsUsed(fragments, use),
    requestMs: limits.requestMs,
    onRunEnd,
    traceOf,
  });
}

function translateError(thrown: unknown): ApiError | undefined {
  if (!(thrown instanceof DbError)) return undefined;
  if (thrown.code === "full") return new ApiError("storage_full", { cause: thrown });
  const busy = thrown.code === "busy" || thrown.code === "io";
  return new ApiError(busy ? "overloaded" : "internal", { cause: thrown });
}
