/**
 * A context-free grammar over bytes that a completion has to follow, and the bytes of each token. Only numbers cross to
 * the worker; the gateway alone knows what the bytes mean.
 */

/**
 * The symbol of a byte range from `low` to `high` is `low * 256 + high`; the symbol of rule r is `firstRuleSymbol + r`.
 * No rule may reach itself before it has taken a byte (left recursion).
 */
export type GrammarSymbol = number;

export const firstRuleSymbol = 65_536;

/** Ends of lists in `ByteGrammar.symbols`: one after each alternative, one after the last alternative of each rule. */
export const [endOfAlternative, endOfRule] = [-1, -2];

export interface ByteGrammar {
  /**
   * Names the rules: whoever sends the same name sends the same rules, and shares what the worker has derived from
   * them. So the name contains the tenant. At most `limits.maxGrammarIdChars` characters; absent: nothing is shared.
   */
  readonly id?: string;
  /**
   * Rule 0 is the start. A rule is a choice of alternatives; an alternative is a sequence of symbols. All stand in one
   * array, which is quick to copy to a thread or a worker.
   */
  readonly symbols: Int32Array;
}

/** Rules, each a list of alternatives. */
export type GrammarRules = readonly (readonly (readonly GrammarSymbol[])[])[];

export function grammarSymbols(rules: GrammarRules): Int32Array {
  const length = rules.flat().reduce((sum, alternative) => sum + alternative.length + 1, rules.length);
  const symbols = new Int32Array(length);
  let at = 0;
  for (const alternatives of rules) {
    for (const alternative of alternatives) {
      symbols.set(alternative, at);
      at += alternative.length;
      symbols[at++] = endOfAlternative;
    }
    symbols[at++] = endOfRule;
  }
  return symbols;
}

export const byteRange = (low: number, high: number): GrammarSymbol => low * 256 + high;

/** The bytes of all tokens, one after the other; token i ends before ends[i]. A token without bytes is never drawn. */
export interface VocabularyBytes {
  readonly bytes: Uint8Array;
  /** At most [vocabSize] entries. */
  readonly ends: Int32Array;
}
