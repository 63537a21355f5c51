/**
 * Counts usage by day and tenant. Counts are added up in memory and written about once a second, so that no request
 * waits for the disk. A crash loses at most the last second's counts.
 */
import { LRUCache } from "lru-cache";
import { DbError } from "../../db/errors.ts";
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import type { Page } from "../../db/page.ts";
import { addUsage, listUsage, sumComputed, type UsageDayRow, type UsageRange } from "../../db/usage.ts";
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
/** Tenants whose sums are kept, since they are asked for with each piece of work of a tenant that has a budget. */
const rememberedTenants = 4_096;

/** Tokens that were computed for a tenant on a day and in the part of its month that ends with it. */
interface Spent {
  readonly onDay: string;
  day: number;
  month: number;
}

/** What counts against budgets: prompt tokens that were not cached, and all others. */
export const computedTokens = (counts: UsageCounts): number =>
  counts.promptTokens - counts.cachedTokens + counts.completionTokens + counts.embeddingTokens;

export class UsageLedger {
  readonly #db: Db;
  readonly #log: Log;
  readonly #nowMs: () => number;
  readonly #timer: NodeJS.Timeout;
  readonly #spent = new LRUCache<string, Spent>({ max: rememberedTenants });
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
    const spent = this.#spent.get(tenantId);
    if (spent?.onDay !== day) return;
    spent.day += computedTokens(counts);
    spent.month += computedTokens(counts);
  }

  /** Tokens that were computed for the tenant today and in this month (UTC), those not written yet included. */
  spentBy(tenantId: TenantId): { readonly day: number; readonly month: number } {
    const onDay = dayOf(this.#nowMs());
    let spent = this.#spent.get(tenantId);
    if (spent?.onDay !== onDay) {
      spent = { onDay, ...sumComputed(this.#db, tenantId, onDay) };
      for (const row of this.#unwritten.values()) {
        if (row.tenantId !== tenantId || row.day.slice(0, 7) !== onDay.slice(0, 7)) continue;
        if (row.day === onDay) spent.day += computedTokens(row);
        spent.month += computedTokens(row);
      }
      this.#spent.set(tenantId, spent);
    }
    return spent;
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
    const rows = [...this.#unwritten.values()];
    // What is counted is in memory until now, and a crash loses that much in any case.
    this.#db.unsynced(() => addUsage(this.#db, rows));
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
