/**
 * How much each span was used lately: a use counts half as much after each half-life. Memory is bounded: the spans that
 * were unused longest are forgotten.
 */
import { LRUCache } from "lru-cache";
import type { TokenPlan } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";

const halfLifeMs = 600_000;

interface Uses {
  readonly count: number;
  readonly atMs: number;
}

export class UseCounts {
  readonly #uses: LRUCache<BlockKey, Uses>;
  readonly #nowMs: () => number;

  constructor(maxSpans: number, nowMs: () => number = () => performance.now()) {
    this.#uses = new LRUCache({ max: maxSpans });
    this.#nowMs = nowMs;
  }

  /** Counts one use of each span of the plan. */
  note({ runs }: TokenPlan): void {
    for (const { kind, blockKeys } of runs) {
      const spanKey = blockKeys.at(-1);
      if (kind !== "span" || spanKey === undefined) continue;
      this.#uses.set(spanKey, { count: this.of(spanKey) + 1, atMs: this.#nowMs() });
    }
  }

  /** The uses of a span, each halved for every half-life since. */
  of(spanKey: BlockKey): number {
    const uses = this.#uses.peek(spanKey);
    return uses === undefined ? 0 : uses.count * 0.5 ** ((this.#nowMs() - uses.atMs) / halfLifeMs);
  }
}
