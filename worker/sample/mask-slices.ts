/**
 * Makes the masks of constrained requests between steps. The work between two steps is bounded. A request whose mask is
 * not ready then is not in the step, and its mask is continued before the next one, while others decode. Tenants get
 * equal shares of the work, and what one tenant does not need goes to the others. Of a tenant's requests the one that
 * has waited longest comes first.
 */
import type { WorkBudget } from "./mask-walk.ts";

export interface AwaitsMask {
  readonly owner: { readonly number: number };
  /** The next token cannot be drawn until `prepareMask` has done more work. */
  readonly awaitsMask: boolean;
  /** @throws RangeError when no mask can be made */
  prepareMask(budget: WorkBudget): void;
}

export class MaskSlices<Request extends AwaitsMask> {
  /** Work on all masks so far (WorkBudget). */
  spentWork = 0;
  readonly #stepWork: number;
  readonly #failed: (request: Request, error: RangeError) => void;
  /** Who waits longest comes first. */
  #awaiting: readonly Request[] = [];

  /**
   * @param stepWork of all masks between two steps (WorkBudget)
   * @param failed told of requests whose mask cannot be made
   */
  constructor(stepWork: number, failed: (request: Request, error: RangeError) => void) {
    this.#stepWork = stepWork;
    this.#failed = failed;
  }

  /** To be called once for each step. @param requests that may be in it */
  take(requests: readonly Request[]): void {
    const wanting = new Set(requests.filter(({ awaitsMask }) => awaitsMask));
    // In the order of first insertion.
    const order = new Set([...this.#awaiting.filter((request) => wanting.has(request)), ...wanting]);
    this.#awaiting = [...order];
    const byOwner = Map.groupBy(this.#awaiting, ({ owner }) => owner.number);
    let left = this.#stepWork;
    let owners = byOwner.size;
    for (const own of byOwner.values()) {
      const budget = { left: left / owners };
      const before = budget.left;
      for (const request of own) if (budget.left > 0) this.#prepare(request, budget);
      this.spentWork += before - budget.left;
      left = Math.max(0, left - before + budget.left);
      owners -= 1;
    }
  }

  #prepare(request: Request, budget: WorkBudget): void {
    try {
      request.prepareMask(budget);
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      this.#failed(request, error);
    }
  }
}
