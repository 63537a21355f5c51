/** Completions by whoever would rather break out of the grammar: any token that the mask allows, by chance. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import type { ByteGrammar, VocabularyBytes } from "../../worker/contract/grammar.ts";
import { GrammarConstraint } from "../../worker/sample/constraint.ts";
import { GrammarMasks } from "../../worker/sample/grammar-masks.ts";
import { TokenTrie } from "../../worker/sample/token-trie.ts";

const encoder = new TextEncoder();

export function vocabularyOf(tokens: readonly (string | Uint8Array)[]): VocabularyBytes {
  const spelled = tokens.map((token) => (typeof token === "string" ? encoder.encode(token) : token));
  let end = 0;
  const ends = Int32Array.from(spelled, ({ length }) => {
    end += length;
    return end;
  });
  return { bytes: Buffer.concat(spelled), ends };
}

/** Token 0 ends; then every byte, and some tokens that reach over the marks of JSON. */
export const byteTokens: readonly (string | Uint8Array)[] = [
  "",
  ...Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte)),
  ...[
    '{"',
    '":',
    '": ',
    '", "',
    '"}',
    "}}",
    "]}",
    '"]',
    "[]",
    "{}",
    ", ",
    "null",
    "true",
    "fal",
    "12",
    "é",
    "\n  ",
    "\\u",
  ],
];

/** The demo model's own tokens. */
export function demoVocabulary(): { readonly vocabulary: VocabularyBytes; readonly endTokenId: number } {
  const path = join(import.meta.dir, "../../worker/model/demo/tokenizer.json");
  const tokenizer = JSON.parse(readFileSync(path, "utf8"));
  const endTokenId = tokenizer.added_tokens.find((token: { content: string }) => token.content === "<|im_end|>").id;
  return { vocabulary: new TokenBytes({ ...tokenizer }).vocabulary(), endTokenId };
}

export class Adversary {
  readonly #trie: TokenTrie;
  readonly #vocabSize: number;
  readonly #endTokenId: number;

  constructor(vocabulary: VocabularyBytes, endTokenId: number) {
    this.#trie = new TokenTrie(vocabulary);
    this.#vocabSize = vocabulary.ends.length;
    this.#endTokenId = endTokenId;
  }

  constraint(grammar: ByteGrammar): GrammarConstraint {
    return new GrammarConstraint(new GrammarMasks(grammar, this.#trie, this.#vocabSize), [this.#endTokenId]);
  }

  /** What may come next. */
  allowed(constraint: GrammarConstraint): number[] {
    const ids: number[] = [];
    for (const [word, bits] of constraint.mask().entries()) {
      for (let rest = bits; rest !== 0; rest &= rest - 1) ids.push(word * 32 + 31 - Math.clz32(rest & -rest));
    }
    return ids;
  }

  /** @param random in [0, 1) @returns undefined when it is not at its end after so many tokens */
  complete(grammar: ByteGrammar, random: () => number, maxTokens: number): string | undefined {
    const constraint = this.constraint(grammar);
    const spelled: Uint8Array[] = [];
    for (let count = 0; count < maxTokens; count++) {
      const allowed = this.allowed(constraint);
      const tokenId = allowed[Math.floor(random() * allowed.length)] ?? -1;
      if (tokenId === this.#endTokenId) return textOf(spelled);
      spelled.push(this.#trie.spelling(tokenId));
      constraint.accept(tokenId);
    }
    return undefined;
  }

  /** Whether the text, byte by byte, is one of the grammar's. */
  accepts(grammar: ByteGrammar, text: string | Uint8Array): boolean {
    const constraint = this.constraint(grammar);
    try {
      // Tokens 1 to 256 are the bytes.
      for (const byte of typeof text === "string" ? encoder.encode(text) : text) {
        if (!this.allowed(constraint).includes(byte + 1)) return false;
        constraint.accept(byte + 1);
      }
      return this.allowed(constraint).includes(this.#endTokenId);
    } catch (error) {
      if (error instanceof RangeError) return false;
      throw error;
    }
  }
}

/** @throws TypeError when the bytes are not UTF-8 */
const textOf = (spelled: readonly Uint8Array[]): string =>
  new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Buffer.concat(spelled));
