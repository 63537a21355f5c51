/** By what q is turned for the slices of an item of few rows (plan-format.ts, `turns`). */

import type { IntList } from "../base/int-list.ts";
import { manyTiles, notRead, planSlice, planSliceWords, tileHeads } from "./plan-format.ts";

/** Offsets of so many rows stand in the list for each row that has one, at most. */
const mostSpread = 2;

export class RotationWriter {
  /** By row of the item: the offset that it is turned by since the last slice with `turns`. */
  private readonly turned = new Int32Array(manyTiles * tileHeads).fill(notRead);
  /** That slice, the rows between which all lie that have an offset since, and how many have. */
  private open = -1;
  private firstRow = 0;
  private endRow = 0;
  private count = 0;

  /** Writes `turns` of an item's slices, and offsets behind those of the slices where they do not stand there as they are. */
  write(slices: Int32Array, offsets: IntList, firstSlice: number, sliceCount: number, itemRows: number): void {
    for (let s = firstSlice; s < firstSlice + sliceCount; s++) {
      const at = s * planSliceWords;
      slices[at + planSlice.turns] = 0;
      if (slices[at + planSlice.tokenCount] <= 0) continue;
      const [firstOffset, firstRow] = [slices[at + planSlice.firstOffset], slices[at + planSlice.firstRow]];
      const rowCount = slices[at + planSlice.rowCount];
      if (this.open < 0 || !this.takes(offsets.memory, firstOffset, firstRow, rowCount)) {
        this.end(slices, offsets, itemRows);
        [this.open, this.firstRow, this.endRow] = [at, firstRow, firstRow];
      }
      for (let i = 0; i < rowCount; i++) {
        if (this.turned[firstRow + i] === notRead) this.count += 1;
        this.turned[firstRow + i] = offsets.memory[firstOffset + i];
      }
      this.firstRow = Math.min(this.firstRow, firstRow);
      this.endRow = Math.max(this.endRow, firstRow + rowCount);
    }
    this.end(slices, offsets, itemRows);
  }

  /** Does no row of the slice need another offset than it has, and do rows with offsets stand close enough together? */
  private takes(offsets: Int32Array, firstOffset: number, firstRow: number, rowCount: number): boolean {
    let count = this.count;
    for (let i = 0; i < rowCount; i++) {
      const turned = this.turned[firstRow + i];
      if (turned !== notRead && turned !== offsets[firstOffset + i]) return false;
      if (turned === notRead) count += 1;
    }
    const spread = Math.max(this.endRow, firstRow + rowCount) - Math.min(this.firstRow, firstRow);
    return spread <= mostSpread * count;
  }

  private end(slices: Int32Array, offsets: IntList, itemRows: number): void {
    const { open, firstRow, endRow } = this;
    if (open < 0) return;
    const isOwn = slices[open + planSlice.rowCount] === itemRows;
    const isWhole = endRow - firstRow === itemRows;
    if (isOwn) {
      slices[open + planSlice.turns] = slices[open + planSlice.firstOffset] + 1;
    } else {
      slices[open + planSlice.turns] = isWhole ? offsets.length + 1 : -offsets.length - 1;
      if (!isWhole) offsets.push(firstRow | (endRow << 16));
      for (let i = firstRow; i < endRow; i++) offsets.push(this.turned[i]);
    }
    this.turned.fill(notRead, firstRow, endRow);
    this.open = -1;
    this.count = 0;
  }
}
