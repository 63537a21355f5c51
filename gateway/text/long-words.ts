/**
 * Long words of a byte-pair tokenizer. The library hashes a string for each pair that it looks at and merges a word in
 * one go: 65,000 letters without a space hold the event loop for 50 ms, and a vocabulary whose words have spaces in
 * them takes a whole prompt for one. This file merges them faster, and in slices where the caller can wait.
 */

import type { Tokenizer } from "@huggingface/tokenizers";
import { yieldToOthers } from "../base/pace.ts";
import { BytePairs } from "./byte-pairs.ts";

/** The library merges words up to this length itself, and remembers the result. */
const libraryChars = 256;

/** The library's model, whose `bpe` is called for each word. Its types declare neither `bpe` nor the other fields. */
interface WordModel {
  readonly merges?: readonly (readonly [string, string])[];
  readonly end_of_word_suffix?: string | null;
  readonly continuing_subword_suffix?: string | null;
  bpe?: (word: string) => string[];
}

export class LongWords {
  readonly #pairs: BytePairs | undefined;
  /** Collects the words of a text while an encoding runs only to find them. */
  #met: Set<string> | undefined;
  /** Tokens of words that were merged ahead, while the text that has these words is encoded. */
  #merged: ReadonlyMap<string, string[]> | undefined;

  /** Makes the tokenizer merge long words here, to the same tokens; one without byte pairs stays unchanged. */
  constructor({ model: plain }: Pick<Tokenizer, "model">) {
    const model = plain as unknown as WordModel | null;
    const library = model?.bpe;
    const hasSuffix = Boolean(model?.end_of_word_suffix ?? model?.continuing_subword_suffix);
    if (model === null || library === undefined || model.merges === undefined || hasSuffix) return;
    this.#pairs = new BytePairs(model.merges);
    model.bpe = (word) => (word.length > libraryChars ? this.#tokensOf(word) : library.call(model, word));
  }

  /** @param encode encodes one text by the tokenizer. It is called twice, and the second result is returned. */
  async inSlices<Result>(encode: () => Result): Promise<Result> {
    const merged = new Map<string, string[]>();
    for (const word of this.#wordsOf(encode)) merged.set(word, await this.#mergeInSlices(word));
    this.#merged = merged;
    try {
      return encode();
    } finally {
      this.#merged = undefined;
    }
  }

  #wordsOf(encode: () => unknown): ReadonlySet<string> {
    const met = new Set<string>();
    if (this.#pairs === undefined) return met;
    this.#met = met;
    try {
      encode();
    } finally {
      this.#met = undefined;
    }
    return met;
  }

  async #mergeInSlices(word: string): Promise<string[]> {
    const steps = this.#steps(word);
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
      await yieldToOthers();
    }
  }

  #tokensOf(word: string): string[] {
    if (this.#met !== undefined) {
      this.#met.add(word);
      return [];
    }
    const merged = this.#merged?.get(word);
    if (merged !== undefined) return merged;
    const steps = this.#steps(word);
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
    }
  }

  #steps(word: string): Generator<void, string[]> {
    if (this.#pairs === undefined) throw new Error("a tokenizer without byte pairs has no long words");
    return this.#pairs.split(word);
  }
}
