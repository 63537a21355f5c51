/**
 * What a completion may spell, as a context-free grammar over bytes, and how tokens are spelled. Numbers alone: the
 * gateway alone knows what the bytes mean.
 */

/**
 * A byte from `low` to `high` is `low * 256 + high`; rule r is `firstRuleSymbol + r`. No rule may begin with itself
 * before a byte was taken (left recursion).
 */
export type GrammarSymbol = number;

export const firstRuleSymbol = 65_536;

/** In `ByteGrammar.symbols`, behind each alternative, and behind the last alternative of each rule. */
export const [endOfAlternative, endOfRule] = [-1, -2];

export interface ByteGrammar {
  /**
   * Names the rules: who sends the same name sends the same rules, and shares what was worked out of them with all who
   * do. So the name has the tenant in it. At most `limits.maxGrammarIdChars` characters; absent: nothing is shared.
   */
  readonly id?: string;
  /**
   * Rule 0 is the whole. A rule is one of its alternatives; an alternative is its symbols, one after the other. All
   * stand in one array, which crosses to a thread or a worker as quickly as it is copied.
   */
  readonly symbols: Int32Array;
}

/** Rules as lists of alternatives. */
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

/** Bytes of all tokens, one after the other; token i ends before ends[i]. A token without bytes is never drawn. */
export interface VocabularyBytes {
  readonly bytes: Uint8Array;
  /** [vocabSize] at most */
  readonly ends: Int32Array;
}
