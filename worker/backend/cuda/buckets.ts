/** Steps are run in sizes of few kinds, so that launches, products and graphs are prepared once for each. */

/** Sizes of decode steps that get a graph, as far as the step goes. */
export const smallBuckets: readonly number[] = [1, 2, 4, 8, 16, 24, 32, 48, 64];

/** The smallest size that holds so many rows: the waste of padding rows is below an eighth from 256 rows on. */
export function bucketOf(rowCount: number): number {
  const found = smallBuckets.find((size) => size >= rowCount);
  if (found !== undefined) return found;
  const unit = rowCount <= 256 ? 32 : rowCount <= 1_024 ? 64 : 256;
  return Math.ceil(rowCount / unit) * unit;
}
