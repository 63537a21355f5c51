/**
 * The blocks that requests in flight will store on their workers: their keys, so that requests over the same text follow
 * to the same worker, and the owners of their chains, so that the stored blocks are counted for their owner.
 */
import type { TenantId } from "../../../db/ids.ts";
import type { TokenPlan } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { WorkOwner } from "../request/request.ts";

/** The owner of a chain, and whether the chain is a fragment of a corpus. */
export interface ChainOwner {
  readonly tenantId: WorkOwner;
  readonly isFragment: boolean;
}

interface WorkerWork {
  /** Number of requests that are about to compute each block. */
  readonly keys: Map<BlockKey, number>;
  /** Owners of the chains that begin at or continue from each key, and the number of requests that have these chains. */
  readonly roots: Map<BlockKey, { readonly owner: ChainOwner; requests: number }>;
}

interface RequestWork {
  readonly workerId: string;
  readonly plan: TokenPlan;
  /** Keys of blocks that it is about to compute. undefined: its prompt is computed. */
  keys: readonly BlockKey[] | undefined;
}

export class PendingBlocks {
  readonly #workers = new Map<string, WorkerWork>();
  readonly #requests = new Map<string, RequestWork>();
  /** The owner of a corpus's fragments, by the key that their chains begin with. */
  readonly corpusOwner: (rootKey: BlockKey) => TenantId | undefined;

  constructor(corpusOwner: PendingBlocks["corpusOwner"]) {
    this.corpusOwner = corpusOwner;
  }

  /**
   * @param missing keys of the plan's blocks that the worker does not hold
   * @param tenantId owner of all chains that are not fragments of a corpus
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

  /** To be called when the request's prompt is computed, or will never be. */
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

  /** To be called when the worker has reported the request's end: it stores nothing more for it. */
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

  /** To be called when the worker is gone, with everything it was about to store. */
  forget(workerId: string): void {
    this.#workers.delete(workerId);
    for (const [requestId, request] of this.#requests)
      if (request.workerId === workerId) this.#requests.delete(requestId);
  }

  /** Whether a request on this worker is about to compute the block. */
  isComing(workerId: string, key: BlockKey): boolean {
    return this.#workers.get(workerId)?.keys.has(key) === true;
  }

  /** The owner of a chain that a request on this worker begins at or continues from this key. */
  ownerOf(workerId: string, rootKey: BlockKey): ChainOwner | undefined {
    return this.#workers.get(workerId)?.roots.get(rootKey)?.owner;
  }

  /** The owner of each run of a plan. @param tenantId owner of all chains that are not fragments of a corpus */
  tenantsOf({ runs }: TokenPlan, tenantId: WorkOwner): WorkOwner[] {
    return runs.map(({ rootKey }) => this.#ownerOf(rootKey, tenantId).tenantId);
  }

  /** The keys at which chains of the tenant begin or continue, of which requests on this worker compute blocks. */
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
    return this.#workers.getOrInsertComputed(workerId, () => ({ keys: new Map(), roots: new Map() }));
  }
}
