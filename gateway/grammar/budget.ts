/** What one grammar may cost in all: of a request, the schema of its answer and those of its tools together. */
import { limits } from "../../worker/contract/limits.ts";

/** More rules, symbols or steps of work than a grammar may have. */
export class GrammarTooLarge extends Error {}

export interface GrammarBounds {
  readonly rules: number;
  readonly symbols: number;
  /** Characters of all patterns. */
  readonly patternChars: number;
  /** Looks at states, edges, ranges and values; a look takes well under a microsecond. */
  readonly looks: number;
}

/** What any request may have: at most some hundred milliseconds of a thread. */
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

  /** Something was refused for what it costs. */
  get isSpent(): boolean {
    return Object.values(this.#left).some((left) => left < 0);
  }

  /** To be called before the work is done. @throws GrammarTooLarge */
  spend(what: keyof GrammarBounds, count: number): void {
    this.#left[what] -= count;
    if (this.#left[what] < 0) throw new GrammarTooLarge("is too large");
  }

  left(what: keyof GrammarBounds): number {
    return this.#left[what];
  }
}
