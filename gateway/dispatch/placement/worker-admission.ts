/**
 * How many requests each worker gets at a time. A tenant that is alone fills the worker's batch, and a little more that
 * waits there, so that no place of it is empty while a request is on its way. While others have been there lately
 * nothing waits at a worker, and the last places are kept for tenants that have few requests there: whoever comes with
 * one finds room. Nor has a tenant more of its prompts there then than two steps compute, since whoever comes shares the
 * steps with them. Background work fills a part of the batch only, and nothing while others fill that.
 */
import type { WorkOwner } from "../request/request.ts";
import type { Registry } from "../workers/registry.ts";

export interface WorkerAdmissionOptions {
  /** Requests that a worker runs at the same time. */
  readonly maxRunningPerWorker: number;
  readonly registry: Pick<Registry, "card">;
  readonly nowMs: () => number;
}

/** What a worker has of one tenant's. */
interface Held {
  requests: number;
  /** Of their prompts, those that the worker has yet to compute. */
  promptTokens: number;
}

/** Part of the batch that waits at the worker besides, or is kept free. */
const share = 1 / 8;
/** Steps' worth of a tenant's prompts: the step that runs, and the next. */
const stepsAhead = 2;
/** Part of the batch up to which background work is added. */
const backgroundShare = 1 / 4;
/** A tenant counts as there so long after its last request. */
const lateMs = 60_000;

export class WorkerAdmission {
  readonly #maxRunning: number;
  readonly #reserve: number;
  readonly #nowMs: () => number;
  readonly #registry: Pick<Registry, "card">;
  /** By worker and tenant. */
  readonly #held = new Map<string, Map<string, Held>>();
  /** The two tenants that came last: enough to know whether there was another one. */
  #latest: { readonly tenantId: WorkOwner; readonly atMs: number } | undefined;
  #other: { readonly tenantId: WorkOwner; readonly atMs: number } | undefined;

  constructor({ maxRunningPerWorker, registry, nowMs }: WorkerAdmissionOptions) {
    this.#maxRunning = maxRunningPerWorker;
    this.#reserve = Math.floor(maxRunningPerWorker * share);
    this.#registry = registry;
    this.#nowMs = nowMs;
  }

  /** A request of the tenant has come. */
  note(tenantId: WorkOwner): void {
    if (this.#latest !== undefined && this.#latest.tenantId !== tenantId) this.#other = this.#latest;
    this.#latest = { tenantId, atMs: this.#nowMs() };
  }

  /** Whether one more request of the tenant may go there. @param inFlight requests that the worker has, of everybody */
  isOpen(workerId: string, inFlight: number, tenantId: WorkOwner, background = false): boolean {
    if (background) return inFlight < Math.max(1, Math.floor(this.#maxRunning * backgroundShare));
    if (this.#isAlone(tenantId)) return inFlight < this.#maxRunning + this.#reserve;
    const requests = this.#held.get(workerId)?.get(tenantId)?.requests ?? 0;
    return inFlight < this.#maxRunning - (requests < this.#reserve ? 0 : this.#reserve);
  }

  /** Is there room for more of the tenant's prompts? Where there is none it waits for this worker, which has its text. */
  hasPromptRoom(workerId: string, tenantId: WorkOwner): boolean {
    if (this.#isAlone(tenantId)) return true;
    const promptTokens = this.#held.get(workerId)?.get(tenantId)?.promptTokens ?? 0;
    return promptTokens < stepsAhead * (this.#registry.card()?.stepPromptTokens ?? Number.POSITIVE_INFINITY);
  }

  /** @param promptTokens that the worker is to compute */
  enter(workerId: string, tenantId: WorkOwner, promptTokens: number): void {
    const tenants = this.#held.get(workerId) ?? new Map<string, Held>();
    this.#held.set(workerId, tenants);
    const { requests, promptTokens: before } = tenants.get(tenantId) ?? { requests: 0, promptTokens: 0 };
    tenants.set(tenantId, { requests: requests + 1, promptTokens: before + promptTokens });
  }

  /** So much of the tenant's prompts is computed, or will not be. */
  prompted(workerId: string, tenantId: WorkOwner, promptTokens: number): void {
    const held = this.#held.get(workerId)?.get(tenantId);
    if (held !== undefined) held.promptTokens -= promptTokens;
  }

  /** Its prompt is done with: see `prompted`. */
  leave(workerId: string, tenantId: WorkOwner): void {
    const tenants = this.#held.get(workerId);
    const held = tenants?.get(tenantId);
    if (held === undefined) return;
    held.requests -= 1;
    if (held.requests === 0) tenants?.delete(tenantId);
  }

  /** The worker is gone, with all that it had. */
  forget(workerId: string): void {
    this.#held.delete(workerId);
  }

  #isAlone(tenantId: WorkOwner): boolean {
    const another = this.#latest?.tenantId === tenantId ? this.#other : this.#latest;
    return another === undefined || another.tenantId === tenantId || this.#nowMs() - another.atMs > lateMs;
  }
}
