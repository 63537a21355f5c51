/**
 * What the requests that a worker has will store there: the keys of the blocks they are about to compute, so that
 * requests over the same text follow them; and whose chains they are, so that what they store is counted for its owner.
 */
import type { TenantId } from "../../../db/ids.ts";
import type { TokenPlan } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { WorkOwner } from "../request/request.ts";

/** Whose a chain is, and whether it is a corpus's fragment. */
export interface ChainOwner {
  readonly tenantId: WorkOwner;
  readonly isFragment: boolean;
}

interface WorkerWork {
  /** Requests that are about to compute the block. */
  readonly keys: Map<BlockKey, number>;
  /** Owners of the chains that begin or go on from these keys, and requests that have them. */
  readonly roots: Map<BlockKey, { readonly owner: ChainOwner; requests: number }>;
}

interface RequestWork {
  readonly workerId: string;
  readonly plan: TokenPlan;
  /** undefined: its prompt is computed. */
  keys: readonly BlockKey[] | undefined;
}

export class PendingBlocks {
  readonly #workers = new Map<string, WorkerWork>();
  readonly #requests = new Map<string, RequestWork>();
  /** Owner of a corpus's fragments, by the key that their chains begin with. */
  readonly corpusOwner: (rootKey: BlockKey) => TenantId | undefined;

  constructor(corpusOwner: PendingBlocks["corpusOwner"]) {
    this.corpusOwner = corpusOwner;
  }

  /**
   * @param missing keys of the plan's blocks that the worker does not hold
   * @param tenantId owner of all chains that are no corpus's
   */
  begin(
    workerId: string,
    requestId: string,
    {
      plan,
      missing,
      tenantId,
    }: { readonly plan: TokenPlan; readonly missing: readonly BlockKey[]; tenantId: WorkOwner },
  ): void {
    const { keys, roots } = this.#workOf(workerId);
    for (const key of missing) keys.set(key, (keys.get(key) ?? 0) + 1);
    for (const { rootKey } of plan.runs) {
      const root = roots.get(rootKey);
      if (root === undefined) roots.set(rootKey, { owner: this.#ownerOf(rootKey, tenantId), requests: 1 });
      else root.requests += 1;
    }
    this.#requests.set(requestId, { workerId, plan, keys: missing });
  }

  /** The request's prompt is computed, or will not be. */
  prompted(requestId: string): void {
    const request = this.#requests.get(requestId);
    if (request?.keys === undefined) return;
    const { keys } = this.#workOf(request.workerId);
    for (const key of request.keys) {
      const count = keys.get(key) ?? 0;
      if (count > 1) keys.set(key, count - 1);
      else keys.delete(key);
    }
    request.keys = undefined;
  }

  /** The worker has told the request's end: it stores nothing more for it. */
  end(requestId: string): void {
    const request = this.#requests.get(requestId);
    if (request === undefined) return;
    this.prompted(requestId);
    this.#requests.delete(requestId);
    const { roots } = this.#workOf(request.workerId);
    for (const { rootKey } of request.plan.runs) {
      const root = roots.get(rootKey);
      if (root === undefined) continue;
      root.requests -= 1;
      if (root.requests === 0) roots.delete(rootKey);
    }
  }

  /** The worker is gone, with all it was about to store. */
  forget(workerId: string): void {
    this.#workers.delete(workerId);
    for (const [requestId, request] of this.#requests)
      if (request.workerId === workerId) this.#requests.delete(requestId);
  }

  /** A request that the worker has is about to compute the block. */
  isComing(workerId: string, key: BlockKey): boolean {
    return this.#workers.get(workerId)?.keys.has(key) === true;
  }

  /** Owner of a chain that a request on this worker begins or goes on from the key. */
  ownerOf(workerId: string, rootKey: BlockKey): ChainOwner | undefined {
    return this.#workers.get(workerId)?.roots.get(rootKey)?.owner;
  }

  /** Whose each run of a plan is. @param tenantId owner of all chains that are no corpus's */
  tenantsOf({ runs }: TokenPlan, tenantId: WorkOwner): WorkOwner[] {
    return runs.map(({ rootKey }) => this.#ownerOf(rootKey, tenantId).tenantId);
  }

  /** What the tenant's chains begin or go on from, of which requests on this worker compute something. */
  rootsOf(workerId: string, tenantId: WorkOwner, withoutFragments: boolean): BlockKey[] {
    return [...(this.#workers.get(workerId)?.roots ?? [])]
      .filter(([, { owner }]) => owner.tenantId === tenantId && !(withoutFragments && owner.isFragment))
      .map(([rootKey]) => rootKey);
  }

  #ownerOf(rootKey: BlockKey, tenantId: WorkOwner): ChainOwner {
    const corpusOwner = this.corpusOwner(rootKey);
    return { tenantId: corpusOwner ?? tenantId, isFragment: corpusOwner !== undefined };
  }

  #workOf(workerId: string): WorkerWork {
    const found = this.#workers.get(workerId);
    if (found !== undefined) return found;
    const created: WorkerWork = { keys: new Map(), roots: new Map() };
    this.#workers.set(workerId, created);
    return created;
  }
}
