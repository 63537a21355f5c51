/** Composition root: the only file that wires. `main.ts` runs it as a program, tests run it in their own process. */
import type { Hono } from "hono";
import { DbError } from "../db/errors.ts";
import { version } from "../package.json";
import { ApiError } from "./base/errors.ts";
import { createLog, type Log } from "./base/log.ts";
import { BatchService } from "./batches/service.ts";
import { type LimitedWorkers, openBulk, openQueries } from "./compose/queries.ts";
import { openRecords, type Records } from "./compose/records.ts";
import { openTenants } from "./compose/tenants.ts";
import { openText, type TextSide } from "./compose/text.ts";
import { openWorkers, type Workers, type WorkersOptions } from "./compose/workers.ts";
import { type Config, limits } from "./config.ts";
import { Corpus } from "./corpus/corpus.ts";
import { type AttributeFilter, attributeFilterSchema } from "./corpus/search/filters.ts";
import { openData } from "./data/data-folder.ts";
import { type EmbeddingService, openEmbedding } from "./embedding/embedding-service.ts";
import type { EndEvent } from "./generate/events.ts";
import { Pipeline, type PipelineDeps } from "./generate/pipeline.ts";
import { PromptHistory } from "./generate/prompt-history.ts";
import { embedderMeter, metered, type TenantMeter, tenantMeter } from "./generate/token-metering.ts";
import { countChoice, countFailure, countPrepared } from "./generate/usage-counters.ts";
import { addCacheRoutes } from "./http/admin/cache.ts";
import { addGrantRoutes } from "./http/admin/grants.ts";
import { addKvEventRoutes } from "./http/admin/kv-events.ts";
import { addOpsRoutes } from "./http/admin/ops.ts";
import { addPrepareRoutes } from "./http/admin/prepare.ts";
import { addLimitRoutes } from "./http/admin/tenant-limits.ts";
import { addTenantRoutes } from "./http/admin/tenants.ts";
import { addMessageBatchRoutes } from "./http/anthropic/message-batches.ts";
import { createApp } from "./http/app.ts";
import { listen } from "./http/listen.ts";
import { ConcurrencyLimiter } from "./http/middleware/concurrency.ts";
import { addBatchRoutes } from "./http/openai/batches.ts";
import { addEmbeddingRoutes } from "./http/openai/embeddings.ts";
import { addFileBatchRoutes } from "./http/openai/file-batches.ts";
import { addFileRoutes } from "./http/openai/files.ts";
import { addModelRoutes } from "./http/openai/models.ts";
import { addUploadRoutes } from "./http/openai/uploads.ts";
import { addVectorStoreFileRoutes } from "./http/openai/vector-store-files.ts";
import { addVectorStoreRoutes } from "./http/openai/vector-stores.ts";
import { addDocsRoutes, describedRoutes } from "./http/openapi/docs.ts";
import { addBulkRoutes } from "./http/query/bulk.ts";
import { addQueryRoutes } from "./http/query/query.ts";
import { addGenerationRoutes } from "./http/routes.ts";
import type { AppEnv } from "./http/transport/context.ts";
import type { RouteDeclaration } from "./http/transport/route.ts";
import { SpanService } from "./prepare/span-service.ts";
import { unknownSettings } from "./process/child-environment.ts";
import type { Metrics } from "./telemetry/metrics.ts";
import { tracedDispatcher } from "./telemetry/traced-dispatcher.ts";
import { RateLimiter } from "./tenant/rate-limiter.ts";
import type { TenantStorage } from "./tenant/storage.ts";
import type { TenantService } from "./tenant/tenants.ts";
import { compileIn, Grammars } from "./tools/grammars.ts";
import { openThreads, type Threads } from "./tools/open-threads.ts";

export interface RunningServer {
  readonly url: string;
  /** The first platform key, when this start made it: to be shown once. */
  readonly generatedAdminKey: string | undefined;
  /** Resolves with the first worker that is ready; rejects when none ever will be. */
  readonly ready: Promise<void>;
  readonly routes: readonly RouteDeclaration[];
  /** Drains and ends everything; safe to call twice. */
  stop(): Promise<void>;
}

export interface StartOptions extends WorkersOptions {
  readonly log?: Log;
}

/** @throws Error in one sentence for the operator: a bad model folder, a port in use, a damaged database */
export async function startServer(config: Config, options: StartOptions): Promise<RunningServer> {
  const log = options.log ?? createLog(config.logLevel);
  for (const name of unknownSettings(options.env)) log("warn", "there is no such setting", { name });
  const text = openText(config);
  const workers = openWorkers(
    config,
    {
      ...options,
      vocabulary: text.tokenBytes.vocabulary(),
      // Asked for with each request that is sent to a worker.
      kvQuotaBytesOf: (tenantId) => tenants.limits.kvBytesOf(tenantId),
      onReady: () => corpus.pins.wake(),
      onFailed: (code) => countFailure(records.metrics, code),
    },
    log,
  );
  const embedding = openEmbedding(config, options.env, text.tokenizer, log);
  // A folder that cannot be opened stops the start; the model's own embeddings open with their first use.
  if (config.embeddingModelDir !== undefined) await embedding.card();
  const { db, disk, closeData } = openData(config.dataDir, log);
  const { tenants, storage, generatedAdminKey } = openTenants(config, db, disk, log);
  const { corpusOwners, supervisor, dispatcher } = workers;
  const rateLimiter = new RateLimiter(limits.limitedOwners);
  const meter = tenantMeter(rateLimiter, (tenantId) => tenants.limits.tenantOwner(tenantId));
  const spans = openSpans({ workers, text, tenants, meter, metrics: () => records.metrics });
  const corpus = new Corpus({
    ...{ db, storage, dataDir: config.dataDir, tokenizer: text.tokenizer },
    corpusSalt: (corpusId, epoch, tenantId) => {
      const salt = tenants.corpusSalt(corpusId, epoch);
      corpusOwners.note(salt, tenantId);
      return salt;
    },
    spans,
    embedder: embedding,
    // A model that was trained for it finds what other words say; token embeddings alone add little to words.
    onSearched: meter.spend,
    hybridByDefault: config.embeddingModelDir !== undefined,
    onFileDeleted: (tenantId) => batches.recheck(tenantId),
    log,
  });
  const records = openRecords(db, storage, log, options.env);
  const state = { draining: false };
  const threads = openThreads();
  const fileSide = { storage, files: corpus.files };
  const batches = new BatchService({ db, ...fileSide, apiKeys: tenants.apiKeys, nowMs: Date.now, log });
  const running = { workers, text, tenants, storage, corpus, batches, embedding, records, threads };
  const app = openApp({ ...running, rateLimiter, config, log, state });
  const server = listen(config, (request, env) => app.fetch(request, env), closeData);
  workers.start();
  await corpus.start();
  records.stored.wake();
  batches.start(async (request, batch) => await app.fetch(request, { batch }));
  const stop = async (): Promise<void> => {
    state.draining = true;
    await Promise.all([batches.stop(), dispatcher.drain(config.drainMs), corpus.stop()]);
    // Answers that are on their way out go out; what does not end by itself is cut.
    await Promise.race([server.stop(), Bun.sleep(limits.flushMs)]);
    await server.stop(true);
    await Promise.all([workers.stop(), embedding.stop(), threads.stop()]);
    await records.stop();
    closeData();
  };
  let stopped: Promise<void> | undefined;
  return {
    url: `http://${config.host.includes(":") ? `[${config.host}]` : config.host}:${server.port}`,
    generatedAdminKey,
    ready: supervisor.firstReady(),
    routes: describedRoutes(app),
    stop: () => {
      stopped ??= stop();
      return stopped;
    },
  };
}

interface SpanParts extends Pick<AppParts, "workers" | "text" | "tenants"> {
  readonly meter: TenantMeter;
  readonly metrics: () => Metrics;
}

function openSpans({ workers, text, tenants, meter, metrics }: SpanParts): SpanService {
  return new SpanService({
    ...workers,
    meter,
    modelReady: () => workers.supervisor.firstReady(),
    kvQuotaBytesOf: (tenantId) => tenants.limits.kvBytesOf(tenantId),
    lowererFor: text.lowererFor,
    onPrepared: (tenantId, report) => countPrepared(metrics(), tenantId, report),
  });
}

interface AppParts {
  readonly workers: Workers;
  readonly text: TextSide;
  readonly tenants: TenantService;
  readonly storage: TenantStorage;
  readonly corpus: Corpus;
  readonly batches: BatchService;
  readonly embedding: EmbeddingService;
  readonly records: Records;
  readonly threads: Threads;
  readonly rateLimiter: RateLimiter;
  readonly config: Config;
  readonly log: Log;
  readonly state: { readonly draining: boolean };
}

function openApp(parts: AppParts): Hono<AppEnv> {
  const { workers, text, tenants, storage, corpus, batches, embedding, records, rateLimiter } = parts;
  const { config, log, state } = parts;
  const { registry, residency, dispatcher } = workers;
  const { metrics } = records;
  const limited = {
    registry,
    residency,
    dispatcher: metered(tracedDispatcher(dispatcher), rateLimiter, (id) => batches.isLine(id)),
  };
  const onRunEnd = (tenantId: string, end: EndEvent, isFirst: boolean): void =>
    countChoice(metrics, tenantId, end, isFirst);
  const onLateEnd = (tenantId: string, end: EndEvent): void => countChoice(metrics, tenantId, end, true);
  const chat = {
    stored: records.stored,
    compared: new PromptHistory(limits.comparedTurns),
    pipeline: openPipeline({ ...parts, workers: limited, onRunEnd }),
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
      workers: limited,
      text,
      tenants,
      corpus,
      reduceArity: config.queryReduceArity,
      onLateEnd,
    }),
    limiter,
    metrics,
    nowMs,
    log,
  };
  const bulk = openBulk(query, rateLimiter, () => registry.card());
  const uploads = new ConcurrencyLimiter(limits.uploadsPerTenant);
  const downloads = new ConcurrencyLimiter(limits.downloadsPerTenant);
  return createApp({
    authenticator: tenants.apiKeys,
    rateLimits: { limiter: rateLimiter, ownersOf: (principal) => tenants.limits.owners(principal) },
    routes: [
      (it) => addTenantRoutes(it, { tenants, corpus, batches, stored: records.stored }),
      (it) => addLimitRoutes(it, tenants, storage),
      (it) => addFileRoutes(it, { corpus, uploads, downloads }),
      (it) => addUploadRoutes(it, { corpus, uploads }),
      (it) => addVectorStoreRoutes(it, { corpus }),
      (it) => addGrantRoutes(it, { corpus }),
      (it) => addVectorStoreFileRoutes(it, { corpus }),
      (it) => addFileBatchRoutes(it, { corpus }),
      (it) => addPrepareRoutes(it, { corpus, jobStreams: new ConcurrencyLimiter(limits.jobStreamsPerTenant) }),
      (it) => addGenerationRoutes(it, chat),
      (it) => addEmbeddingRoutes(it, { embedding, limiter, meter: embedderMeter(rateLimiter, metrics) }),
      (it) => addQueryRoutes(it, query),
      (it) => addBulkRoutes(it, bulk),
      (it) => addBatchRoutes(it, batches),
      (it) => addMessageBatchRoutes(it, { batches, uploads, downloads }),
      (it) => addModelRoutes(it, { card: () => registry.card(), createdMs: Date.now() }),
      (it) => addCacheRoutes(it, { registry, residency, pins: workers.pins }),
      (it) => addKvEventRoutes(it, workers.kvFeed, new ConcurrencyLimiter(limits.kvFeedStreams)),
      (it) => addOpsRoutes(it, { registry, residency, dispatcher, metrics, draining: () => state.draining }),
      records.addRoutes,
      (it) => addDocsRoutes(it, { version }),
    ],
    translateError,
    audit: records.audit,
    tracer: records.tracer,
    metrics,
    log,
  });
}

interface PipelineParts extends Pick<AppParts, "text" | "tenants" | "corpus" | "threads"> {
  readonly workers: Pick<LimitedWorkers, "dispatcher" | "registry">;
  readonly onRunEnd: NonNullable<PipelineDeps["onRunEnd"]>;
}

function openPipeline({ workers, text, tenants, corpus, threads, onRunEnd }: PipelineParts): Pipeline {
  return new Pipeline({
    dispatcher: workers.dispatcher,
    tokenBytes: text.tokenBytes,
    card: () => workers.registry.card(),
    lowererFor: text.lowererFor,
    grammars: new Grammars(compileIn(threads)),
    cacheSalt: (tenantId, subdivision) => tenants.cacheSalt(tenantId, subdivision),
    retrieve: (tenantId, query, search) =>
      corpus.retrieve({ tenantId, query, ...search, filters: search.filters as AttributeFilter | undefined }),
    fragmentsUsed: (fragments) => corpus.evictDeleted(fragments),
    requestMs: limits.requestMs,
    onRunEnd,
  });
}

function translateError(thrown: unknown): ApiError | undefined {
  if (!(thrown instanceof DbError)) return undefined;
  if (thrown.code === "full") return new ApiError("storage_full", { cause: thrown });
  const busy = thrown.code === "busy" || thrown.code === "io";
  return new ApiError(busy ? "overloaded" : "internal", { cause: thrown });
}
