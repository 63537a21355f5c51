/**
 * How many requests each worker gets at a time. A tenant that is alone fills the worker's batch, and a little more that
 * waits there, so that no place of it is empty while a request is on its way. While others have been there lately
 * nothing waits at a worker, and the last places are kept for tenants that have few requests there: whoever comes with
 * one finds room. Background work fills a part of the batch only, and nothing while others fill that.
 */
export interface WindowOptions {
  /** Requests that a worker runs at the same time. */
  readonly maxRunningPerWorker: number;
  readonly nowMs: () => number;
}

/** Part of the batch that waits at the worker besides, or is kept free. */
const share = 1 / 8;
/** Part of the batch up to which background work is added. */
const backgroundShare = 1 / 4;
/** A tenant counts as there so long after its last request. */
const lateMs = 60_000;

export class Windows {
  readonly #maxRunning: number;
  readonly #reserve: number;
  readonly #nowMs: () => number;
  /** Requests of each tenant at each worker. */
  readonly #counts = new Map<string, Map<string, number>>();
  /** The two tenants that came last: enough to know whether there was another one. */
  #latest: { readonly tenantId: string; readonly atMs: number } | undefined;
  #other: { readonly tenantId: string; readonly atMs: number } | undefined;

  constructor({ maxRunningPerWorker, nowMs }: WindowOptions) {
    this.#maxRunning = maxRunningPerWorker;
    this.#reserve = Math.floor(maxRunningPerWorker * share);
    this.#nowMs = nowMs;
  }

  /** A request of the tenant has come. */
  note(tenantId: string): void {
    if (this.#latest !== undefined && this.#latest.tenantId !== tenantId) this.#other = this.#latest;
    this.#latest = { tenantId, atMs: this.#nowMs() };
  }

  isOpen(workerId: string, inFlight: number, tenantId: string, background = false): boolean {
    if (background) return inFlight < Math.max(1, Math.floor(this.#maxRunning * backgroundShare));
    if (this.#isAlone(tenantId)) return inFlight < this.#maxRunning + this.#reserve;
    const own = this.#counts.get(workerId)?.get(tenantId) ?? 0;
    return inFlight < this.#maxRunning - (own < this.#reserve ? 0 : this.#reserve);
  }

  enter(workerId: string, tenantId: string): void {
    const counts = this.#counts.get(workerId) ?? new Map<string, number>();
    this.#counts.set(workerId, counts);
    counts.set(tenantId, (counts.get(tenantId) ?? 0) + 1);
  }

  leave(workerId: string, tenantId: string): void {
    const counts = this.#counts.get(workerId);
    const left = (counts?.get(tenantId) ?? 1) - 1;
    if (left > 0) counts?.set(tenantId, left);
    else counts?.delete(tenantId);
  }

  /** The worker is gone, with all that it had. */
  forget(workerId: string): void {
    this.#counts.delete(workerId);
  }

  #isAlone(tenantId: string): boolean {
    const another = this.#latest?.tenantId === tenantId ? this.#other : this.#latest;
    return another === undefined || another.tenantId === tenantId || this.#nowMs() - another.atMs > lateMs;
  }
}
