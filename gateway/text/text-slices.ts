/**
 * Cuts a long text where the tokenizer would cut it anyway, so that it can be encoded in slices. Byte-level
 * pre-tokenizers (GPT-2's pattern and those that came of it) never let a token reach from a letter to white space or
 * punctuation, nor from a digit to white space. The rest of the text does not change what comes before such a place:
 * it ends in a letter or digit, where no look-ahead of theirs applies.
 */
import { yieldToOthers } from "../base/pace.ts";

const beforeSpace = /[\p{L}\p{N}]/u;
const beforePunctuation = /\p{L}/u;
const space = /\s/u;
/** Punctuation without apostrophes, which begin or end contractions in some patterns. */
const punctuation = /[\p{P}--['’ʼ＇]]/v;

/** Whether a token can end before `text[index]`. It reads single code units, so it never cuts beside a surrogate. */
function isCut(text: string, index: number): boolean {
  const before = text.charAt(index - 1);
  const after = text.charAt(index);
  if (space.test(after)) return beforeSpace.test(before);
  return punctuation.test(after) && beforePunctuation.test(before);
}

/** Cuts a text into slices of about `sliceChars`, longer where no cut comes sooner. Joined, they are the text. */
export function sliceText(text: string, sliceChars: number): readonly string[] {
  const slices: string[] = [];
  let start = 0;
  while (text.length - start > sliceChars) {
    let end = start + sliceChars;
    while (end < text.length && !isCut(text, end)) end += 1;
    slices.push(text.slice(start, end));
    start = end;
  }
  if (start < text.length || slices.length === 0) slices.push(text.slice(start));
  return slices;
}

/** A text with every kind of cut in it, for testing whether a tokenizer can be sliced. */
export const sliceProbe = "It's 12 (or 34,5) o'clock;\n\n  don't say: \"no\" — 世界，你好。 x_y\tz";

/** Length of the slices in which texts are encoded: some milliseconds of work each. */
export const sliceChars = 8_192;

/**
 * Lets other work run after a slice's worth of characters was encoded.
 * @param unyielded counts the characters that were encoded since other work last ran
 */
export async function yieldAfter(unyielded: { chars: number }, chars: number): Promise<void> {
  unyielded.chars += chars;
  if (unyielded.chars < sliceChars) return;
  unyielded.chars = 0;
  await yieldToOthers();
}

/** Ends the encoding of a prompt as soon as it is known to be too long, since the rest could be megabytes. */
export class TokenBound {
  readonly #maxTokens: number;
  readonly #refusal: (tokens: number) => Error;
  #tokens = 0;

  /** @param refusal makes the error from the number of tokens that the prompt has at least */
  constructor(maxTokens: number, refusal: (tokens: number) => Error) {
    this.#maxTokens = maxTokens;
    this.#refusal = refusal;
  }

  /** @throws what `refusal` gives */
  add(tokens: number): void {
    this.#tokens += tokens;
    if (this.#tokens > this.#maxTokens) throw this.#refusal(this.#tokens);
  }
}

export interface SliceOptions {
  readonly unyielded: { chars: number };
  /** The text behind this many tokens is not encoded. */
  readonly maxTokens: number;
}

/** Encodes the slices of a text in order, up to `maxTokens` tokens. */
export async function encodedInSlices(
  slices: Iterable<readonly [slice: string, isFirst: boolean]>,
  encode: (slice: string, isFirst: boolean) => Promise<Int32Array>,
  { unyielded, maxTokens }: SliceOptions,
): Promise<Int32Array> {
  const parts: Int32Array[] = [];
  let count = 0;
  for (const [slice, isFirst] of slices) {
    const ids = await encode(slice, isFirst);
    parts.push(ids);
    count += ids.length;
    await yieldAfter(unyielded, slice.length);
    if (count >= maxTokens) break;
  }
  return joined(parts).subarray(0, maxTokens);
}

/** Joins arrays in order. */
export function joined(parts: readonly Int32Array[]): Int32Array {
  const all = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
