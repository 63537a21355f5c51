import { createLog, type Log } from "./base/log.ts";
import { BatchService } from "./batches/service.ts";
import { type AppParts, openApp } from "./compose/app.ts";
import { openRecords } from "./compose/records.ts";
import { type FirstKeys, openTenants } from "./compose/tenants.ts";
import { openText } from "./compose/text.ts";
import { warmStart } from "./compose/warm-start.ts";
import { openKvObjects, openWorkers, type WorkersOptions } from "./compose/workers.ts";
import { type Config, limits } from "./config.ts";
import type { CorpusSaltOf } from "./corpus/base/ports.ts";
import { Corpus } from "./corpus/corpus.ts";
import { Searches } from "./corpus/search/searches.ts";
import { openData } from "./data/data-folder.ts";
import { type EmbeddingService, openEmbedding } from "./embedding/embedding-service.ts";
import { saltNameOfFile } from "./generate/pipeline.ts";
import { type TenantMeter, tenantMeter } from "./generate/token-metering.ts";
import { countFailure, countPrepared } from "./generate/usage-counters.ts";
import { listen } from "./http/listen.ts";
import { declaredRoutes, type RouteDeclaration } from "./http/transport/route.ts";
import type { KvObjects } from "./kv/objects.ts";
import type { KvScopes } from "./kv/scopes.ts";
import { SpanService } from "./prepare/span-service.ts";
import { unknownSettings } from "./process/child-environment.ts";
import type { Metrics } from "./telemetry/metrics.ts";
import type { CorpusOwners } from "./tenant/corpus-owners.ts";
import { RateLimiter } from "./tenant/rate-limiter.ts";
import type { TenantService } from "./tenant/tenants.ts";
import { openThreads } from "./tools/open-threads.ts";

export interface RunningServer {
  readonly url: string;
  /** Resolves with the first worker that is ready; rejects when none ever will be. */
  readonly ready: Promise<FirstKeys>;
  readonly routes: readonly RouteDeclaration[];
  /** Drains and ends everything; safe to call twice. */
  stop(): Promise<void>;
}

export interface StartOptions extends WorkersOptions {
  readonly log?: Log;
}

/**
 * Call after `checkStart`.
 * @throws Error in one sentence for the operator: a port in use, a damaged database
 */
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
      kv: () => kv,
      onReady: () => corpus.pins.wake(),
      onFailed: (code) => countFailure(records.metrics, code),
    },
    log,
  );
  const embedding = openEmbedding(config, options.env, text.tokenizer, log);
  // A folder that cannot be opened stops the start; the model's own embeddings open with their first use.
  if ((config.embeddingModelDir ?? config.rerankModelDir) !== undefined) await embedding.card();
  const { db, disk, closeData } = openData(config.dataDir, log);
  const { tenants, sessions, storage, makeKeys, secret } = openTenants(config, db, disk, log);
  const { corpusOwners, dispatcher } = workers;
  const records = openRecords(db, storage, log, options.env, config.traceBytes);
  const rateLimiter = new RateLimiter(limits.limitedOwners, () => performance.now(), records.budgets);
  const meter = tenantMeter(rateLimiter, (tenantId) => tenants.limits.tenantOwner(tenantId));
  const { kv, kvScopes, prefetch } = openKvObjects(config, { db, secret, workers, tenants, env: options.env, log });
  const spans = openSpans({ workers, text, tenants, meter, kv, metrics: () => records.metrics });
  const [searches, threads] = [new Searches(db), openThreads()];
  const corpusSalt = saltsOf(tenants, corpusOwners, kvScopes);
  const corpus = new Corpus({
    ...{ db, storage, dataDir: config.dataDir, tokenizer: text.tokenizer, corpusSalt },
    ...{ spans, searches, sealer: tenants.sealer, sourceNetworks: config.sourceNetworks },
    ...searchModels(config, embedding),
    onSearched: meter.spend,
    onNamed: (tenantId, ids) => prefetch.want(tenantId, ids),
    onFileDeleted: (tenantId, fileId) => {
      const salt = tenants.saltIfAny(tenantId, saltNameOfFile(fileId));
      if (salt !== undefined) spans.evictCorpora([salt]);
      batches.recheck(tenantId);
    },
    log,
  });
  const state = { draining: false, warming: true };
  const fileSide = { storage, files: corpus.files };
  const batches = new BatchService({ db, ...fileSide, apiKeys: tenants.apiKeys, nowMs: Date.now, log });
  const running = { workers, kv, text, tenants, sessions, storage, corpus, batches, embedding, records, threads };
  const app = openApp({ ...running, rateLimiter, config, log, state });
  const server = listen(config, (request, env) => app.fetch(request, env), closeData);
  kv.start();
  workers.start();
  const warm = warmStart({ db, searches, corpusSalt, text, workers, kv, log, state });
  await corpus.start();
  records.stored.wake();
  batches.start(async (request, batch) => await app.fetch(request, { batch }));
  const stop = async (): Promise<void> => {
    state.draining = true;
    await Promise.all([batches.stop(), dispatcher.drain(config.drainMs), corpus.stop()]);
    // Answers that are on their way out go out; what does not end by itself is cut.
    await Promise.race([server.stop(), Bun.sleep(limits.flushMs)]);
    await server.stop(true);
    await Promise.all([workers.stop(), embedding.stop(), searches.stop(), threads.stop()]);
    await Promise.all([records.stop(), kv.stop()]);
    await closeData();
  };
  let stopped: Promise<void> | undefined;
  const url = `http://${config.host.includes(":") ? `[${config.host}]` : config.host}:${server.port}`;
  const ready = whenReady(warm, () => (stopped === undefined ? makeKeys(url) : noKeys));
  return {
    url,
    ready,
    routes: declaredRoutes(app),
    stop: () => {
      stopped ??= stop();
      return stopped;
    },
  };
}

/** Salts of corpora. Their owners are noted, since KV under a salt counts for the owner of its corpus. */
function saltsOf(tenants: TenantService, corpusOwners: CorpusOwners, kvScopes: KvScopes): CorpusSaltOf {
  return (corpusId, saltEpoch, tenantId) => {
    const salt = tenants.corpusSalt(corpusId, saltEpoch);
    corpusOwners.note(salt, tenantId);
    kvScopes.note(salt, { tenantId, corpusId, saltEpoch });
    return salt;
  };
}

/** A server that was stopped before it could answer. */
const noKeys: FirstKeys = { generatedAdminKey: undefined, consoleLink: undefined };

/** Makes what a server that can answer needs. */
function whenReady(ready: Promise<void>, make: () => FirstKeys): Promise<FirstKeys> {
  const made = ready.then(make);
  // Nobody may be waiting; a rejection without a listener must not end the process.
  made.catch(() => undefined);
  return made;
}

/** What searches find and score with. */
const searchModels = (config: Config, embedding: EmbeddingService) => ({
  embedder: embedding,
  reranker: config.rerankModelDir === undefined ? undefined : embedding,
  // A model that was trained for it finds what other words say; token embeddings alone add little to words.
  hybridByDefault: config.embeddingModelDir !== undefined,
});

interface SpanParts extends Pick<AppParts, "workers" | "text" | "tenants"> {
  readonly meter: TenantMeter;
  readonly kv: KvObjects;
  readonly metrics: () => Metrics;
}

function openSpans({ workers, text, tenants, meter, kv, metrics }: SpanParts): SpanService {
  return new SpanService({
    ...workers,
    ...{ meter, kv },
    modelReady: () => workers.supervisor.firstReady(),
    kvQuotaBytesOf: (tenantId, tier) => tenants.limits.kvBytesOf(tenantId, tier),
    lowererFor: text.lowererFor,
    onPrepared: (tenantId, report) => countPrepared(metrics(), tenantId, report),
  });
}
