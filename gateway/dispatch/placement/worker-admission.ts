/**
 * Decides how many requests each worker gets at a time. A tenant that is alone fills the worker's batch and a little
 * more, which waits there so that no place stays empty while a request is on its way. While other tenants were active
 * lately, no request waits at a worker, and the last places are kept for tenants with few requests there, so that a
 * newcomer finds room. A tenant then also has no more prompt tokens there than two steps compute, because a newcomer
 * shares the steps with them. Background work fills only a part of the batch, and none of it while others fill that part.
 */
import type { WorkOwner } from "../request/request.ts";
import type { Registry } from "../workers/registry.ts";

export interface WorkerAdmissionOptions {
  /** Requests that a worker runs at the same time. */
  readonly maxRunningPerWorker: number;
  readonly registry: Pick<Registry, "card">;
  readonly nowMs: () => number;
}

/** What one tenant has on one worker. */
interface Held {
  requests: number;
  /** Prompt tokens of these requests that the worker has yet to compute. */
  promptTokens: number;
}

/** Share of the batch that may wait at the worker in addition, or that is kept free for newcomers. */
const share = 1 / 8;
/** Steps whose prompt tokens a tenant may have on a worker: the step that runs, and the next. */
const stepsAhead = 2;
/** Share of the batch up to which background work is added. */
const backgroundShare = 1 / 4;
/** A tenant counts as active for so long after its last request, in milliseconds. */
const lateMs = 60_000;

export class WorkerAdmission {
  readonly #maxRunning: number;
  readonly #reserve: number;
  readonly #nowMs: () => number;
  readonly #registry: Pick<Registry, "card">;
  /** What each tenant has at each worker, by the ids of both. */
  readonly #held = new Map<string, Map<string, Held>>();
  /** The two tenants that came last: enough to know whether a tenant is alone. */
  #latest: { readonly tenantId: WorkOwner; readonly atMs: number } | undefined;
  #other: { readonly tenantId: WorkOwner; readonly atMs: number } | undefined;

  constructor({ maxRunningPerWorker, registry, nowMs }: WorkerAdmissionOptions) {
    this.#maxRunning = maxRunningPerWorker;
    this.#reserve = Math.floor(maxRunningPerWorker * share);
    this.#registry = registry;
    this.#nowMs = nowMs;
  }

  /** Notes that a request of the tenant has come. */
  note(tenantId: WorkOwner): void {
    if (this.#latest !== undefined && this.#latest.tenantId !== tenantId) this.#other = this.#latest;
    this.#latest = { tenantId, atMs: this.#nowMs() };
  }

  /** Whether one more request of the tenant may go to the worker. @param inFlight requests of all tenants on the worker */
  isOpen(workerId: string, inFlight: number, tenantId: WorkOwner, background = false): boolean {
    if (background) return inFlight < Math.max(1, Math.floor(this.#maxRunning * backgroundShare));
    if (this.#isAlone(tenantId)) return inFlight < this.#maxRunning + this.#reserve;
    const requests = this.#held.get(workerId)?.get(tenantId)?.requests ?? 0;
    return inFlight < this.#maxRunning - (requests < this.#reserve ? 0 : this.#reserve);
  }

  /** Whether there is room for more of the tenant's prompts. If not, the request waits for this worker, which holds its text. */
  hasPromptRoom(workerId: string, tenantId: WorkOwner): boolean {
    if (this.#isAlone(tenantId)) return true;
    const promptTokens = this.#held.get(workerId)?.get(tenantId)?.promptTokens ?? 0;
    return promptTokens < stepsAhead * (this.#registry.card()?.stepPromptTokens ?? Number.POSITIVE_INFINITY);
  }

  /** A request goes to the worker. @param promptTokens tokens that the worker is to compute for it */
  enter(workerId: string, tenantId: WorkOwner, promptTokens: number): void {
    const tenants = this.#held.getOrInsertComputed(workerId, () => new Map());
    const { requests, promptTokens: before } = tenants.get(tenantId) ?? { requests: 0, promptTokens: 0 };
    tenants.set(tenantId, { requests: requests + 1, promptTokens: before + promptTokens });
  }

  /** Says that this many of the tenant's prompt tokens are computed, or will never be. */
  prompted(workerId: string, tenantId: WorkOwner, promptTokens: number): void {
    const held = this.#held.get(workerId)?.get(tenantId);
    if (held !== undefined) held.promptTokens -= promptTokens;
  }

  /** A request leaves the worker; `prompted` was called for its prompt before. */
  leave(workerId: string, tenantId: WorkOwner): void {
    const tenants = this.#held.get(workerId);
    const held = tenants?.get(tenantId);
    if (held === undefined) return;
    held.requests -= 1;
    if (held.requests === 0) tenants?.delete(tenantId);
  }

  /** To be called when the worker is gone, with all of its requests. */
  forget(workerId: string): void {
    this.#held.delete(workerId);
  }

  #isAlone(tenantId: WorkOwner): boolean {
    const another = this.#latest?.tenantId === tenantId ? this.#other : this.#latest;
    return another === undefined || another.tenantId === tenantId || this.#nowMs() - another.atMs > lateMs;
  }
}
