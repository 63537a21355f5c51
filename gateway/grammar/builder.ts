/** Puts a byte grammar together, rule by rule. */
import { type ByteGrammar, byteRange, firstRuleSymbol, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { limits } from "../../worker/contract/limits.ts";

export type Alternative = readonly GrammarSymbol[];

/** More rules or symbols than a grammar may have. */
export class GrammarTooLarge extends Error {}

const encoder = new TextEncoder();

/** The bytes of a text, one after the other. */
export const literal = (text: string): Alternative => Array.from(encoder.encode(text), (byte) => byteRange(byte, byte));

export const range = (low: string, high: string): GrammarSymbol => byteRange(low.charCodeAt(0), high.charCodeAt(0));

export class GrammarBuilder {
  readonly #rules: (readonly Alternative[])[] = [];
  readonly #shared = new Map<string, GrammarSymbol>();
  /** Of each unit: rules of up to 1, 2, … of it. */
  readonly #chains = new Map<string, GrammarSymbol[]>();
  #symbolCount = 0;

  /** A rule that is told later, so that others can name it now. */
  declare(): GrammarSymbol {
    if (this.#rules.length >= limits.maxGrammarRules) throw new GrammarTooLarge();
    return firstRuleSymbol + this.#rules.push([]) - 1;
  }

  define(rule: GrammarSymbol, alternatives: readonly Alternative[]): void {
    this.#symbolCount += alternatives.reduce((sum, { length }) => sum + length + 1, 0);
    if (this.#symbolCount > limits.maxGrammarSymbols) throw new GrammarTooLarge();
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

  /** A whole grammar as a part of this one. @returns its first rule */
  embed({ rules }: ByteGrammar): GrammarSymbol {
    const own = rules.map(() => this.declare());
    const moved = (symbol: GrammarSymbol): GrammarSymbol =>
      symbol < firstRuleSymbol ? symbol : (own[symbol - firstRuleSymbol] ?? symbol);
    for (const [index, alternatives] of rules.entries()) {
      const rule = own[index];
      if (rule !== undefined)
        this.define(
          rule,
          alternatives.map((alternative) => alternative.map(moved)),
        );
    }
    const [first] = own;
    if (first === undefined) throw new Error("a grammar has a first rule");
    return first;
  }

  /** `min` to `max` of the unit, which is never empty; Infinity: any number. */
  repeat(name: string, unit: Alternative, min: number, max: number): Alternative {
    const required = Array.from({ length: min }, () => unit).flat();
    return [...required, ...this.#upTo(name, unit, max - min)];
  }

  /**
   * The grammar, without alternatives that no finite text is of.
   * @returns undefined when nothing is left of its first rule
   */
  build(): ByteGrammar | undefined {
    const ends = this.#finiteRules();
    const canEnd = (symbol: GrammarSymbol): boolean => symbol < firstRuleSymbol || ends.has(symbol - firstRuleSymbol);
    if (!ends.has(0)) return undefined;
    return { rules: this.#rules.map((alternatives) => alternatives.filter((each) => each.every(canEnd))) };
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

  /** Rules that some finite text is of. */
  #finiteRules(): ReadonlySet<number> {
    const finite = new Set<number>();
    let before = -1;
    while (finite.size > before) {
      before = finite.size;
      // A rule mostly names rules that were made before it.
      for (const [rule, alternatives] of this.#rules.entries()) {
        const ends = alternatives.some((alternative) =>
          alternative.every((symbol) => symbol < firstRuleSymbol || finite.has(symbol - firstRuleSymbol)),
        );
        if (ends) finite.add(rule);
      }
    }
    return finite;
  }
}
