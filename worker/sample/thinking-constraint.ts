/**
 * Ends a model's thinking when it has taken as many tokens as it may: then the tokens that end it are the only ones that
 * may come, one after the other. Everywhere else the answer's grammar decides, if there is one.
 */
import type { ThinkingLimit } from "../contract/messages.ts";
import type { TokenConstraint } from "./constraint.ts";
import type { WorkBudget } from "./mask-walk.ts";
import type { TokenTrie } from "./token-trie.ts";

/** "start": thinking may begin. "ending": it is being ended. "behind": it has ended, or there is none. */
type Phase = "start" | "thinking" | "ending" | "behind";

const isSpace = (byte: number): boolean => byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);

export class ThinkingConstraint implements TokenConstraint {
  readonly #limit: ThinkingLimit;
  readonly #trie: TokenTrie;
  readonly #grammar: TokenConstraint | undefined;
  readonly #bits: Int32Array;
  #phase: Phase;
  #tokens = 0;
  /** Bytes of the opener that were read, or the last bytes of the thinking, as many as may be the closer's beginning. */
  #read: number[] = [];
  /** Tokens of the end that were drawn. */
  #ended = 0;

  constructor(limit: ThinkingLimit, trie: TokenTrie, vocabSize: number, grammar: TokenConstraint | undefined) {
    this.#limit = limit;
    this.#trie = trie;
    this.#grammar = grammar;
    this.#bits = new Int32Array(Math.ceil(vocabSize / 32));
    this.#phase = limit.opener.length === 0 ? "thinking" : "start";
    this.#endIfSpent();
  }

  get isReady(): boolean {
    return this.#grammar?.isReady ?? true;
  }

  prepare(budget: WorkBudget): void {
    this.#grammar?.prepare(budget);
  }

  mask(): Int32Array {
    if (this.#phase === "ending") {
      const tokenId = this.#limit.endTokenIds[this.#ended];
      this.#bits.fill(0);
      this.#bits[tokenId >> 5] = 1 << (tokenId & 31);
      return this.#bits;
    }
    return this.#grammar?.mask() ?? this.#bits.fill(-1);
  }

  accept(tokenId: number): void {
    if (this.#phase === "ending" && tokenId !== this.#limit.endTokenIds[this.#ended])
      throw new RangeError(`token ${tokenId} may not come here`);
    this.#grammar?.accept(tokenId);
    this.#tokens += 1;
    if (this.#phase === "ending") {
      this.#ended += 1;
      if (this.#ended === this.#limit.endTokenIds.length) this.#phase = "behind";
      return;
    }
    for (const byte of this.#trie.spelling(tokenId)) this.#readByte(byte);
    this.#endIfSpent();
  }

  release(): void {
    this.#grammar?.release();
  }

  #endIfSpent(): void {
    if (this.#phase === "thinking" && this.#tokens >= this.#limit.maxTokens) this.#phase = "ending";
  }

  #readByte(byte: number): void {
    const { opener, closer } = this.#limit;
    if (this.#phase === "start") {
      if (this.#read.length === 0 && isSpace(byte)) return;
      if (opener[this.#read.length] !== byte) this.#phase = "behind";
      this.#read.push(byte);
      if (this.#phase === "behind" || this.#read.length < opener.length) return;
      this.#phase = "thinking";
      this.#read = [];
    } else if (this.#phase === "thinking") {
      this.#read.push(byte);
      if (this.#read.length > closer.length) this.#read.shift();
      if (this.#read.length === closer.length && this.#read.every((each, at) => each === closer[at])) {
        this.#phase = "behind";
      }
    }
  }
}
