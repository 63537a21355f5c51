/**
 * Byte-pair merges of one word. The pair of the lowest rank is merged first, the leftmost among equals. The work is
 * done in steps, so that a word of any length yields to other work.
 */

/**
 * Factor that packs a rank and a place into one number, which sorts by rank, then by place. No text has so many places,
 * and a double holds the number exactly.
 */
const places = 2 ** 26;
/** Pairs merged in one step: about a millisecond of work. */
export const pairsPerStep = 2_048;

export class BytePairs {
  readonly #symbols = new Map<string, number>();
  /** Rank of each merge, by its left and right symbol packed into one number. */
  readonly #ranks = new Map<number, number>();
  /** Pairs are packed by it: of a small vocabulary they are integers of 32 bits, which are found sooner. */
  readonly #symbolCount: number;
  /** The symbol that each merge makes, by rank. */
  readonly #merged: Int32Array;

  /**
   * @param merges in the order of rank; of two equal ones the later one counts
   * @param letters single symbols, which exist whether or not a merge has them
   */
  constructor(merges: readonly (readonly [string, string])[], letters: readonly string[] = []) {
    const symbolOf = (text: string): number => this.#symbols.getOrInsert(text, this.#symbols.size);
    for (const letter of letters) symbolOf(letter);
    const parts = merges.map(([left, right]) => [symbolOf(left), symbolOf(right)] as const);
    this.#merged = Int32Array.from(merges, ([left, right]) => symbolOf(left + right));
    this.#symbolCount = this.#symbols.size;
    for (const [rank, [left, right]] of parts.entries()) this.#ranks.set(this.#pair(left, right), rank);
  }

  /** The symbol with this text. -1: no merge and no letter has it. */
  symbolOf(text: string): number {
    return this.#symbols.get(text) ?? -1;
  }

  /** Texts of all symbols, which are numbered from 0. */
  symbolTexts(): readonly string[] {
    return [...this.#symbols.keys()];
  }

  /**
   * Merges a short word in place. Each merge looks at all remaining pairs.
   * @param symbols the word's symbols are the first `count`
   * @returns how many symbols remain
   */
  mergeShort(symbols: Int32Array, count: number): number {
    let left = count;
    for (;;) {
      let bestRank = -1;
      let bestAt = -1;
      for (let at = 0; at + 1 < left; at++) {
        const rank = this.#rankOf(symbols[at] ?? -1, symbols[at + 1] ?? -1);
        if (rank < 0 || (bestRank >= 0 && rank >= bestRank)) continue;
        bestRank = rank;
        bestAt = at;
      }
      if (bestAt < 0) return left;
      symbols[bestAt] = this.#merged[bestRank] ?? -1;
      symbols.copyWithin(bestAt + 1, bestAt + 2, left);
      left -= 1;
    }
  }

  /** The tokens of a word, in order. Yields after each step. */
  *split(word: string): Generator<void, string[]> {
    const starts = startsOf(word);
    const count = starts.length - 1;
    const symbols = new Int32Array(count);
    for (let at = 0; at < count; at++) symbols[at] = this.symbolOf(word.slice(starts[at], starts[at + 1]));
    const next = yield* this.merge(symbols);
    const tokens: string[] = [];
    for (let at = 0; at < count; ) {
      const end = next[at] ?? count;
      tokens.push(word.slice(starts[at], starts[end]));
      at = end;
    }
    return tokens;
  }

  /**
   * Merges a word of any length in place. Yields after each step.
   * @param symbols the word's symbols; afterwards, a token's symbol stands where the token begins
   * @returns for each place where a token begins, the place where the next token begins
   */
  *merge(symbols: Int32Array): Generator<void, Int32Array> {
    const count = symbols.length;
    const next = Int32Array.from({ length: count }, (_, at) => at + 1);
    const before = Int32Array.from({ length: count }, (_, at) => at - 1);
    /** Rank of the pair that begins at each place. -1: no merge has this pair. */
    const ranks = new Int32Array(count).fill(-1);
    const queue = new NumberHeap();
    const look = (at: number): void => {
      const end = next[at] ?? count;
      const rank = end >= count ? -1 : this.#rankOf(symbols[at] ?? -1, symbols[end] ?? -1);
      ranks[at] = rank;
      if (rank >= 0) queue.push(rank * places + at);
    };
    for (let at = 0; at < count - 1; at++) {
      look(at);
      if (at % pairsPerStep === pairsPerStep - 1) yield;
    }
    let pairsLeft = pairsPerStep;
    for (let entry = queue.pop(); entry !== undefined; entry = queue.pop()) {
      if (--pairsLeft === 0) {
        pairsLeft = pairsPerStep;
        yield;
      }
      const rank = Math.floor(entry / places);
      const at = entry - rank * places;
      // The queue still names a pair that an earlier merge has changed.
      if (ranks[at] !== rank) continue;
      const gone = next[at] ?? count;
      const end = next[gone] ?? count;
      symbols[at] = this.#merged[rank] ?? -1;
      next[at] = end;
      ranks[gone] = -1;
      if (end < count) before[end] = at;
      const left = before[at] ?? -1;
      if (left >= 0) look(left);
      look(at);
    }
    return next;
  }

  #rankOf(left: number, right: number): number {
    return left < 0 || right < 0 ? -1 : (this.#ranks.get(this.#pair(left, right)) ?? -1);
  }

  #pair(left: number, right: number): number {
    return left * this.#symbolCount + right;
  }
}

/** GPT-2's printable letters for the 256 bytes: printable Latin-1 stands for itself, the rest for U+0100 onwards. */
export function byteLetters(): readonly string[] {
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCodePoint(printable ? byte : next++);
  });
}

/** The index at which each code point of a word begins, and the word's end as the last entry. */
function startsOf(word: string): Int32Array {
  const starts = new Int32Array(word.length + 1);
  let count = 0;
  for (let at = 0; at < word.length; at += (word.codePointAt(at) ?? 0) > 0xffff ? 2 : 1) starts[count++] = at;
  starts[count] = word.length;
  return starts.subarray(0, count + 1);
}

/** A heap that gives the smallest number first. */
class NumberHeap {
  readonly #entries: number[] = [];

  push(entry: number): void {
    const entries = this.#entries;
    let at = entries.length;
    entries.push(entry);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = entries[parent] ?? 0;
      if (above <= entry) break;
      entries[at] = above;
      at = parent;
    }
    entries[at] = entry;
  }

  pop(): number | undefined {
    const entries = this.#entries;
    const [first] = entries;
    const last = entries.pop();
    if (entries.length === 0 || last === undefined) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= entries.length) break;
      if ((entries[child + 1] ?? Number.POSITIVE_INFINITY) < (entries[child] ?? 0)) child += 1;
      const below = entries[child] ?? 0;
      if (below >= last) break;
      entries[at] = below;
      at = child;
    }
    entries[at] = last;
    return first;
  }
}
