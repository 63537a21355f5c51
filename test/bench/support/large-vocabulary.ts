/** A made vocabulary as large as today's models have, with tokens in the shares that theirs have: no model speaks it. */
import type { VocabularyBytes } from "../../../worker/contract/grammar.ts";
import { Choices } from "../../sim/random.ts";

const syllables =
  "ba be bi co cu da de en er es fa ga ho in ing ion ka la le ly ma men na ne no or pa po ra re ri sa se sh st ta te ti tion to un ur ve wa".split(
    " ",
  );
const codeMarks = ['"', '":', '",', '"},', '{"', "\\n", "\n\n", "\t", "()", ");", "</", "/>", "=>", "==", "[]", "''"];

/** Tokens of all bytes, then of words in Latin, Greek and Chinese letters, digits, white space and code. */
export function largeVocabulary(tokenCount: number): {
  readonly vocabulary: VocabularyBytes;
  readonly endTokenId: number;
} {
  const choices = new Choices(11);
  const encoder = new TextEncoder();
  const texts = new Set<string>(Array.from({ length: 1_000 }, (_, i) => String(i)));
  for (let i = 1; i <= 120; i++) for (const mark of " -=*_") texts.add(mark.repeat(i));
  const word = (count: number) => Array.from({ length: count }, () => choices.pick(syllables)).join("");
  const letters = (first: number, size: number, count: number) =>
    String.fromCodePoint(...Array.from({ length: count }, () => first + choices.int(0, size - 1)));
  while (texts.size < tokenCount - 1_000) {
    const kind = choices.int(0, 99);
    const latin = word(choices.int(1, 4));
    if (kind < 40) texts.add(` ${latin}`);
    else if (kind < 60) texts.add(latin);
    else if (kind < 72) texts.add(choices.pick(["", " "]) + latin.charAt(0).toUpperCase() + latin.slice(1));
    else if (kind < 82) texts.add(letters(0x4e00, 4_000, choices.int(1, 3)));
    else if (kind < 90) texts.add(choices.pick(["", " "]) + letters(0x3b1, 24, choices.int(1, 6)));
    else if (kind < 95) texts.add(choices.pick(codeMarks) + choices.pick(["", latin, choices.pick(codeMarks)]));
    else texts.add(choices.pick(["", " ", "."]) + latin + choices.pick(codeMarks));
  }
  const cut = Array.from({ length: 700 }, () => encoder.encode(letters(0x4e00, 20_000, 1)).subarray(0, 2));
  const bytes = Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte));
  const tokens = [new Uint8Array(0), ...bytes, ...cut, ...Array.from(texts, (text) => encoder.encode(text))];
  let end = 0;
  const ends = Int32Array.from(tokens, ({ length }) => {
    end += length;
    return end;
  });
  return { vocabulary: { bytes: Buffer.concat(tokens), ends }, endTokenId: 0 };
}
