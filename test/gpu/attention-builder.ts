/** Attention plans from lists of items: what the planner would write, where a test wants items of its own choice. */
import { type AttentionPlan, planItem, planItemWords } from "../../worker/attention/plan-format.ts";
import { RotationWriter } from "../../worker/attention/rotations.ts";
import { IntList } from "../../worker/base/int-list.ts";

export interface BuiltSlice {
  readonly block: number;
  readonly firstToken: number;
  readonly tokens: number;
  /** In the item. */
  readonly firstRow: number;
  readonly firstVisible: number;
  /** One for each row of the slice. */
  readonly offsets: readonly number[];
}

export interface BuiltItem {
  readonly rows: readonly number[];
  readonly shared: readonly BuiltSlice[];
  readonly own: readonly BuiltSlice[];
}

/** Rows that several items hold get partial results. */
export function buildPlan(rowCount: number, small: readonly BuiltItem[], large: readonly BuiltItem[]): AttentionPlan {
  const counts = new Int32Array(rowCount);
  for (const { rows } of [...small, ...large]) for (const row of rows) counts[row]++;
  const merges: number[] = [];
  const [nextPartial, mergeOf] = [new Int32Array(rowCount).fill(-1), new Int32Array(rowCount).fill(-1)];
  let partialCount = 0;
  counts.forEach((count, row) => {
    if (count < 2) return;
    nextPartial[row] = partialCount;
    mergeOf[row] = merges.length / 4;
    merges.push(row, partialCount, count, 0);
    partialCount += count;
  });
  const [rowWords, slices, offsets]: number[][] = [[], [], []];
  const add = ({ rows, shared, own }: BuiltItem): number[] => {
    const [firstRow, firstSlice] = [rowWords.length / 4, slices.length / 8];
    for (const row of rows) rowWords.push(row, nextPartial[row] < 0 ? -1 : nextPartial[row]++, mergeOf[row], 0);
    let tokens = 0;
    for (const slice of [...shared, ...own]) {
      const rowsOfSlice = slice.offsets.length;
      slices.push(slice.block, slice.firstToken, slice.tokens, offsets.length);
      slices.push(slice.firstRow, rowsOfSlice, slice.firstVisible, 0);
      for (const offset of slice.offsets) offsets.push(offset);
      tokens += slice.tokens;
    }
    return [firstRow, rows.length, firstSlice, shared.length, shared.length + own.length, tokens, 0, 0];
  };
  const [smallItems, largeItems] = [small, large].map((items) => Int32Array.from(items.flatMap(add)));
  const [sliceWords, offsetWords, rotations] = [Int32Array.from(slices), new IntList(1_024), new RotationWriter()];
  offsetWords.append(Int32Array.from(offsets));
  for (let at = 0; at < smallItems.length; at += planItemWords) {
    const [first, count] = [smallItems[at + planItem.firstSlice], smallItems[at + planItem.sliceCount]];
    rotations.write(sliceWords, offsetWords, first, count, smallItems[at + planItem.rowCount]);
    smallItems[at + planItem.isSmallAlone] = large.length === 0 ? 1 : 0;
  }
  return {
    rows: Int32Array.from(rowWords),
    smallItems,
    largeItems,
    slices: sliceWords,
    offsets: offsetWords.view(),
    merges: Int32Array.from(merges),
    partialCount,
  };
}
