/**
 * Counts usage by day and tenant. Counts are added up in memory and written about once a second, so that no request
 * waits for the disk. A crash loses at most the last second's counts.
 */
import { DbError } from "../../db/errors.ts";
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Page } from "../../db/page.ts";
import { addUsage, listUsage, type UsageDayRow, type UsageRange } from "../../db/usage.ts";
import type { Log } from "../base/log.ts";

/** Requests and tokens of runs that have ended. */
export type UsageCounts = Omit<UsageDayRow, "day" | "tenantId">;

const noUsage: UsageCounts = {
  requests: 0,
  promptTokens: 0,
  cachedTokens: 0,
  cacheWriteTokens: 0,
  completionTokens: 0,
  embeddingTokens: 0,
};

const flushMs = 1_000;

export class UsageLedger {
  readonly #db: Db;
  readonly #log: Log;
  readonly #nowMs: () => number;
  readonly #timer: NodeJS.Timeout;
  #unwritten = new Map<string, UsageDayRow>();

  constructor(db: Db, log: Log, nowMs: () => number = Date.now) {
    this.#db = db;
    this.#log = log;
    this.#nowMs = nowMs;
    this.#timer = setInterval(() => this.#tryFlush(), flushMs);
    this.#timer.unref();
  }

  /** Adds to today's counts; a count that is not named stays as it is. */
  add(tenantId: TenantId, given: Partial<UsageCounts>): void {
    const counts = { ...noUsage, ...given };
    const day = dayOf(this.#nowMs());
    const key = `${day} ${tenantId}`;
    const present = this.#unwritten.get(key);
    this.#unwritten.set(key, present === undefined ? { day, tenantId, ...counts } : summed(present, counts));
  }

  /** Lists usage, including counts that are not written yet. */
  list(range: UsageRange): Page<UsageDayRow> {
    this.#flush();
    return listUsage(this.#db, range);
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#tryFlush();
  }

  #tryFlush(): void {
    try {
      this.#flush();
    } catch (error) {
      // The counts stay in memory and are written with the next try.
      this.#log("error", "usage could not be written", {
        reason: error instanceof DbError ? error.message : undefined,
      });
    }
  }

  #flush(): void {
    if (this.#unwritten.size === 0) return;
    addUsage(this.#db, [...this.#unwritten.values()]);
    this.#unwritten = new Map();
  }
}

/** The day in UTC. */
export const dayOf = (unixMs: number): string => new Date(unixMs).toISOString().slice(0, 10);

function summed(row: UsageDayRow, counts: UsageCounts): UsageDayRow {
  return {
    ...row,
    requests: row.requests + counts.requests,
    promptTokens: row.promptTokens + counts.promptTokens,
    cachedTokens: row.cachedTokens + counts.cachedTokens,
    cacheWriteTokens: row.cacheWriteTokens + counts.cacheWriteTokens,
    completionTokens: row.completionTokens + counts.completionTokens,
    embeddingTokens: row.embeddingTokens + counts.embeddingTokens,
  };
}
