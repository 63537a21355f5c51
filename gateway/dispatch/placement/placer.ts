/** Chooses the ready worker that takes a request: the one that the request names, or else the cheapest one with room. */
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { PendingBlocks } from "../kv/pending-blocks.ts";
import { firstBlocks, type Residency, tokensBefore } from "../kv/residency.ts";
import type { DispatchRequest } from "../request/request.ts";
import type { Registry, WorkerRecord } from "../workers/registry.ts";
import { type Candidate, chooseWorker, missingTokens } from "./route.ts";
import type { WorkerAdmission } from "./worker-admission.ts";

export interface PlacerOptions {
  readonly registry: Registry;
  readonly residency: Residency;
  readonly pendingBlocks: PendingBlocks;
  readonly admission: Pick<WorkerAdmission, "isOpen" | "hasPromptRoom">;
}

export interface Placed {
  readonly workerId: string;
  /** Prompt tokens that the worker will compute for this request alone. */
  readonly missingTokens: number;
  /** Keys of the blocks that the worker does not hold yet and will keep. */
  readonly missing: readonly BlockKey[];
}

export class Placer {
  readonly #options: PlacerOptions;

  constructor(options: PlacerOptions) {
    this.#options = options;
  }

  /**
   * Only workers with room for the tenant are considered.
   * @returns undefined when no worker has room, or when the best one has no room for more of the tenant's prompts
   */
  choose(ready: readonly WorkerRecord[], request: DispatchRequest, promptTokens: number): Placed | undefined {
    const { affinity = "", placement, tenantId, background } = request;
    const followed = ready.find(({ id }) => id === placement?.workerId);
    const { admission } = this.#options;
    const possible = followed === undefined ? ready : [followed];
    const open = possible.filter(({ id, inFlight }) => admission.isOpen(id, inFlight, tenantId, background));
    const candidates = open.map((worker) => this.#candidate(worker, request));
    const workerId = chooseWorker(candidates, promptTokens, affinity);
    const chosen = candidates.find(({ id }) => id === workerId);
    if (chosen === undefined) return undefined;
    if (background !== true && !admission.hasPromptRoom(chosen.id, tenantId)) return undefined;
    placement?.moveTo(chosen.id);
    const missing = request.reuse ? this.#missingKeys(chosen.id, request) : [];
    return { workerId: chosen.id, missingTokens: missingTokens(chosen, promptTokens), missing };
  }

  #candidate({ id, pendingTokens, inFlight }: WorkerRecord, { reuse, plan }: DispatchRequest): Candidate {
    if (!reuse) return { id, pendingTokens, inFlight, cachedTokens: 0, upcomingTokens: 0 };
    const { registry, residency, pendingBlocks } = this.#options;
    const blockTokens = registry.card()?.blockTokens ?? 1;
    const cachedTokens = residency.cachedTokens(id, plan.runs, blockTokens);
    const isThereSoon = (key: BlockKey): boolean => residency.holds(id, key) || pendingBlocks.isComing(id, key);
    const upcomingTokens = tokensBefore(plan.runs, blockTokens, isThereSoon) - cachedTokens;
    return { id, pendingTokens, inFlight, cachedTokens, upcomingTokens };
  }

  #missingKeys(workerId: string, { plan }: DispatchRequest): BlockKey[] {
    const { residency } = this.#options;
    const isHeld = (key: BlockKey): boolean => residency.holds(workerId, key);
    return plan.runs.flatMap(({ blockKeys }) => blockKeys.slice(firstBlocks(blockKeys, isHeld)));
  }
}
