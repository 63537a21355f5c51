/**
 * Results of bulk requests, kept for a while so that each can be asked for by its id. In memory only, bounded for each
 * tenant by bytes and by time; the oldest go first.
 */
import { LRUCache } from "lru-cache";
import type { TenantId } from "../../../db/ids.ts";

/** The order in which the queries of a bulk request run. */
export type QueryOrder = "planned" | "ingestion";

export type BulkStatus = "running" | "completed" | "cancelled";

export interface BulkUsage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Prompt tokens whose KV was found. */
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
  /** `bulk id, result id` -> the result as its JSON line. */
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

  /** undefined: unknown, another tenant's, or too old. */
  bulk(tenantId: TenantId, bulkId: string): BulkRecord | undefined {
    return this.#tenants.get(tenantId)?.bulks.get(bulkId);
  }

  /** undefined: not there yet, or one of `bulk`'s reasons. */
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

/** Bulk ids hold no space. */
const lineKey = (bulkId: string, resultId: string): string => `${bulkId} ${resultId}`;
/** Two bytes a character at most, and what an entry costs by itself. */
const bytesOf = (line: string): number => 2 * line.length + 256;

interface BulkRecordOptions {
  readonly id: string;
  readonly total: number;
  readonly keep: (resultId: string, line: string) => void;
  readonly nowMs: () => number;
}

/** How far one bulk request is. */
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

  /** The order that queries run in, once it is known. */
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

  /** Nothing of it runs any more. */
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
