/**
 * Plain text, as it stands inside a JSON string without an escape: characters in well-formed UTF-8 (Unicode 15, table
 * 3-7) but control characters, quotes and backslashes. Where a grammar lets any plain text come, nearly all tokens may
 * come, and they need not be tried one by one.
 */
import { type ByteAutomaton, deadState } from "./byte-automaton.ts";

type ByteRange = readonly [first: number, last: number];

const tail: ByteRange = [0x80, 0xbf];
/** A character is one byte of each range of one of these. */
const characters: readonly (readonly ByteRange[])[] = [
  [[0x20, 0x21]],
  [[0x23, 0x5b]],
  [[0x5d, 0x7f]],
  [[0xc2, 0xdf], tail],
  [[0xe0, 0xe0], [0xa0, 0xbf], tail],
  [[0xe1, 0xec], tail, tail],
  [[0xed, 0xed], [0x80, 0x9f], tail],
  [[0xee, 0xef], tail, tail],
  [[0xf0, 0xf0], [0x90, 0xbf], tail, tail],
  [[0xf1, 0xf3], tail, tail, tail],
  [[0xf4, 0xf4], [0x80, 0x8f], tail, tail],
];

/** Lengths, in characters, that are told apart. A token of more characters is tried byte by byte. */
export const plainLengths: readonly number[] = [16, 8, 4];
/** After a character a grammar may be in so many states at most; with more, trying tokens one by one is cheaper. */
const maxTargets = 4;
/** Work of a byte that is tried, beside the automaton's own. */
const byteWork = 4;
/** Work of the search at most; where it takes more, trying tokens one by one is cheaper. */
const mostWork = 500_000;

/** Characters of the text; undefined when it is not plain. */
export function plainCharacters(bytes: Uint8Array): number | undefined {
  let count = 0;
  for (let at = 0; at < bytes.length; count++) {
    const byte = bytes[at];
    if (byte >= 0x20 && byte < 0x80 && byte !== 0x22 && byte !== 0x5c) {
      at += 1;
      continue;
    }
    const fits = characters.find((ranges) =>
      ranges.every(([first, last], i) => bytes[at + i] >= first && bytes[at + i] <= last),
    );
    if (fits === undefined) return undefined;
    at += fits.length;
  }
  return count;
}

/** Finds where a grammar lets plain text come. */
export class PlainText {
  readonly #automaton: ByteAutomaton;
  #ownWork = 0;
  #workLimit = 0;
  /** Of each state: where a plain character leads; empty where one may not come, or they lead to too many. */
  readonly #targets = new Map<number, readonly number[]>();

  constructor(automaton: ByteAutomaton) {
    this.#automaton = automaton;
  }

  /** With the automaton's, rising. */
  get work(): number {
    return this.#ownWork + this.#automaton.work;
  }

  get byteLength(): number {
    return this.#targets.size * (64 + 8 * maxTargets);
  }

  /** To be called when the automaton's states are renamed. */
  forget(): void {
    this.#targets.clear();
  }

  /** The most of `plainLengths` of which any plain text may come, or 0. @throws GrammarTooAmbiguous */
  lengthAt(state: number): number {
    this.#workLimit = this.work + mostWork;
    const [most] = plainLengths;
    const met = new Set([state]);
    let last: readonly number[] = [state];
    for (let length = 0; length < most; length++) {
      const next: number[] = [];
      for (const from of last) {
        const targets = this.#targetsOf(from);
        if (targets.length === 0) return plainLengths.find((known) => known <= length) ?? 0;
        // What was met before has more characters before it that it was tried with.
        for (const target of targets) if (!met.has(target)) next.push(target);
      }
      for (const target of next) met.add(target);
      last = [...new Set(next)];
      if (last.length > maxTargets) return plainLengths.find((known) => known <= length) ?? 0;
    }
    return most;
  }

  #targetsOf(state: number): readonly number[] {
    const known = this.#targets.get(state);
    if (known !== undefined) return known;
    let targets: number[] = [];
    for (const ranges of characters) {
      if (this.#follow(state, ranges, 0, targets)) continue;
      targets = [];
      break;
    }
    this.#targets.set(state, targets);
    return targets;
  }

  /**
   * Adds where the bytes of these ranges lead; false when some lead nowhere, or to too many states, or it takes too
   * long.
   */
  #follow(state: number, ranges: readonly ByteRange[], at: number, targets: number[]): boolean {
    const [first, last] = ranges[at];
    let before = deadState;
    this.#ownWork += byteWork * (last - first + 1);
    for (let byte = first; byte <= last; byte++) {
      const next = this.#automaton.next(state, byte);
      if (next === deadState || this.work > this.#workLimit) return false;
      if (next === before) continue;
      before = next;
      if (at + 1 < ranges.length) {
        if (!this.#follow(next, ranges, at + 1, targets)) return false;
      } else if (!targets.includes(next)) {
        if (targets.length === maxTargets) return false;
        targets.push(next);
      }
    }
    return true;
  }
}
