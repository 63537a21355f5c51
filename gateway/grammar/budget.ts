/** Bounds the cost of one grammar. The schemas of a request's answer and of its tools share one budget. */
import { limits } from "../../worker/contract/limits.ts";

/** Thrown for a grammar of too many rules, symbols or steps of work. */
export class GrammarTooLarge extends Error {}

export interface GrammarBounds {
  readonly rules: number;
  readonly symbols: number;
  /** Characters of all patterns together. */
  readonly patternChars: number;
  /** Steps of work: looks at states, edges, ranges and values. Each takes well under a microsecond. */
  readonly looks: number;
}

/** The bounds for any request: at most some hundred milliseconds of work in a thread. */
export const largestGrammar: GrammarBounds = {
  rules: limits.maxGrammarRules,
  symbols: limits.maxGrammarSymbols,
  patternChars: 32_768,
  looks: 500_000,
};

export class Budget {
  readonly #left: Record<keyof GrammarBounds, number>;

  constructor(bounds: GrammarBounds) {
    this.#left = { ...bounds };
  }

  /** Whether the budget has refused something. */
  get isSpent(): boolean {
    return Object.values(this.#left).some((left) => left < 0);
  }

  /** Must be called before the work is done. @throws GrammarTooLarge */
  spend(what: keyof GrammarBounds, count: number): void {
    this.#left[what] -= count;
    if (this.#left[what] < 0) throw new GrammarTooLarge("is too large");
  }
}
