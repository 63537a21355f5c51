/**
 * The prepare jobs of one tenant, the oldest first, a few fragments in each slice. A job that the workers refuse for
 * now waits without using a lane. A job that a stopped server left is run again from its first fragment.
 */
import { findCorpusAnyState } from "../../../db/corpora.ts";
import {
  countFragments,
  type FragmentPlace,
  type FragmentRow,
  notePrepared,
  placeOf,
  visibleFragmentIds,
  walkFragments,
} from "../../../db/fragments.ts";
import type { TenantId } from "../../../db/ids.ts";
import { type JobRow, nextOpenJob, updateOpenJob } from "../../../db/jobs.ts";
import type { Db } from "../../../db/open.ts";
import type { CacheSalt } from "../../../worker/contract/units.ts";
import { isPassing, reasonOf } from "../../background/background-loop.ts";
import type { TenantWork } from "../../background/tenant-rounds.ts";
import { ApiError, errorEntry, toApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import type { CorpusService } from "../base/corpora.ts";
import type { PreparedSpan, SpanPort } from "../base/ports.ts";
import type { Sweeper } from "../deletion/sweep.ts";
import type { JobOwner, JobWatchers } from "./job-watchers.ts";

/** Fragments that are given to the workers at once: enough to fill a step, and few enough to show progress. */
const fragmentsPerGroup = 8;
const maxAttempts = 12;
const firstRetryDelayMs = 250;
const maxRetryDelayMs = 10_000;

export interface PrepareDeps {
  readonly db: Db;
  readonly corpora: CorpusService;
  readonly spans: SpanPort;
  readonly sweeper: Sweeper;
  readonly watchers: JobWatchers;
  readonly log: Log;
}

/** How far a job has come. */
interface Progress {
  readonly after: FragmentPlace | undefined;
  readonly done: number;
  /** Tokens of the fragments that are done. */
  readonly tokens: number;
}

interface OpenJob extends Progress {
  readonly row: JobRow;
  readonly cancel: AbortController;
  /** When this run of it began, in Unix milliseconds. */
  readonly beganAt: number;
  /** The number of fragments when the job began; more may be added meanwhile. */
  readonly expected: number;
  /** The group that was computed last: when it is where it has to be, and from where it is tried again when it is not. */
  readonly writing: { readonly end: Promise<void>; readonly before: Progress } | undefined;
  /** How often the next group of fragments was tried. */
  readonly attempts: number;
}

export class TenantPrepare implements TenantWork {
  readonly #deps: PrepareDeps;
  readonly #tenantId: TenantId;
  readonly #onClose: () => void;
  #job: OpenJob | undefined;
  #notBeforeMs = 0;

  constructor(deps: PrepareDeps, tenantId: TenantId, onClose: () => void) {
    this.#deps = deps;
    this.#tenantId = tenantId;
    this.#onClose = onClose;
  }

  readyAtMs(): number {
    return this.#job?.cancel.signal.aborted ? 0 : this.#notBeforeMs;
  }

  /** Ends the running job at once if `concerns` returns true for it. */
  abort(concerns: (job: JobOwner & Pick<JobRow, "id">) => boolean): void {
    if (this.#job !== undefined && concerns(this.#job.row)) this.#job.cancel.abort();
  }

  async runSlice(): Promise<boolean> {
    const job = this.#job ?? this.#begin();
    if (job === undefined) return false;
    this.#job = job;
    this.#job = await this.#runGroup(job);
    return true;
  }

  close(): void {
    this.#onClose();
  }

  #begin(): OpenJob | undefined {
    const row = nextOpenJob(this.#deps.db, this.#tenantId);
    if (row === undefined) return undefined;
    const expected = countFragments(this.#deps.db, row.corpusId);
    this.#update(row, { status: "running", done: 0, total: expected });
    const beganAt = Date.now();
    const progress = { after: undefined, done: 0, tokens: 0 };
    return { row, cancel: new AbortController(), beganAt, expected, ...progress, writing: undefined, attempts: 0 };
  }

  /** @returns what is left of the job */
  async #runGroup(job: OpenJob): Promise<OpenJob | undefined> {
    this.#notBeforeMs = 0;
    if (job.cancel.signal.aborted) return undefined;
    let again = job;
    try {
      const next = await this.#prepareNext(job);
      again = { ...job, ...job.writing?.before, writing: undefined };
      // The disk had the time in which the next group was computed.
      await job.writing?.end;
      if (next !== "all") return next;
      this.#update(job.row, { status: "completed", done: job.done, total: job.done, finishedAt: Date.now() });
      return undefined;
    } catch (error) {
      if (job.cancel.signal.aborted) return undefined;
      // The job begins anew once the database accepts writes again. Fragments that are resident by then cost nothing.
      if (isPassing(error)) {
        this.#job = again;
        throw error;
      }
      const attempts = job.attempts + 1;
      const retryMs = retryDelayMs(error, attempts);
      if (retryMs !== undefined) {
        this.#notBeforeMs = performance.now() + retryMs;
        return { ...again, attempts };
      }
      const failure = toApiError(error);
      this.#deps.log("warn", "a prepare job failed", { jobId: job.row.id, reason: reasonOf(error) });
      const fields = { errorCode: failure.code, errorMessage: failure.message, finishedAt: Date.now() };
      this.#update(job.row, { status: "failed", ...fields });
      return undefined;
    }
  }

  /** Computes a group. @returns the job after it; "all": there is none; undefined: the job is not wanted any more */
  async #prepareNext(job: OpenJob): Promise<OpenJob | "all" | undefined> {
    const { db, corpora, spans } = this.#deps;
    const { row, cancel, expected, beganAt } = job;
    // The corpus is looked up for every group, because its salt may be rotated and its files may change meanwhile.
    const corpus = findCorpusAnyState(db, row.corpusId);
    if (corpus === undefined || corpus.deletedAt !== null) return undefined;
    const goal = row.target === null ? undefined : { tier: row.target, sinceMs: beganAt, tokensThere: job.tokens };
    const facts = { readAtMs: performance.now(), tenantId: row.tenantId, goal };
    const group = walkFragments(db, corpus.id, job.after, fragmentsPerGroup);
    const last = group.at(-1);
    if (last === undefined) return "all";
    const salt = corpora.saltOf(corpus);
    const texts = group.map(({ id, text }) => ({ id, text, salt }));
    const prepared = await collect(spans.prepareSpans(texts, cancel.signal, facts));
    if (prepared.size !== texts.length) {
      throw new ApiError("internal", { cause: new Error("the workers did not report every span") });
    }
    this.#note(corpus.seq, group, prepared, salt);
    const done = job.done + group.length;
    const end = Promise.all([job.writing?.end, ...prepared.values().map(({ kept }) => kept)]).then(() => {
      if (this.#update(row, { done, total: Math.max(expected, done) }) === undefined) cancel.abort();
    });
    // Its failure is seen when the next group is computed.
    end.catch(() => undefined);
    const tokens = prepared.values().reduce((sum, span) => sum + span.tokens, job.tokens);
    const { after, done: doneBefore, tokens: tokensBefore, writing } = job;
    const before = { after, done: doneBefore, tokens: tokensBefore };
    // What has to be written again has been tried as often as before until it is.
    const attempts = writing === undefined ? job.attempts : 0;
    return { ...job, after: placeOf(last), done, tokens, writing: { end, before }, attempts };
  }

  #note(corpusSeq: number, group: readonly FragmentRow[], prepared: PreparedById, salt: CacheSalt): void {
    const { db, spans, sweeper } = this.#deps;
    const visible = visibleFragmentIds(
      db,
      group.map(({ id }) => id),
    );
    const now = Date.now();
    const note = (): void => {
      for (const { id, text } of group) {
        const worker = prepared.get(id)?.worker;
        if (worker === undefined || !visible.has(id)) continue;
        const spanKey = spans.lowerSpan({ id, text, salt }).blockKeys.at(-1);
        if (spanKey !== undefined) notePrepared(db, id, spanKey, worker, now);
      }
    };
    db.unsynced(() => db.transaction("notePrepared", note));
    // Fragments that were deleted while they were computed are evicted here, since the sweep may have evicted them
    // before they were stored.
    const gone = group.filter(({ id }) => !visible.has(id));
    if (gone.length > 0) sweeper.evict(corpusSeq, gone, salt);
  }

  #update({ id }: JobRow, change: Parameters<typeof updateOpenJob>[2]): JobRow | undefined {
    const { db } = this.#deps;
    // If a power cut loses this, the next start runs the job again, and finds what is prepared.
    const job = db.unsynced(() => updateOpenJob(db, id, change));
    if (job !== undefined) this.#deps.watchers.publish(job);
    return job;
  }
}

/**
 * Milliseconds until the next try, while the workers are overloaded, lost or still loading, or the tenant has reached a
 * limit. undefined: the job has failed.
 */
function retryDelayMs(error: unknown, attempts: number): number | undefined {
  if (!(error instanceof ApiError) || !errorEntry(error.code).retryable || error.code === "internal") return undefined;
  // A rate limit always passes in time, so it is waited for however often it refuses.
  if (attempts >= maxAttempts && error.code !== "rate_limited") return undefined;
  const askedMs = (error.retryAfterS ?? 0) * 1000;
  return Math.min(maxRetryDelayMs, Math.max(askedMs, firstRetryDelayMs * 2 ** (attempts - 1)));
}

type PreparedById = ReadonlyMap<string, PreparedSpan>;

async function collect(spans: AsyncIterable<PreparedSpan>): Promise<PreparedById> {
  const prepared = new Map<string, PreparedSpan>();
  for await (const span of spans) prepared.set(span.id, span);
  return prepared;
}
