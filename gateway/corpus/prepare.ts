/**
 * Prepare jobs: every fragment of a corpus is computed and kept ahead of use. Jobs are rows; those that a
 * stopped server left are run again from their first fragment, since the KV went with its workers.
 */
import { findCorpusAnyState } from "../../db/corpora.ts";
import {
  countFragments,
  type FragmentPlace,
  type FragmentRow,
  notePrepared,
  placeOf,
  visibleFragmentIds,
  walkFragments,
} from "../../db/fragments.ts";
import { type JobId, newId, parseId, type TenantId } from "../../db/ids.ts";
import {
  countOpenJobs,
  findJob,
  findOpenJob,
  insertJob,
  type JobRow,
  nextQueuedJob,
  requeueAbandonedJobs,
  updateOpenJob,
} from "../../db/jobs.ts";
import type { Db } from "../../db/open.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError, errorEntry, toApiError } from "../errors.ts";
import type { Log } from "../log.ts";
import type { CorpusService } from "./corpora.ts";
import { type JobOwner, JobWatchers } from "./job-watchers.ts";
import { corpusLimits } from "./limits.ts";
import { BackgroundLoop, isPassing, reasonOf } from "./loop.ts";
import { delay } from "./pace.ts";
import type { PreparedSpan, PrepareFacts, SpanPort } from "./ports.ts";
import type { Sweeper } from "./sweep.ts";

/** Fragments given to the workers at once: enough to fill a step, few enough to show progress. */
const fragmentsPerGroup = 8;
/** Of different tenants, so that one tenant's large corpus does not hold up the others. */
const maxRunningJobs = 4;
const maxAttempts = 12;
const firstRetryDelayMs = 250;
const maxRetryDelayMs = 10_000;

export class PrepareService {
  readonly watchers = new JobWatchers();
  readonly #db: Db;
  readonly #corpora: CorpusService;
  readonly #spans: SpanPort;
  readonly #sweeper: Sweeper;
  readonly #log: Log;
  readonly #lanes: readonly BackgroundLoop[];
  readonly #running = new Map<JobId, RunningJob>();

  constructor(db: Db, corpora: CorpusService, spans: SpanPort, sweeper: Sweeper, log: Log) {
    this.#db = db;
    this.#corpora = corpora;
    this.#spans = spans;
    this.#sweeper = sweeper;
    this.#log = log;
    const lane = () => new BackgroundLoop("preparing", log, (signal) => this.#runAll(signal));
    this.#lanes = Array.from({ length: maxRunningJobs }, lane);
  }

  /** Takes up what waits, and what a stopped server left. */
  start(): void {
    for (const lane of this.#lanes) lane.wake();
  }

  async idle(): Promise<void> {
    await Promise.all(this.#lanes.map((lane) => lane.idle()));
  }

  /** Running jobs are left as they are, for the next start. */
  async stop(): Promise<void> {
    for (const { cancel } of this.#running.values()) cancel.abort();
    await Promise.all(this.#lanes.map((lane) => lane.stop()));
  }

  /** The corpus' open job if there is one, so that the call may be repeated. @throws ApiError not_found, quota_exceeded */
  create(tenantId: TenantId, rawCorpusId: string): JobRow {
    const corpus = this.#corpora.require(tenantId, rawCorpusId, "own");
    const open = findOpenJob(this.#db, corpus.id);
    if (open !== undefined) return open;
    if (countOpenJobs(this.#db, tenantId) >= corpusLimits.maxOpenJobsPerTenant) {
      throw new ApiError("quota_exceeded", { message: "Too many prepare jobs of this tenant are open." });
    }
    const total = countFragments(this.#db, corpus.id);
    const job = insertJob(this.#db, { id: newId("job"), tenantId, corpusId: corpus.id, total, createdAt: Date.now() });
    this.start();
    return job;
  }

  /** @throws ApiError not_found */
  get(tenantId: TenantId, rawId: string): JobRow {
    const id = parseId("job", rawId);
    const job = id === undefined ? undefined : findJob(this.#db, tenantId, id);
    if (job === undefined) throw new ApiError("not_found");
    return job;
  }

  /** Ends a job that is open; one that has ended stays as it is. @throws ApiError not_found */
  cancel(tenantId: TenantId, rawId: string): JobRow {
    const job = this.get(tenantId, rawId);
    this.#update(job.id, { status: "cancelled", finishedAt: Date.now() });
    this.#running.get(job.id)?.cancel.abort();
    return this.get(tenantId, rawId);
  }

  /** Jobs whose corpus is deleted, and which are cancelled by that: stop them, and end who follows them. */
  abandon(concerns: (job: JobOwner) => boolean): void {
    for (const job of this.#running.values()) if (concerns(job)) job.cancel.abort();
    this.watchers.end(concerns);
  }

  async #runAll(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const job = this.#take();
      if (job === undefined) return;
      await this.#run(job);
    }
  }

  #take(): JobRow | undefined {
    requeueAbandonedJobs(this.#db, [...this.#running.keys()]);
    return nextQueuedJob(
      this.#db,
      [...this.#running.values()].map(({ tenantId }) => tenantId),
    );
  }

  async #run(job: JobRow): Promise<void> {
    const cancel = new AbortController();
    this.#running.set(job.id, { tenantId: job.tenantId, corpusId: job.corpusId, cancel });
    try {
      await this.#prepareCorpus(job, cancel.signal);
    } catch (error) {
      // Begun anew once the database takes writes again; what is resident by then costs nothing.
      if (isPassing(error)) throw error;
      const failure = toApiError(error);
      this.#log("warn", "a prepare job failed", { jobId: job.id, reason: reasonOf(error) });
      const fields = { errorCode: failure.code, errorMessage: failure.message, finishedAt: Date.now() };
      this.#update(job.id, { status: "failed", ...fields });
    } finally {
      this.#running.delete(job.id);
    }
  }

  async #prepareCorpus(job: JobRow, signal: AbortSignal): Promise<void> {
    const expected = countFragments(this.#db, job.corpusId);
    let done = 0;
    if (this.#update(job.id, { status: "running", done, total: expected }) === undefined) return;
    for (let after: FragmentPlace | undefined; ; ) {
      // Looked up for every group: the salt may be rotated and files may come and go meanwhile.
      const corpus = findCorpusAnyState(this.#db, job.corpusId);
      if (corpus === undefined || corpus.deletedAt !== null) return;
      const readAtMs = performance.now();
      const group = walkFragments(this.#db, corpus.id, after, fragmentsPerGroup);
      const last = group.at(-1);
      if (last === undefined) break;
      const salt = this.#corpora.saltOf(corpus);
      const prepared = await this.#prepareGroup({ group, salt, facts: { readAtMs, tenantId: job.tenantId } }, signal);
      this.#note(group, prepared, salt);
      if (signal.aborted) return;
      after = placeOf(last);
      done += group.length;
      if (this.#update(job.id, { done, total: Math.max(expected, done) }) === undefined) return;
    }
    this.#update(job.id, { status: "completed", done, total: done, finishedAt: Date.now() });
  }

  /** Tries again while the workers are overloaded, lost, or still loading. @throws ApiError */
  async #prepareGroup({ group, salt, facts }: Group, signal: AbortSignal): Promise<PreparedById> {
    const spans = group.map(({ id, text }) => ({ id, text, salt }));
    for (let attempt = 1; ; attempt++) {
      try {
        const prepared = await collect(this.#spans.prepareSpans(spans, signal, facts));
        if (prepared.size === spans.length) return prepared;
        throw new ApiError("internal", { cause: new Error("the workers did not report every span") });
      } catch (error) {
        if (signal.aborted) return new Map();
        const retryable = error instanceof ApiError && errorEntry(error.code).retryable && error.code !== "internal";
        if (!retryable || attempt === maxAttempts) throw error;
        await delay(Math.min(firstRetryDelayMs * 2 ** (attempt - 1), maxRetryDelayMs), signal);
      }
    }
  }

  #note(group: readonly FragmentRow[], prepared: PreparedById, salt: CacheSalt): void {
    const visible = visibleFragmentIds(
      this.#db,
      group.map(({ id }) => id),
    );
    const now = Date.now();
    this.#db.transaction("notePrepared", () => {
      for (const { id, text } of group) {
        const worker = prepared.get(id)?.worker;
        if (worker === undefined || !visible.has(id)) continue;
        const spanKey = this.#spans.lowerSpan({ id, text, salt }).blockKeys.at(-1);
        if (spanKey !== undefined) notePrepared(this.#db, id, spanKey, worker, now);
      }
    });
    // Deleted while it was computed: the sweep may have evicted it before it was stored.
    const gone = group.filter(({ id }) => !visible.has(id));
    if (gone.length > 0) this.#sweeper.evict(gone, salt);
  }

  #update(id: JobId, change: Parameters<typeof updateOpenJob>[2]): JobRow | undefined {
    const job = updateOpenJob(this.#db, id, change);
    if (job !== undefined) this.watchers.publish(job);
    return job;
  }
}

interface Group {
  readonly group: readonly FragmentRow[];
  readonly salt: CacheSalt;
  readonly facts: PrepareFacts;
}

type PreparedById = ReadonlyMap<string, PreparedSpan>;

interface RunningJob extends JobOwner {
  readonly cancel: AbortController;
}

async function collect(spans: AsyncIterable<PreparedSpan>): Promise<PreparedById> {
  const prepared = new Map<string, PreparedSpan>();
  for await (const span of spans) prepared.set(span.id, span);
  return prepared;
}
