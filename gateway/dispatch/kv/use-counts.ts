/** How much each span is used lately: uses that fade by half in each half-life. Bounded; the longest unused are forgotten. */
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

  /** A prompt over the plan's spans is asked. */
  note({ runs }: TokenPlan): void {
    for (const { kind, blockKeys } of runs) {
      const spanKey = blockKeys.at(-1);
      if (kind !== "span" || spanKey === undefined) continue;
      this.#uses.set(spanKey, { count: this.of(spanKey) + 1, atMs: this.#nowMs() });
    }
  }

  /** Uses, each counted half for every half-life since. */
  of(spanKey: BlockKey): number {
    const uses = this.#uses.peek(spanKey);
    return uses === undefined ? 0 : uses.count * 0.5 ** ((this.#nowMs() - uses.atMs) / halfLifeMs);
  }
}
