/** Which worker the requests of one tree run on. */

/**
 * The requests of one tree share a placement. Outputs of some are segments of others, so all run on the worker that
 * holds the blocks. The first request that is placed chooses the worker by cost, unless the placement was made for one.
 * The others follow, and wait while that worker is full.
 */
export class Placement {
  #workerId: string | undefined;

  constructor(workerId?: string) {
    this.#workerId = workerId;
  }

  /** undefined before the first request was placed. */
  get workerId(): string | undefined {
    return this.#workerId;
  }

  moveTo(workerId: string): void {
    this.#workerId = workerId;
  }
}
