/** Builds a byte grammar rule by rule. */
import {
  type ByteGrammar,
  byteRange,
  firstRuleSymbol,
  type GrammarRules,
  type GrammarSymbol,
  grammarSymbols,
} from "../../worker/contract/grammar.ts";
import type { Budget } from "./budget.ts";

export type Alternative = readonly GrammarSymbol[];

const encoder = new TextEncoder();

/** The bytes of a text in order. */
export const literal = (text: string): Alternative => Array.from(encoder.encode(text), (byte) => byteRange(byte, byte));

export const range = (low: string, high: string): GrammarSymbol => byteRange(low.charCodeAt(0), high.charCodeAt(0));

export class GrammarBuilder {
  readonly #rules: (readonly Alternative[])[] = [];
  readonly #shared = new Map<string, GrammarSymbol>();
  /** For each repeated unit: rules for up to 1, 2, … repetitions. */
  readonly #chains = new Map<string, GrammarSymbol[]>();
  /** The budget of the whole grammar. */
  readonly budget: Budget;

  constructor(budget: Budget) {
    this.budget = budget;
  }

  /**
   * Makes a rule that is defined later, so that other rules can name it now.
   * @throws GrammarTooLarge, as all methods that add to the grammar do
   */
  declare(): GrammarSymbol {
    this.budget.spend("rules", 1);
    return firstRuleSymbol + this.#rules.push([]) - 1;
  }

  define(rule: GrammarSymbol, alternatives: readonly Alternative[]): void {
    const symbolCount = alternatives.reduce((sum, { length }) => sum + length + 1, 0);
    this.budget.spend("symbols", symbolCount);
    this.#rules[rule - firstRuleSymbol] = alternatives;
  }

  rule(alternatives: readonly Alternative[]): GrammarSymbol {
    const rule = this.declare();
    this.define(rule, alternatives);
    return rule;
  }

  /** The rule of this name. It is made at the first call. */
  shared(name: string, make: () => readonly Alternative[]): GrammarSymbol {
    const known = this.#shared.get(name);
    if (known !== undefined) return known;
    const rule = this.declare();
    this.#shared.set(name, rule);
    this.define(rule, make());
    return rule;
  }

  /** `min` to `max` repetitions of a unit that is never empty. Infinity: no upper bound. */
  repeat(name: string, unit: Alternative, min: number, max: number): Alternative {
    // The copies of the unit take work before they are counted as symbols of a rule.
    this.budget.spend("looks", min * unit.length);
    const required = Array.from({ length: min }, () => unit).flat();
    return [...required, ...this.#upTo(name, unit, max - min)];
  }

  /**
   * The finished grammar, without alternatives from which no finite text can be derived.
   * @returns undefined when the first rule has no finite text
   */
  build(): ByteGrammar | undefined {
    const ends = finiteRules(this.#rules);
    const canEnd = (symbol: GrammarSymbol): boolean => symbol < firstRuleSymbol || ends.has(symbol - firstRuleSymbol);
    if (!ends.has(0)) return undefined;
    const rules = this.#rules.map((alternatives) => alternatives.filter((each) => each.every(canEnd)));
    return { symbols: grammarSymbols(rules) };
  }

  #upTo(name: string, unit: Alternative, count: number): Alternative {
    if (count === 0) return [];
    if (count === Number.POSITIVE_INFINITY) {
      const rest = this.#shared.get(`${name}*`) ?? this.declare();
      if (!this.#shared.has(`${name}*`)) this.define(rest, [[], [...unit, rest]]);
      this.#shared.set(`${name}*`, rest);
      return [rest];
    }
    const chain = this.#chains.getOrInsertComputed(name, () => []);
    while (chain.length < count) chain.push(this.rule([[], [...unit, ...chain.slice(-1)]]));
    return chain.slice(count - 1, count);
  }
}

interface Open {
  readonly rule: number;
  /** Number of rules in the alternative, with repetitions, that are not known to be finite yet. */
  left: number;
}

/**
 * The rules from which some finite text can be derived. An alternative is visited only when one of its rules is found
 * to be finite, so the work is linear in the size of the grammar.
 */
export function finiteRules(rules: GrammarRules): ReadonlySet<number> {
  const finite = new Set<number>();
  /** For each rule, the alternatives that name it, once for each time that they do. */
  const naming = new Map<number, Open[]>();
  for (const [rule, alternatives] of rules.entries()) {
    for (const alternative of alternatives) {
      const named = alternative.filter((symbol) => symbol >= firstRuleSymbol);
      if (named.length === 0) finite.add(rule);
      const open: Open = { rule, left: named.length };
      for (const symbol of named) {
        naming.getOrInsertComputed(symbol - firstRuleSymbol, () => []).push(open);
      }
    }
  }
  // The loop also visits rules that are added to the set on the way.
  for (const rule of finite) {
    for (const open of naming.get(rule) ?? []) {
      open.left -= 1;
      if (open.left === 0) finite.add(open.rule);
    }
  }
  return finite;
}
