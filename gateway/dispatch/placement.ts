/** Which of the ready workers takes a request: the one its tree is on, the one its name falls on, or the cheapest. */
import type { Registry, WorkerRecord } from "./registry.ts";
import type { DispatchRequest } from "./request.ts";
import type { Residency } from "./residency.ts";
import { type Candidate, chooseWorker, workerByName } from "./route.ts";

/**
 * Shared by the requests of one tree: outputs of some are segments of others, so they run where the blocks are. The
 * first that is placed decides by cost; the others follow while that worker has room.
 */
export class Placement {
  #workerId: string | undefined;

  /** undefined before the first request was placed. */
  get workerId(): string | undefined {
    return this.#workerId;
  }

  moveTo(workerId: string): void {
    this.#workerId = workerId;
  }
}

export interface PlacerOptions {
  readonly registry: Registry;
  readonly residency: Residency;
  readonly maxInFlightPerWorker: number;
}

export class Placer {
  readonly #options: PlacerOptions;

  constructor(options: PlacerOptions) {
    this.#options = options;
  }

  /** Of these workers, those with room count. @returns undefined when none has room */
  choose(ready: readonly WorkerRecord[], request: DispatchRequest, promptTokens: number): Candidate | undefined {
    const open = ready.filter((worker) => worker.inFlight < this.#options.maxInFlightPerWorker);
    const candidates = open.map((worker): Candidate => {
      const { id, pendingTokens, inFlight } = worker;
      return { id, pendingTokens, inFlight, cachedTokens: this.#cachedTokens(id, request) };
    });
    const { affinity = "", sticky = false, placement } = request;
    const followed = candidates.find(({ id }) => id === placement?.workerId);
    if (followed !== undefined) return followed;
    const workerId = sticky ? workerByName(candidates, affinity) : chooseWorker(candidates, promptTokens, affinity);
    if (workerId !== undefined) placement?.moveTo(workerId);
    return candidates.find(({ id }) => id === workerId);
  }

  #cachedTokens(workerId: string, { reuse, plan }: DispatchRequest): number {
    if (!reuse) return 0;
    const { registry, residency } = this.#options;
    return residency.cachedTokens(workerId, plan.runs, registry.card()?.blockTokens ?? 1);
  }
}
