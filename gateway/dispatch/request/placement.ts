/** Which worker the requests of one tree run on. */

/**
 * Shared by the requests of one tree: outputs of some are segments of others, so they run where the blocks are. The
 * first that is placed decides by cost, or whoever made it; the others follow, and wait while that worker is full.
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
