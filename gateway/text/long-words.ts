/**
 * Long words of a byte-pair tokenizer. The library hashes a string for each pair that it looks at and merges a word in
 * one go: 65,000 letters without a space hold the event loop for 50 ms, and a vocabulary whose words have spaces in
 * them takes a whole prompt for one. Here they are merged faster, and in slices where the caller can wait.
 */

import type { Tokenizer } from "@huggingface/tokenizers";
import { yieldToOthers } from "../base/pace.ts";
import { BytePairs } from "./byte-pairs.ts";

/** Words up to this long stay the library's, which remembers what became of them. */
const libraryChars = 256;

/** What the library calls for each word; its types name neither this nor the fields of a byte-pair model. */
interface WordModel {
  readonly merges?: readonly (readonly [string, string])[];
  readonly end_of_word_suffix?: string | null;
  readonly continuing_subword_suffix?: string | null;
  bpe?: (word: string) => string[];
}

export class LongWords {
  readonly #pairs: BytePairs | undefined;
  /** Words that an encoding meets while it is only asked for them. */
  #met: Set<string> | undefined;
  /** Words that were merged ahead, while a text is encoded for which that was done. */
  #merged: ReadonlyMap<string, string[]> | undefined;

  /** Takes over the tokenizer's long words, to the same tokens. One without byte pairs stays as it is. */
  constructor({ model: plain }: Pick<Tokenizer, "model">) {
    const model = plain as unknown as WordModel | null;
    const library = model?.bpe;
    const hasSuffix = Boolean(model?.end_of_word_suffix ?? model?.continuing_subword_suffix);
    if (model === null || library === undefined || model.merges === undefined || hasSuffix) return;
    this.#pairs = new BytePairs(model.merges);
    model.bpe = (word) => (word.length > libraryChars ? this.#tokensOf(word) : library.call(model, word));
  }

  /** @param encode encodes one text by the tokenizer; it is called twice, and its second result is answered */
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
