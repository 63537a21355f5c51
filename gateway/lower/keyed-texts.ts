/** Encodes the texts of chains, computes their block keys, and remembers both, so that no text is encoded twice. */
import { LRUCache } from "lru-cache";
import { runBlockKeys } from "../../worker/contract/block-key.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { joined } from "../text/text-slices.ts";
import { type Piece, rememberedBytes, type TextTokenizer } from "../text/tokenizer.ts";

/** A text that the tokenizer encodes in one piece. */
export interface Text {
  /** What the template writes before the first message of a prompt, "" elsewhere. */
  readonly prefix: string;
  readonly pieces: readonly Piece[];
  /** true: the text stands at the very start of a prompt. */
  readonly opensPrompt: boolean;
}

export interface EncodedText {
  readonly tokenIds: Int32Array;
  readonly prefixTokens: number;
}

export interface KeyedText extends EncodedText {
  readonly blockKeys: readonly BlockKey[];
}

export interface KeyedTextsOptions {
  readonly tokenizer: TextTokenizer;
  readonly card: { readonly blockTokens: number };
  /** Memory for remembered texts, with their tokens and keys. */
  readonly cacheBytes: number;
}

/** Memory that one block key takes. */
export const keyBytes = 56;
/**
 * Shorter texts are not remembered here: ten thousand of them take 8 MiB. The tokenizer remembers their tokens, and the
 * one or two keys are made of these in microseconds.
 */
const leastChars = 128;

export class KeyedTexts {
  readonly #tokenizer: TextTokenizer;
  readonly #blockTokens: number;
  readonly #keyed: LRUCache<string, KeyedText>;

  constructor({ tokenizer, card, cacheBytes }: KeyedTextsOptions) {
    this.#tokenizer = tokenizer;
    this.#blockTokens = card.blockTokens;
    this.#keyed = new LRUCache({
      maxSize: cacheBytes,
      sizeCalculation: (text, key) => rememberedBytes(key, text.tokenIds) + keyBytes * text.blockKeys.length,
    });
  }

  /**
   * Tokens and keys of a whole closed run. The first block key is computed from `root`, which covers the owner's salt.
   */
  keyed(root: BlockKey, text: Text, owner: CacheSalt): KeyedText {
    const chars = text.pieces.reduce((sum, piece) => sum + piece.text.length, text.prefix.length);
    const cacheKey = chars < leastChars ? undefined : cacheKeyOf(root, text);
    const known = cacheKey === undefined ? undefined : this.#keyed.get(cacheKey);
    if (known !== undefined) return known;
    const encoded = this.encode(text, owner);
    const keyed = { ...encoded, blockKeys: runBlockKeys(root, encoded.tokenIds, this.#blockTokens, true) };
    if (cacheKey !== undefined) this.#keyed.set(cacheKey, keyed);
    return keyed;
  }

  /**
   * Tokens of a text without keys, for a run whose keys depend on more than this text.
   * @throws ApiError as TextTokenizer.encode does
   */
  encode({ prefix, pieces, opensPrompt }: Text, owner: CacheSalt): EncodedText {
    const prefixIds = this.#tokenizer.encode([{ kind: "template", text: prefix }], opensPrompt);
    const ids = this.#tokenizer.encode(pieces, opensPrompt && prefix === "", owner);
    return { tokenIds: prefix === "" ? ids : joined([prefixIds, ids]), prefixTokens: prefixIds.length };
  }

  /** Encodes a long text ahead of the others, in slices between which other work runs (see TextTokenizer.warm). */
  warm({ prefix, pieces, opensPrompt }: Text, owner: CacheSalt, unyielded: { chars: number }): Promise<void> {
    return this.#tokenizer.warm(pieces, opensPrompt && prefix === "", owner, unyielded);
  }
}

function cacheKeyOf(root: BlockKey, { prefix, pieces, opensPrompt }: Text): string {
  // Each text's length stands before the texts, so that two different rows of texts never make the same string.
  const lengths = pieces.map(({ kind, text }) => `${kind === "content" ? "c" : "t"}${text.length}`).join("");
  const texts = pieces.map(({ text }) => text).join("");
  return `${root}${opensPrompt ? "^" : " "}${prefix.length}${lengths} ${prefix}${texts}`;
}
