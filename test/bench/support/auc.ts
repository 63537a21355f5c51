/** How well times tell two kinds of requests apart: the area under the ROC curve, with its confidence interval. */

export interface Auc {
  /** Chance that a value of `high` is above one of `low`, ties counted half: 0.5 tells nothing, 1 all. */
  readonly auc: number;
  /** 95% interval by DeLong's variance (DeLong, DeLong, Clarke-Pearson, Biometrics 44, 1988). */
  readonly from: number;
  readonly to: number;
}

const z95 = 1.959964;

/** @throws RangeError with fewer than two values on a side */
export function aucOf(low: readonly number[], high: readonly number[]): Auc {
  if (low.length < 2 || high.length < 2) throw new RangeError("an AUC needs two values or more on each side");
  const highParts = sharesBelow(low, high);
  const lowParts = sharesBelow(high, low).map((share) => 1 - share);
  const auc = mean(highParts);
  const error = Math.sqrt(variance(highParts) / high.length + variance(lowParts) / low.length);
  return { auc, from: auc - z95 * error, to: auc + z95 * error };
}

/** Of each value: the share of the others that are below it, ties counted half. */
function sharesBelow(others: readonly number[], values: readonly number[]): number[] {
  const sorted = [...others].sort((a, b) => a - b);
  return values.map(
    (value) => (firstNot(sorted, (x) => x < value) + firstNot(sorted, (x) => x <= value)) / 2 / sorted.length,
  );
}

/** Index of the first value that does not pass; values that pass come first. */
function firstNot(sorted: readonly number[], passes: (value: number) => boolean): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    const value = sorted[middle];
    if (value !== undefined && passes(value)) low = middle + 1;
    else high = middle;
  }
  return low;
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

function variance(values: readonly number[]): number {
  const middle = mean(values);
  return values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1);
}
