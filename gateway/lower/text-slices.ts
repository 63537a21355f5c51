/**
 * Cuts a long text where the tokenizer would cut it anyway, so that it can be encoded in turns. Byte-level
 * pre-tokenizers (GPT-2's pattern and those that came of it) never let a token reach from a letter to white space or
 * punctuation, nor from a digit to white space. The rest of the text does not change what comes before such a place:
 * it ends in a letter or digit, where no look-ahead of theirs applies.
 */
const beforeSpace = /[\p{L}\p{N}]/u;
const beforePunctuation = /\p{L}/u;
const space = /\s/u;
/** Apostrophes begin or end contractions in some patterns. */
const punctuation = /[\p{P}--['’ʼ＇]]/v;

/** Whether a token can end before `text[index]`. Looks at single code units: a place next to a surrogate is none. */
function isCut(text: string, index: number): boolean {
  const before = text.charAt(index - 1);
  const after = text.charAt(index);
  if (space.test(after)) return beforeSpace.test(before);
  return punctuation.test(after) && beforePunctuation.test(before);
}

/** Slices of about `sliceChars`; longer where no cut comes sooner. Joined, they are the text. */
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
