/**
 * What the runs of a plan are computed from: the runs that they see, the runs that those saw, and so on; the runs that
 * they copy; and spans whose text they quote. Held as bit sets, since a plan may have thousands of runs that see each
 * other.
 */
import type { PlanRun } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";

const bitsPerWord = 32;

/**
 * For each run the last keys of the runs that it was computed from, each once, and the root keys of the spans among
 * them; for a span its own root key too. So a corpus, whose spans all have one root key, is found by that key.
 */
export function sourcesOf(runs: readonly PlanRun[]): readonly (readonly BlockKey[])[] {
  const keys: BlockKey[] = [];
  const numbers = new Map<BlockKey, number>();
  const numberOf = (key: BlockKey): number => numbers.getOrInsertComputed(key, () => keys.push(key) - 1);
  const lasts = runs.map(({ blockKeys }) => (blockKeys.length === 0 ? -1 : numberOf(blockKeys[blockKeys.length - 1])));
  const roots = runs.map(({ kind, rootKey }) => (kind === "span" ? numberOf(rootKey) : -1));
  for (const { quotes = [] } of runs) for (const key of quotes) numberOf(key);
  const words = Math.ceil(keys.length / bitsPerWord);
  const sets: (Uint32Array | undefined)[] = [];
  return runs.map(({ sees, blend, quotes = [] }, index) => {
    const seen = new Set([...sees, ...(blend?.copies ?? [])].map(({ run }) => run));
    if (seen.size === 0 && quotes.length === 0) return roots[index] < 0 ? [] : [runs[index].rootKey];
    const set = new Uint32Array(words);
    const add = (number: number): void => {
      set[number >>> 5] |= 1 << (number & 31);
    };
    for (const run of seen) {
      const theirs = sets[run];
      if (theirs !== undefined) for (let word = 0; word < words; word++) set[word] |= theirs[word];
      if (lasts[run] >= 0) add(lasts[run]);
      if (roots[run] >= 0) add(roots[run]);
    }
    for (const key of quotes) add(numberOf(key));
    sets[index] = set;
    if (roots[index] >= 0) add(roots[index]);
    return keys.filter((_, number) => (set[number >>> 5] & (1 << (number & 31))) !== 0);
  });
}
