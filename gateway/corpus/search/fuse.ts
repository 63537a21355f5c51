/**
 * Reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009): each ranking gives what it found weight / (60 + rank).
 * Scores are shares of what the first of all rankings would have, so they are in 0..1.
 */

const rankConstant = 60;

export interface Ranking<Hit> {
  /** 0 or more. */
  readonly weight: number;
  /** Best first. */
  readonly hits: readonly Hit[];
}

/** Best first; ties by `seq`. Where a hit is in several rankings, the first one's is kept. */
export function fuse<Hit extends { readonly seq: number }>(
  rankings: readonly Ranking<Hit>[],
): readonly { readonly hit: Hit; readonly score: number }[] {
  const fused = new Map<number, { readonly hit: Hit; score: number }>();
  const highest = rankings.reduce((sum, { weight }) => sum + weight, 0) / (rankConstant + 1);
  for (const { weight, hits } of rankings) {
    if (weight <= 0) continue;
    for (const [index, hit] of hits.entries()) {
      const entry = fused.get(hit.seq) ?? { hit, score: 0 };
      entry.score += weight / (rankConstant + index + 1) / highest;
      fused.set(hit.seq, entry);
    }
  }
  return [...fused.values()].sort((a, b) => b.score - a.score || a.hit.seq - b.hit.seq);
}
