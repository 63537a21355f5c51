/** The words by which an answer and its sources are compared. */

const token = /\p{N}+(?:[.,'’]\p{N}+)*|[\p{L}\p{M}\p{N}]+/gu;
const unspaced = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u;
const leastWordChars = 3;
/** Words of one stem mostly begin alike for so many letters, in most languages that end words by grammar. */
const stemChars = 6;
const mostPairs = 32_768;

export const isNumber = (word: string): boolean => /\p{N}/u.test(word);

/** Words by their stems, and numbers without the signs between groups of three digits. Short words mean little. */
export function wordsOf(text: string): readonly string[] {
  const words: string[] = [];
  for (const found of text.toLowerCase().match(token) ?? []) {
    if (isNumber(found)) words.push(numberOf(found));
    else if (unspaced.test(found)) words.push(...pairsOf(found));
    else if (found.length >= leastWordChars) words.push(found.slice(0, stemChars));
  }
  return words;
}

function numberOf(found: string): string {
  return /^\p{N}{1,3}(?:[.,'’]\p{N}{3})+$/u.test(found) ? found.replace(/[.,'’]/g, "") : found.replace(",", ".");
}

/** Languages that put no blanks between words: each two neighbouring characters. */
function pairsOf(run: string): readonly string[] {
  const signs = [...run].slice(0, mostPairs);
  return signs.length === 1 ? signs : signs.slice(1).map((sign, at) => `${signs[at]}${sign}`);
}

/**
 * Looks for some words in many texts. A prompt's sources have thousands of words, of which an answer has a dozen: in
 * ASCII, no other word than those that begin like one of them is cut out of its text.
 */
export class WordSearch {
  readonly #wanted: ReadonlySet<string>;
  /** 1 where a wanted word may begin with the two characters of this index: each two small letters have one of their own. */
  readonly #starts = new Uint8Array(32 * 32);

  /** @param wanted words as `wordsOf` gives them */
  constructor(wanted: ReadonlySet<string>) {
    this.#wanted = wanted;
    for (const word of wanted) this.#starts[startOf(word.charCodeAt(0), word.charCodeAt(1))] = 1;
  }

  /** The wanted words that the text holds. */
  in(text: string): ReadonlySet<string> {
    if (/[^\0-\x7f]/.test(text)) return new Set(wordsOf(text).filter((word) => this.#wanted.has(word)));
    return this.#inAscii(text.toLowerCase());
  }

  #inAscii(text: string): ReadonlySet<string> {
    const held = new Set<string>();
    const take = (word: string): void => {
      if (this.#wanted.has(word)) held.add(word);
    };
    for (let at = 0; at < text.length; ) {
      const start = at;
      if (isDigit(text.charCodeAt(at))) {
        at = numberEnd(text, at);
        take(numberOf(text.slice(start, at)));
        continue;
      }
      let hasDigit = false;
      for (; at < text.length; at++) {
        const code = text.charCodeAt(at);
        if (isDigit(code)) hasDigit = true;
        else if (!isLetter(code)) break;
      }
      const chars = at - start;
      if (chars === 0) at += 1;
      else if (hasDigit) take(text.slice(start, at));
      else if (chars >= leastWordChars && this.#starts[startOf(text.charCodeAt(start), text.charCodeAt(start + 1))]) {
        take(text.slice(start, Math.min(at, start + stemChars)));
      }
    }
    return held;
  }
}

/** Other signs share the places of letters: a word that begins with them is looked for in vain, which costs time alone. */
const startOf = (first: number, second: number): number => ((first & 31) << 5) | (second & 31);
const isDigit = (code: number): boolean => code >= 48 && code <= 57;
const isLetter = (code: number): boolean => code >= 97 && code <= 122;

/** The end of the digits that begin there, and of further ones behind single points, commas and apostrophes. */
function numberEnd(text: string, start: number): number {
  let at = start;
  for (;;) {
    while (isDigit(text.charCodeAt(at))) at += 1;
    const isJoined = text[at] === "." || text[at] === "," || text[at] === "'";
    if (!isJoined || !isDigit(text.charCodeAt(at + 1))) return at;
    at += 1;
  }
}
