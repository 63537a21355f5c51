/** Wires the worker side of the gateway: the processes, the table of workers, and the dispatcher. */

import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import { programPath } from "../../places/places.ts";
import type { VocabularyBytes } from "../../worker/contract/grammar.ts";
import type { FileTier } from "../../worker/contract/messages.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { type Config, limits } from "../config.ts";
import { Dispatcher, type DispatcherOptions } from "../dispatch/dispatcher.ts";
import { KvActivity } from "../dispatch/kv/activity.ts";
import { KvFeed } from "../dispatch/kv/feed.ts";
import { KvHistory } from "../dispatch/kv/history.ts";
import { MissReasons } from "../dispatch/kv/miss-reasons.ts";
import { PendingBlocks } from "../dispatch/kv/pending-blocks.ts";
import { Pins } from "../dispatch/kv/pins.ts";
import { Residency, type RootOwner } from "../dispatch/kv/residency.ts";
import { UseCounts } from "../dispatch/kv/use-counts.ts";
import { Heartbeat } from "../dispatch/workers/heartbeat.ts";
import { spawnLink } from "../dispatch/workers/link.ts";
import { Registry } from "../dispatch/workers/registry.ts";
import { Supervisor, type WorkerEvents } from "../dispatch/workers/supervisor.ts";
import type { BucketSettings } from "../kv/bucket.ts";
import { KvObjects } from "../kv/objects.ts";
import { KvPrefetch } from "../kv/prefetch.ts";
import { KvScopes } from "../kv/scopes.ts";
import { Mover } from "../mover/mover.ts";
import { moverEnvironment, workerEnvironment } from "../process/child-environment.ts";
import { CorpusOwners } from "../tenant/corpus-owners.ts";
import type { ServerSecret } from "../tenant/secret.ts";
import type { TenantService } from "../tenant/tenants.ts";

export interface WorkersOptions {
  /** The environment that the workers' settings are taken from. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Program and arguments of a worker; the project's own when absent. */
  readonly workerArgv?: readonly string[];
  /** The bytes of each of the model's tokens. Every worker gets them before its first request. */
  readonly vocabulary?: VocabularyBytes;
  /** Bytes of KV that a tenant may keep on each worker; undefined: no quota. */
  readonly kvQuotaBytesOf?: (tenantId: TenantId) => number | undefined;
  /** KV in files; absent: none is kept. */
  readonly kv?: () => KvObjects;
  /** Called when a worker has started, with an empty memory. */
  readonly onReady?: () => void;
  readonly onFailed?: DispatcherOptions["onFailed"];
}

export interface Workers {
  readonly registry: Registry;
  readonly residency: Residency;
  /** Has to be notified of the corpora that requests use. */
  readonly corpusOwners: CorpusOwners;
  readonly uses: UseCounts;
  readonly supervisor: Supervisor;
  readonly dispatcher: Dispatcher;
  readonly pins: Pins;
  readonly kvFeed: KvFeed;
  readonly activity: KvActivity;
  start(): void;
  stop(): Promise<void>;
}

/** Starts nothing; see `start`. */
export function openWorkers(config: Config, options: WorkersOptions, log: Log): Workers {
  const registry = new Registry();
  const corpusOwners = new CorpusOwners(() => registry.card()?.digest, limits.corpusOwners);
  const pendingBlocks = new PendingBlocks((rootKey) => corpusOwners.ownerOf(rootKey));
  const uses = new UseCounts(limits.usedSpans);
  const ownerOf: RootOwner = (workerId, rootKey) => {
    const owner = pendingBlocks.ownerOf(workerId, rootKey);
    if (owner !== undefined) return owner;
    // Blocks that came from files without a request.
    const tenantId = options.kv?.().ownerOfRoot(rootKey);
    return tenantId === undefined ? undefined : { tenantId, isFragment: true };
  };
  const residency = new Residency(ownerOf, (worker, tier, ...change) => activity.blocks({ worker, tier }, ...change));
  const activity = new KvActivity({
    heldBlocks: ({ worker, tier }, tenantId) =>
      worker === null
        ? sharedBlocks(options.kv?.(), tier, tenantId)
        : (residency.byTenant(worker, tier).get(tenantId)?.blockCount ?? 0),
    maxChanges: limits.cacheChanges,
  });
  const argv = options.workerArgv ?? [process.execPath, programPath("worker")];
  const supervisor = new Supervisor({
    devices: config.devices,
    command: (device) => ({ argv, env: workerEnvironment(config, options.env, device) }),
    openLink: spawnLink,
    registry,
    log,
    backoffMinMs: limits.restartMinMs,
    backoffMaxMs: limits.restartMaxMs,
    stableMs: limits.workerStableMs,
  });
  const history = new KvHistory({ maxGone: limits.goneBlocks, maxTexts: limits.notedTexts });
  const misses = new MissReasons({ history, residency, blockTokens: () => registry.card()?.blockTokens });
  const dispatcher = new Dispatcher({
    registry,
    residency,
    pendingBlocks,
    uses: {
      note: (plan) => {
        uses.note(plan);
        options.kv?.().account.noteUse(plan);
      },
    },
    misses,
    history,
    supervisor,
    log,
    maxAttempts: limits.attempts,
    maxDeaths: limits.deaths,
    maxRunningPerWorker: config.maxRunning,
    maxWaiting: limits.waitingRequests,
    maxWaitingTokens: limits.waitingTokens,
    abortGraceMs: limits.abortGraceMs,
    blocksInFiles: (blockKeys) => options.kv?.().places?.blocksOnDisk(blockKeys) ?? 0,
    ...(options.kvQuotaBytesOf && { kvQuotaBytesOf: options.kvQuotaBytesOf }),
    ...(options.onFailed && { onFailed: options.onFailed }),
  });
  const pins = new Pins({ registry, residency, supervisor, onChange: (...change) => activity.pins(...change) });
  const { heartbeatMs: intervalMs, workerHangMs: hangMs } = limits;
  const kvFeed = new KvFeed({ residency, maxKeys: limits.kvFeedKeys, keysPerChange: limits.kvFeedKeysPerEvent });
  const heartbeat = new Heartbeat({ registry, supervisor, log, intervalMs, hangMs });
  const events = eventsOf({ supervisor, dispatcher, pins, kvFeed, activity, heartbeat }, options, log);
  const start = (): void => {
    supervisor.start(events);
    heartbeat.start();
  };
  const stop = async (): Promise<void> => {
    heartbeat.stop();
    await supervisor.stop(limits.workerStopMs);
  };
  return { registry, residency, corpusOwners, uses, supervisor, dispatcher, pins, kvFeed, activity, start, stop };
}

interface Listeners extends Pick<Workers, "supervisor" | "dispatcher" | "pins" | "kvFeed" | "activity"> {
  readonly heartbeat: Heartbeat;
}

/** A tenant's blocks in files, or in the bucket. */
const sharedBlocks = (kv: KvObjects | undefined, tier: FileTier, tenantId: string): number =>
  tier === "disk" ? (kv?.account.of(tenantId).blocks ?? 0) : (kv?.places?.bucketBlocksOf(tenantId) ?? 0);

/** Hands what workers report to whom it concerns. */
function eventsOf(
  { supervisor, dispatcher, pins, kvFeed, activity, heartbeat }: Listeners,
  options: WorkersOptions,
  log: Log,
): WorkerEvents {
  return {
    onReady: (workerId) => {
      const { vocabulary } = options;
      if (vocabulary !== undefined) supervisor.send(workerId, { type: "vocabulary", vocabulary });
      // What lies in files is known before the first request is sent.
      options
        .kv?.()
        .onReady(workerId)
        .catch((error: unknown) => {
          const reason = messageOf(error);
          log("error", "a worker was not told of all KV files", { worker: workerId, reason });
        });
      pins.onReady(workerId);
      dispatcher.onReady();
      options.onReady?.();
    },
    onMessage: (workerId, message) => {
      heartbeat.heard(workerId);
      dispatcher.onMessage(workerId, message);
      options.kv?.().onMessage(message);
      if (message.type === "kv") kvFeed.apply(workerId, message.events);
      if (message.type === "loaded") {
        const tenantId = options.kv?.().ownerOfRoot(message.rootKey);
        if (tenantId !== undefined) activity.loaded("disk", tenantId, message.blocks);
      }
    },
    onLost: (workerId) => {
      heartbeat.lost(workerId);
      dispatcher.onLost(workerId);
      kvFeed.lost(workerId);
      options.kv?.().onLost(workerId);
    },
  };
}

interface KvParts {
  readonly env: WorkersOptions["env"];
  readonly db: Db;
  readonly secret: ServerSecret;
  readonly workers: Pick<Workers, "registry" | "residency" | "supervisor" | "dispatcher" | "activity">;
  readonly tenants: TenantService;
  readonly log: Log;
}

/** What KV needs of a bucket. Its process is started with the first thing that there is to do. */
function bucketOf(
  { kvBucket, kvDiskPath: folder }: Config,
  { env, tenants }: Pick<KvParts, "env" | "tenants">,
): BucketSettings | undefined {
  if (kvBucket === undefined) return undefined;
  const { bucket, prefix, access, mostBytes } = kvBucket;
  const openMover = (serverId: string): Mover =>
    new Mover({ bucket, prefix: `${prefix}${serverId}/`, access, folder }, moverEnvironment(env));
  const { endpoint = `https://s3.${access.region ?? "us-east-1"}.amazonaws.com` } = access;
  return {
    address: `s3://${bucket}/${prefix} at ${endpoint}`,
    mostBytes,
    openMover,
    quotaBytesOf: (tenantId) => tenants.limits.kvBytesOf(tenantId, "s3"),
  };
}

/** KV in files: knows workers, the database and the folder. */
export function openKvObjects(config: Config, { db, secret, workers, tenants, env, log }: KvParts) {
  const { registry, residency, supervisor, dispatcher, activity } = workers;
  const kvScopes = new KvScopes(secret.derive("kv"));
  const kv = new KvObjects({
    ...{ db, scopes: kvScopes, folder: config.kvDiskPath, mostBytes: config.kvDiskBytes, log },
    bucket: bucketOf(config, { env, tenants }),
    listener: {
      held: (tier, ...change) => activity.blocks({ worker: null, tier }, ...change),
      loaded: (...change) => activity.loaded(...change),
    },
    owner: Buffer.from(secret.derive("kv-folder")).toString("hex").slice(0, 32),
    send: (workerId, message) => supervisor.send(workerId, message),
    readyWorkers: () => registry.ready().map(({ id }) => id),
    card: () => registry.card(),
    ownerOf: (tenantId) => dispatcher.kvOwnerOf(tenantId),
    quotaBytesOf: (tenantId) => tenants.limits.kvBytesOf(tenantId, "disk"),
  });
  const leastBusy = (): string | undefined => {
    const [first, ...others] = registry.ready();
    return others.reduce((best, it) => (best && it.pendingTokens < best.pendingTokens ? it : best), first)?.id;
  };
  const prefetch = new KvPrefetch({
    ...{ db, places: () => kv.places, likelyWorker: leastBusy },
    isHeld: (spanKey) => residency.holders(spanKey).length > 0,
    send: (workerId, message) => supervisor.send(workerId, message),
  });
  return { kv, kvScopes, prefetch };
}
