/** Makes the constraints of requests, once the vocabulary has been told. Requests with one grammar share its masks. */
import { LRUCache } from "lru-cache";
import type { ByteGrammar, VocabularyBytes } from "../contract/grammar.ts";
import type { SubmitMessage } from "../contract/messages.ts";
import { GrammarConstraint, type TokenConstraint } from "./constraint.ts";
import { GrammarMasks, grammarLimits } from "./grammar-masks.ts";
import { ThinkingConstraint } from "./thinking-constraint.ts";
import { TokenTrie } from "./token-trie.ts";

const mebibyte = 2 ** 20;
/** Bytes that grammars may take which no request uses now. */
const maxIdleBytes = 64 * mebibyte;
/**
 * Bytes that grammars in use may take. Over the bound they give up what they can do without, unless that is very
 * little.
 */
const maxUsedBytes = 128 * mebibyte;
const leastSpareBytes = mebibyte;

export class Constraints {
  readonly #vocabSize: number;
  #trie: TokenTrie | undefined;
  /** Masks by the grammars' names; a grammar without a name gets one of its own. */
  readonly #used = new Map<string | symbol, GrammarMasks>();
  readonly #idle = new LRUCache<string, GrammarMasks>({
    maxSize: maxIdleBytes,
    sizeCalculation: ({ byteLength }) => byteLength,
  });

  constructor(vocabSize: number) {
    this.#vocabSize = vocabSize;
  }

  /** The bytes of each token. Requests with a grammar are refused until it is known. */
  setVocabulary(vocabulary: VocabularyBytes): void {
    this.#trie = new TokenTrie(vocabulary);
    this.#idle.clear();
  }

  /** Grammars that are remembered, and their bytes. */
  get size(): { readonly grammars: number; readonly bytes: number } {
    return { grammars: this.#used.size + this.#idle.size, bytes: this.#usedBytes + this.#idle.calculatedSize };
  }

  /**
   * The constraint of a completion; undefined: the request asks for none.
   * @throws RangeError when it cannot be constrained as it asks, with why
   */
  of({ params }: SubmitMessage, stopTokenIds: readonly number[]): TokenConstraint | undefined {
    const { grammar, thinking } = params;
    if (grammar === undefined && thinking === undefined) return undefined;
    const trie = this.#trie;
    if (trie === undefined) throw new RangeError("a grammar or thinking is given, and the vocabulary is not known");
    const spelled = grammar && this.#grammarOf(grammar, trie, stopTokenIds);
    return thinking === undefined ? spelled : new ThinkingConstraint(thinking, trie, this.#vocabSize, spelled);
  }

  #grammarOf(grammar: ByteGrammar, trie: TokenTrie, stopTokenIds: readonly number[]): TokenConstraint {
    const name = grammar.id ?? Symbol();
    const masks = this.#used.get(name) ?? this.#masksOf(grammar, trie);
    this.#used.set(name, masks);
    return new GrammarConstraint(masks, stopTokenIds, () => this.#leave(name, masks));
  }

  /**
   * When grammars in use take too much memory, the one with the most to spare gives up what it does not need. Called
   * between steps.
   */
  trim(): void {
    if (this.#usedBytes <= maxUsedBytes) return;
    let most: GrammarMasks | undefined;
    for (const masks of this.#used.values()) if (masks.spareBytes > (most?.spareBytes ?? leastSpareBytes)) most = masks;
    most?.forget();
  }

  get #usedBytes(): number {
    return this.#used.values().reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  #masksOf(grammar: ByteGrammar, trie: TokenTrie): GrammarMasks {
    const known = grammar.id === undefined ? undefined : this.#idle.get(grammar.id);
    if (known !== undefined) this.#idle.delete(grammar.id as string);
    return known ?? new GrammarMasks(grammar, trie, this.#vocabSize, grammarLimits);
  }

  /** A request that had these masks is gone. */
  #leave(name: string | symbol, masks: GrammarMasks): void {
    if (!masks.isIdle || this.#used.get(name) !== masks) return;
    this.#used.delete(name);
    if (typeof name === "string") this.#idle.set(name, masks);
  }
}
