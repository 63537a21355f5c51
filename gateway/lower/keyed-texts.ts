/** Texts of chains as tokens with block keys, remembered: what was keyed once is neither encoded nor hashed again. */
import { LRUCache } from "lru-cache";
import { runBlockKeys } from "../../worker/contract/block-key.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { joined } from "../text/text-slices.ts";
import { type Piece, rememberedBytes, type TextTokenizer } from "../text/tokenizer.ts";

/** Text that is encoded as one. */
export interface Text {
  /** What the template writes before the first message of a prompt, "" elsewhere. */
  readonly prefix: string;
  readonly pieces: readonly Piece[];
  /** It stands at the very start of a prompt. */
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
  /** Of texts to remember, with their tokens and keys. */
  readonly cacheBytes: number;
}

/** Of one block key in memory. */
export const keyBytes = 56;

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

  /** A whole closed run. `root` is what its first block is keyed from; it covers the owner's salt. */
  keyed(root: BlockKey, text: Text, owner: CacheSalt): KeyedText {
    const cacheKey = cacheKeyOf(root, text);
    const known = this.#keyed.get(cacheKey);
    if (known !== undefined) return known;
    const encoded = this.encode(text, owner);
    const keyed = { ...encoded, blockKeys: runBlockKeys(root, encoded.tokenIds, this.#blockTokens, true) };
    this.#keyed.set(cacheKey, keyed);
    return keyed;
  }

  /** A text whose keys depend on more than itself. @throws ApiError as TextTokenizer.encode does */
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
  // Lengths go first, so no two texts make the same string.
  const lengths = pieces.map(({ kind, text }) => `${kind === "content" ? "c" : "t"}${text.length}`).join("");
  const texts = pieces.map(({ text }) => text).join("");
  return `${root}${opensPrompt ? "^" : " "}${prefix.length}${lengths} ${prefix}${texts}`;
}
