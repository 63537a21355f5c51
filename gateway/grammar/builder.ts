/** Puts a byte grammar together, rule by rule. */
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

/** The bytes of a text, one after the other. */
export const literal = (text: string): Alternative => Array.from(encoder.encode(text), (byte) => byteRange(byte, byte));

export const range = (low: string, high: string): GrammarSymbol => byteRange(low.charCodeAt(0), high.charCodeAt(0));

export class GrammarBuilder {
  readonly #rules: (readonly Alternative[])[] = [];
  readonly #shared = new Map<string, GrammarSymbol>();
  /** Of each unit: rules of up to 1, 2, … of it. */
  readonly #chains = new Map<string, GrammarSymbol[]>();
  /** Of the whole grammar, whatever it is made of. */
  readonly budget: Budget;

  constructor(budget: Budget) {
    this.budget = budget;
  }

  /** A rule that is told later, so that others can name it now. @throws GrammarTooLarge, as all that adds to it */
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

  /** A rule that is made once under its name. */
  shared(name: string, make: () => readonly Alternative[]): GrammarSymbol {
    const known = this.#shared.get(name);
    if (known !== undefined) return known;
    const rule = this.declare();
    this.#shared.set(name, rule);
    this.define(rule, make());
    return rule;
  }

  /** `min` to `max` of the unit, which is never empty; Infinity: any number. */
  repeat(name: string, unit: Alternative, min: number, max: number): Alternative {
    // They are copied before the rule that they stand in is counted.
    this.budget.spend("looks", min * unit.length);
    const required = Array.from({ length: min }, () => unit).flat();
    return [...required, ...this.#upTo(name, unit, max - min)];
  }

  /**
   * The grammar, without alternatives that no finite text is of.
   * @returns undefined when nothing is left of its first rule
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
    const chain = this.#chains.get(name) ?? [];
    this.#chains.set(name, chain);
    while (chain.length < count) chain.push(this.rule([[], [...unit, ...chain.slice(-1)]]));
    return chain.slice(count - 1, count);
  }
}

interface Open {
  readonly rule: number;
  /** Places of rules in it that are not known to be finite. */
  left: number;
}

/**
 * Rules from which some finite text can be derived. An alternative is looked at only when a rule that it names is found
 * finite, so the work is linear in the size of the grammar.
 */
export function finiteRules(rules: GrammarRules): ReadonlySet<number> {
  const finite = new Set<number>();
  /** Of each rule, the alternatives that name it, as often as they do. */
  const naming = new Map<number, Open[]>();
  for (const [rule, alternatives] of rules.entries()) {
    for (const alternative of alternatives) {
      const named = alternative.filter((symbol) => symbol >= firstRuleSymbol);
      if (named.length === 0) finite.add(rule);
      const open: Open = { rule, left: named.length };
      for (const symbol of named) {
        const others = naming.get(symbol - firstRuleSymbol);
        if (others === undefined) naming.set(symbol - firstRuleSymbol, [open]);
        else others.push(open);
      }
    }
  }
  // A set is gone through in the order of insertion, with what is added on the way.
  for (const rule of finite) {
    for (const open of naming.get(rule) ?? []) {
      open.left -= 1;
      if (open.left === 0) finite.add(open.rule);
    }
  }
  return finite;
}
