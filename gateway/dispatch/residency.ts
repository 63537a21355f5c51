/**
 * Which worker holds which blocks, as told by their KV events. A hint for routing and reports: a wrong
 * entry costs a recomputation, never a wrong answer.
 */
import type { KvEvent, PlanRun } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";

export class Residency {
  readonly #keysByWorker = new Map<string, Set<BlockKey>>();

  apply(workerId: string, events: readonly KvEvent[]): void {
    const keys = this.#keysOf(workerId);
    for (const event of events) {
      if (event.type === "cleared") keys.clear();
      else if (event.type === "stored") for (const key of event.blockKeys) keys.add(key);
      else for (const key of event.blockKeys) keys.delete(key);
    }
  }

  /** The worker's memory is gone. */
  forget(workerId: string): void {
    this.#keysByWorker.delete(workerId);
  }

  /** Workers that hold the key. */
  holders(key: BlockKey): readonly string[] {
    return [...this.#keysByWorker].filter(([, keys]) => keys.has(key)).map(([workerId]) => workerId);
  }

  /** Blocks the worker holds under a key. */
  blockCount(workerId: string): number {
    return this.#keysByWorker.get(workerId)?.size ?? 0;
  }

  /** Tokens of the runs that the worker holds, as far as can be told. */
  cachedTokens(workerId: string, runs: readonly PlanRun[], blockTokens: number): number {
    const keys = this.#keysByWorker.get(workerId);
    if (keys === undefined || keys.size === 0) return 0;
    let tokens = 0;
    for (const run of runs) {
      const blocks = heldBlocks(run.blockKeys, keys);
      tokens += Math.min(blocks * blockTokens, run.tokenIds.length);
    }
    return tokens;
  }

  #keysOf(workerId: string): Set<BlockKey> {
    const found = this.#keysByWorker.get(workerId);
    if (found !== undefined) return found;
    const created = new Set<BlockKey>();
    this.#keysByWorker.set(workerId, created);
    return created;
  }
}

/**
 * How many first blocks of a chain are held. Blocks are freed from the end of a chain, so what is held is a
 * prefix and can be found by bisection: a chain of 1,024 blocks costs 11 look-ups.
 */
function heldBlocks(blockKeys: readonly BlockKey[], held: ReadonlySet<BlockKey>): number {
  const isHeld = (index: number): boolean => {
    const key = blockKeys[index];
    return key !== undefined && held.has(key);
  };
  if (isHeld(blockKeys.length - 1)) return blockKeys.length;
  let low = 0;
  let high = blockKeys.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (isHeld(middle)) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low);
}
