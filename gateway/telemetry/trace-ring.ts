/**
 * The last requests of each tenant, in memory: what of their time was spent where, and where their fragments' KV was
 * from. It is bounded by traces a tenant and by bytes in all; where bytes are short, the tenant goes whose last request
 * is longest ago. What only a trace's own page shows is one string of JSON: exact to count, and nothing for the
 * garbage collector to walk through.
 */
import type { EndedTrace, TraceDetails, TraceHead } from "./ended-trace.ts";

export interface TraceRingOptions {
  readonly tracesPerTenant: number;
  /** Bytes of memory that the traces of all tenants may take together. Their size is estimated, never too low. */
  readonly mostBytes: number;
}

/** Whose traces a caller may see. An absent field stands for all. */
export interface TraceView {
  readonly tenantId?: string | undefined;
  /** A key's own requests alone. */
  readonly keyId?: string | undefined;
}

export interface TraceQuery {
  readonly limit: number;
  /** The newest first, or those that took longest. */
  readonly order: "newest" | "slowest";
  /** The trace that the page comes after, when the newest are first. */
  readonly after?: TraceHead | undefined;
}

interface Kept {
  readonly head: TraceHead;
  /** A `TraceDetails` as JSON. */
  readonly details: string;
  readonly bytes: number;
  /** The n-th that was kept. */
  readonly sequence: number;
  gone: boolean;
}

interface TenantTraces {
  readonly tenantId: string;
  /** The oldest first. */
  readonly kept: Kept[];
}

/**
 * Bytes of a trace beside its details: objects with some thirty fields and numbers, their places in three maps and
 * lists, and the sums by stage. Measured at 670, with six stages; taken from above.
 */
const headBytes = 1_024;

export class TraceRing {
  readonly #options: TraceRingOptions;
  /** The tenant whose last request is longest ago comes first. */
  readonly #tenants = new Map<string, TenantTraces>();
  readonly #byId = new Map<string, Kept>();
  /** All traces, the oldest first. Those that were dropped stay in the list until they are more than half of it. */
  #all: Kept[] = [];
  #goneCount = 0;
  #bytes = 0;
  #sequence = 0;

  constructor(options: TraceRingOptions) {
    this.#options = options;
  }

  /** Bytes of all that is kept. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Keeps a trace, unless its request has no tenant or it alone is more than there is room for. */
  add({ head, details }: EndedTrace): void {
    const { tenantId } = head;
    if (tenantId === undefined) return;
    const text = JSON.stringify(details);
    this.#sequence += 1;
    const bytes = headBytes + text.length;
    if (bytes > this.#options.mostBytes) return;
    const kept: Kept = { head, details: text, bytes, sequence: this.#sequence, gone: false };
    const tenant = this.#tenants.get(tenantId) ?? { tenantId, kept: [] };
    this.#tenants.delete(tenantId);
    this.#tenants.set(tenantId, tenant);
    tenant.kept.push(kept);
    this.#bytes += bytes;
    this.#byId.set(head.requestId, kept);
    this.#all.push(kept);
    if (tenant.kept.length > this.#options.tracesPerTenant) this.#dropOldest(tenant);
    this.#makeRoom(tenant);
    if (this.#goneCount > this.#all.length / 2) this.#compact();
  }

  /** Forgets all of a tenant that is deleted. */
  forget(tenantId: string): void {
    const tenant = this.#tenants.get(tenantId);
    if (tenant !== undefined) this.#dropTenant(tenant);
  }

  /** A trace that the caller may see; undefined: there is none with this id, or it is somebody else's. */
  find(requestId: string, view: TraceView): TraceHead | undefined {
    const kept = this.#byId.get(requestId);
    return kept !== undefined && isVisible(kept.head, view) ? kept.head : undefined;
  }

  /** What a trace's own page shows; undefined as of `find`. */
  details(requestId: string, view: TraceView): TraceDetails | undefined {
    const kept = this.#byId.get(requestId);
    if (kept === undefined || !isVisible(kept.head, view)) return undefined;
    return JSON.parse(kept.details) as TraceDetails;
  }

  list(view: TraceView, { limit, order, after }: TraceQuery): { rows: readonly TraceHead[]; hasMore: boolean } {
    const kept = view.tenantId === undefined ? this.#all : (this.#tenants.get(view.tenantId)?.kept ?? []);
    if (order === "slowest") return slowest(kept, view, limit);
    const before = after === undefined ? undefined : this.#byId.get(after.requestId)?.sequence;
    const rows: TraceHead[] = [];
    for (let index = kept.length - 1; index >= 0; index--) {
      const one = kept[index];
      if (one === undefined || one.gone || !isVisible(one.head, view)) continue;
      if (before !== undefined && one.sequence >= before) continue;
      if (rows.length === limit) return { rows, hasMore: true };
      rows.push(one.head);
    }
    return { rows, hasMore: false };
  }

  #makeRoom(tenant: TenantTraces): void {
    for (const other of this.#tenants.values()) {
      if (this.#bytes <= this.#options.mostBytes) return;
      if (other !== tenant) this.#dropTenant(other);
    }
    while (this.#bytes > this.#options.mostBytes) this.#dropOldest(tenant);
  }

  #dropTenant(tenant: TenantTraces): void {
    for (const kept of tenant.kept) this.#drop(kept);
    this.#tenants.delete(tenant.tenantId);
  }

  #dropOldest(tenant: TenantTraces): void {
    const oldest = tenant.kept.shift();
    if (oldest !== undefined) this.#drop(oldest);
  }

  #drop(kept: Kept): void {
    const { requestId } = kept.head;
    kept.gone = true;
    this.#goneCount += 1;
    this.#bytes -= kept.bytes;
    if (this.#byId.get(requestId) === kept) this.#byId.delete(requestId);
  }

  #compact(): void {
    this.#all = this.#all.filter(({ gone }) => !gone);
    this.#goneCount = 0;
  }
}

const isVisible = (head: TraceHead, { tenantId, keyId }: TraceView): boolean =>
  (tenantId === undefined || head.tenantId === tenantId) && (keyId === undefined || head.keyId === keyId);

/** Keeps the `limit` longest while it goes through all; each that is longer goes to its place among them. */
function slowest(kept: readonly Kept[], view: TraceView, limit: number) {
  const rows: TraceHead[] = [];
  let visible = 0;
  for (let index = kept.length - 1; index >= 0; index--) {
    const one = kept[index];
    if (one === undefined || one.gone || !isVisible(one.head, view)) continue;
    visible += 1;
    const { head } = one;
    const last = rows.at(-1);
    if (rows.length === limit && last !== undefined && last.durationMs >= head.durationMs) continue;
    const place = rows.findIndex(({ durationMs }) => durationMs < head.durationMs);
    rows.splice(place < 0 ? rows.length : place, 0, head);
    if (rows.length > limit) rows.pop();
  }
  return { rows, hasMore: visible > limit };
}
