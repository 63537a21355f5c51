/**
 * What a completion may spell, as a context-free grammar over bytes, and how tokens are spelled. Numbers alone: what the
 * bytes mean is the gateway's.
 */

/**
 * A byte from `low` to `high` is `low * 256 + high`; rule r is `firstRuleSymbol + r`. No rule may begin with itself
 * before a byte was taken (left recursion).
 */
export type GrammarSymbol = number;

export const firstRuleSymbol = 65_536;

/** Rule 0 is the whole. A rule is one of its alternatives; an alternative is its symbols, one after the other. */
export interface ByteGrammar {
  readonly rules: readonly (readonly (readonly GrammarSymbol[])[])[];
}

export const byteRange = (low: number, high: number): GrammarSymbol => low * 256 + high;

/** Bytes of all tokens, one after the other; token i ends before ends[i]. A token without bytes is never drawn. */
export interface VocabularyBytes {
  readonly bytes: Uint8Array;
  /** [vocabSize] at most */
  readonly ends: Int32Array;
}
