/**
 * Brings KV nearer while nobody waits for it: of fragments that a search or a query has named, from the bucket to the
 * folder and from there to a worker, before a prompt asks for it. All of this is a hint: it makes no room in the folder,
 * tenants have their turns, and what comes too late or does not fit is left out.
 */

import type { FragmentId, TenantId } from "../../db/ids.ts";
import { inBucket } from "../../db/kv-bucket.ts";
import { kvObjectsOfFragments } from "../../db/kv-objects.ts";
import type { Db } from "../../db/open.ts";
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import type { KvPlaces } from "./places.ts";

export interface KvPrefetchOptions {
  readonly db: Db;
  readonly places: () => Pick<KvPlaces, "fetchAhead"> | undefined;
  /** Whether any worker holds the span. */
  readonly isHeld: (spanKey: BlockKey) => boolean;
  /** The worker that a question would most likely go to; undefined: none is ready. */
  readonly likelyWorker: () => string | undefined;
  readonly send: (workerId: string, message: GatewayMessage) => boolean;
  readonly nowMs?: () => number;
}

interface Wish {
  readonly objectId: string;
  readonly untilMs: number;
}

/** Fragments of one look, those that were named last, and objects that a tenant waits for. */
const [mostFragments, mostWaiting] = [64, 64];
const mostTenants = 1_024;
const fetchesAtOnce = 8;
/** After so long a question has come, or will not. */
const patienceMs = 10_000;

export class KvPrefetch {
  readonly #options: KvPrefetchOptions;
  readonly #nowMs: () => number;
  /** What was named since the last look into the database; each look is one tenant's. */
  readonly #named = new Map<TenantId, readonly FragmentId[]>();
  #isLooking = false;
  /** What is in the bucket alone; the tenant whose turn it is comes first. */
  readonly #lines = new Map<TenantId, Wish[]>();
  #fetching = 0;

  constructor(options: KvPrefetchOptions) {
    this.#options = options;
    this.#nowMs = options.nowMs ?? (() => performance.now());
  }

  /** A question over these fragments may come soon. Returns at once. */
  want(tenantId: TenantId, fragmentIds: readonly FragmentId[]): void {
    if (fragmentIds.length === 0 || this.#options.places() === undefined) return;
    const before = this.#named.get(tenantId) ?? [];
    if (before.length === 0 && this.#named.size >= mostTenants) return;
    this.#named.set(tenantId, [...before, ...fragmentIds.slice(0, mostFragments)].slice(-mostFragments));
    if (this.#isLooking) return;
    this.#isLooking = true;
    // The answer to the search comes first.
    setImmediate(() => this.#lookNext());
  }

  #lookNext(): void {
    const [next] = this.#named;
    this.#isLooking = next !== undefined;
    if (next === undefined) return;
    this.#named.delete(next[0]);
    this.#look(...next);
    setImmediate(() => this.#lookNext());
  }

  #look(tenantId: TenantId, fragmentIds: readonly FragmentId[]): void {
    const { db, isHeld } = this.#options;
    const untilMs = this.#nowMs() + patienceMs;
    try {
      const lacking = kvObjectsOfFragments(db, fragmentIds).filter(({ spanKey }) => !isHeld(spanKey as BlockKey));
      this.#tell(lacking.filter(({ onDisk }) => onDisk === 1).map(({ id }) => id));
      const far = lacking.filter((row) => row.onDisk === 0 && row.inBucket === inBucket.yes);
      this.#wait(
        tenantId,
        far.map(({ id: objectId }) => ({ objectId, untilMs })),
      );
    } catch {
      // The database is closed or busy: what a question lacks it loads itself.
    }
  }

  #tell(objectIds: readonly string[]): void {
    const { likelyWorker, send } = this.#options;
    const workerId = objectIds.length === 0 ? undefined : likelyWorker();
    if (workerId !== undefined) send(workerId, { type: "prefetch", objectIds });
  }

  #wait(tenantId: TenantId, wishes: readonly Wish[]): void {
    const line = this.#lines.get(tenantId) ?? [];
    if (wishes.length === 0 || (line.length === 0 && this.#lines.size >= mostTenants)) return;
    this.#lines.set(tenantId, [...line, ...wishes].slice(-mostWaiting));
    this.#begin();
  }

  #begin(): void {
    while (this.#fetching < fetchesAtOnce) {
      const wish = this.#take();
      if (wish === undefined) return;
      this.#fetching += 1;
      void this.#fetch(wish).finally(() => {
        this.#fetching -= 1;
        this.#begin();
      });
    }
  }

  #take(): Wish | undefined {
    for (const [tenantId, line] of this.#lines) {
      const fresh = line.filter(({ untilMs }) => this.#nowMs() < untilMs);
      const wish = fresh.shift();
      // Whoever was served comes last.
      this.#lines.delete(tenantId);
      if (fresh.length > 0) this.#lines.set(tenantId, fresh);
      if (wish !== undefined) return wish;
    }
    return undefined;
  }

  async #fetch({ objectId }: Wish): Promise<void> {
    try {
      if (await this.#options.places()?.fetchAhead(objectId)) this.#tell([objectId]);
    } catch {
      // As above.
    }
  }
}
