/** Completions that spell what a grammar says: which tokens may come next, step by step. */
import type { ByteGrammar } from "../contract/grammar.ts";
import { ByteAutomaton, deadState } from "./byte-automaton.ts";
import type { TokenTrie } from "./token-trie.ts";

export interface TokenConstraint {
  /**
   * One bit a token, tokens 32w … 32w + 31 in word w: set when the token may come next. Valid until `accept`.
   * @throws RangeError when none may
   */
  mask(): Int32Array;
  /** Goes on behind this token. @throws RangeError when it may not come next */
  accept(tokenId: number): void;
}

/** Masks kept for states that come again, as those inside a string do. */
const maxMasks = 64;
/** States kept, of 1 KiB each: more than any usual answer meets, and a bound for one that nests without end. */
const mostStates = 8_192;

export class GrammarConstraint implements TokenConstraint {
  private readonly automaton: ByteAutomaton;
  private readonly trie: TokenTrie;
  private readonly endTokenIds: readonly number[];
  private readonly vocabSize: number;
  private readonly maxStates: number;
  private readonly masks = new Map<number, Int32Array>();
  /** undefined before the first mask. */
  private state: number | undefined;

  /**
   * @param vocabSize rows of logits have so many
   * @param endTokenIds may come when all that is wanted has been spelled
   * @param maxStates of the grammar to remember; no mask depends on it, but for grammars too ambiguous to be kept whole
   */
  constructor(
    grammar: ByteGrammar,
    trie: TokenTrie,
    vocabSize: number,
    endTokenIds: readonly number[],
    maxStates = mostStates,
  ) {
    this.maxStates = maxStates;
    this.automaton = new ByteAutomaton(grammar);
    this.trie = trie;
    this.vocabSize = vocabSize;
    this.endTokenIds = endTokenIds;
  }

  /** States of the grammar that are remembered, for checks. */
  get stateCount(): number {
    return this.automaton.stateCount;
  }

  mask(): Int32Array {
    this.state ??= this.automaton.start();
    const known = this.masks.get(this.state);
    if (known !== undefined) return known;
    const mask = this.makeMask(this.state);
    if (this.masks.size >= maxMasks) this.masks.clear();
    this.masks.set(this.state, mask);
    return mask;
  }

  accept(tokenId: number): void {
    let state = this.state ?? this.automaton.start();
    for (const byte of this.trie.spelling(tokenId)) {
      state = this.automaton.next(state, byte);
      if (state === deadState) throw new RangeError(`token ${tokenId} may not come here`);
    }
    this.state = state;
    if (this.automaton.stateCount <= this.maxStates) return;
    this.state = this.automaton.keepOnly(state);
    this.masks.clear();
  }

  private makeMask(start: number): Int32Array {
    const mask = new Int32Array(Math.ceil(this.vocabSize / 32));
    const allow = (tokenId: number): void => {
      mask[tokenId >> 5] |= 1 << (tokenId & 31);
    };
    this.trie.walk(start, (state, byte) => this.automaton.next(state, byte), allow);
    if (this.automaton.isComplete(start)) for (const tokenId of this.endTokenIds) allow(tokenId);
    if (mask.every((word) => word === 0)) throw new RangeError("no token of the vocabulary may come next");
    return mask;
  }
}

/** Makes every token that may not come impossible. */
export function restrict(logits: Float32Array, constraint: TokenConstraint): void {
  const mask = constraint.mask();
  for (let tokenId = 0; tokenId < logits.length; tokenId++) {
    if (((mask[tokenId >> 5] >> (tokenId & 31)) & 1) === 0) logits[tokenId] = Number.NEGATIVE_INFINITY;
  }
}
