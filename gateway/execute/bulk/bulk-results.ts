/**
 * Keeps the results of bulk requests for a while, so that clients can ask for each by its id. They are only in memory,
 * within bounds for each tenant on bytes and time; the oldest are dropped first.
 */
import { LRUCache } from "lru-cache";
import type { TenantId } from "../../../db/ids.ts";

/** The order in which the queries of a bulk request run. */
export type QueryOrder = "planned" | "ingestion";

export type BulkStatus = "running" | "completed" | "cancelled";

export interface BulkUsage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Prompt tokens whose KV was found in the cache. */
  readonly cachedTokens: number;
  readonly cacheWriteTokens: number;
}

export interface BulkResultsOptions {
  readonly tenants: number;
  readonly bulksPerTenant: number;
  readonly bytesPerTenant: number;
  readonly keepMs: number;
  readonly nowMs: () => number;
}

interface TenantResults {
  readonly bulks: LRUCache<string, BulkRecord>;
  /** Each result as its JSON line, under the key `bulk id, result id`. */
  readonly lines: LRUCache<string, string>;
}

export class BulkResults {
  readonly #options: BulkResultsOptions;
  readonly #tenants: LRUCache<string, TenantResults>;

  constructor(options: BulkResultsOptions) {
    this.#options = options;
    this.#tenants = new LRUCache({ max: options.tenants });
  }

  open(tenantId: TenantId, total: number): BulkRecord {
    const { bulks, lines } = this.#tenants.get(tenantId) ?? this.#addTenant(tenantId);
    const id = `bulk_${crypto.randomUUID().replaceAll("-", "")}`;
    const keep = (resultId: string, line: string): void => void lines.set(lineKey(id, resultId), line);
    const record = new BulkRecord({ id, total, keep, nowMs: this.#options.nowMs });
    bulks.set(id, record);
    return record;
  }

  /** A bulk request of this tenant. undefined: it is unknown, belongs to another tenant, or is too old. */
  bulk(tenantId: TenantId, bulkId: string): BulkRecord | undefined {
    return this.#tenants.get(tenantId)?.bulks.get(bulkId);
  }

  /** One result. undefined: it is not there yet, or `bulk` finds no such request. */
  line(tenantId: TenantId, bulkId: string, resultId: string): string | undefined {
    return this.#tenants.get(tenantId)?.lines.get(lineKey(bulkId, resultId));
  }

  #addTenant(tenantId: TenantId): TenantResults {
    const { bulksPerTenant, bytesPerTenant, keepMs, nowMs } = this.#options;
    const age = { ttl: keepMs, ttlResolution: 0, perf: { now: nowMs } };
    const results: TenantResults = {
      bulks: new LRUCache({ max: bulksPerTenant, ...age }),
      lines: new LRUCache({ maxSize: bytesPerTenant, sizeCalculation: bytesOf, ...age }),
    };
    this.#tenants.set(tenantId, results);
    return results;
  }
}

/** Bulk ids hold no space, so two different results never have the same key. */
const lineKey = (bulkId: string, resultId: string): string => `${bulkId} ${resultId}`;
/** Approximate memory in bytes: at most two for each character, and the fixed cost of an entry. */
const bytesOf = (line: string): number => 2 * line.length + 256;

interface BulkRecordOptions {
  readonly id: string;
  readonly total: number;
  readonly keep: (resultId: string, line: string) => void;
  readonly nowMs: () => number;
}

/** The progress of one bulk request. */
export class BulkRecord {
  readonly id: string;
  readonly total: number;
  readonly createdMs: number;
  readonly #options: BulkRecordOptions;
  #status: BulkStatus = "running";
  #order: QueryOrder | undefined;
  #completed = 0;
  #failed = 0;
  #usage: BulkUsage = { promptTokens: 0, completionTokens: 0, cachedTokens: 0, cacheWriteTokens: 0 };
  #endedMs: number | undefined;

  constructor(options: BulkRecordOptions) {
    this.id = options.id;
    this.total = options.total;
    this.createdMs = options.nowMs();
    this.#options = options;
  }

  /** Records the order of the queries once it is known. */
  planned(order: QueryOrder): void {
    this.#order = order;
  }

  /** @param usage undefined: the query failed */
  add(resultId: string, line: string, usage: BulkUsage | undefined): void {
    this.#options.keep(resultId, line);
    if (usage === undefined) {
      this.#failed += 1;
      return;
    }
    this.#completed += 1;
    this.#usage = {
      promptTokens: this.#usage.promptTokens + usage.promptTokens,
      completionTokens: this.#usage.completionTokens + usage.completionTokens,
      cachedTokens: this.#usage.cachedTokens + usage.cachedTokens,
      cacheWriteTokens: this.#usage.cacheWriteTokens + usage.cacheWriteTokens,
    };
  }

  /** Marks the request as ended: none of its queries runs any more. */
  end(): void {
    this.#status = this.#completed + this.#failed === this.total ? "completed" : "cancelled";
    this.#endedMs = this.#options.nowMs();
  }

  state() {
    return {
      status: this.#status,
      order: this.#order,
      completed: this.#completed,
      failed: this.#failed,
      usage: this.#usage,
      endedMs: this.#endedMs,
    };
  }
}
