/** Short texts of words from a Zipf vocabulary: a corpus of any size, the same on every machine. */

const vocabulary = 50_000;
const wordsPerText = 10;

/** Mulberry32. */
export function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Each is a sentence that carries its number: `Fragment n17x w3 w2046 ….` */
export function zipfTexts(random: () => number, count: number): string[] {
  // Log-uniform ranks: Zipf's law with exponent 1.
  const word = () => `w${Math.floor(vocabulary ** random())}`;
  return Array.from(
    { length: count },
    (_, i) => `Fragment n${i}x ${Array.from({ length: wordsPerText }, word).join(" ")}.`,
  );
}
