/** Writes by which offsets q is rotated for the slices of a small item (plan-format.ts, `rotation`). */

import type { IntList } from "../base/int-list.ts";
import { largeTiles, notRead, planSlice, planSliceWords, tileHeads } from "./plan-format.ts";

/** The list holds at most so many offsets for each row that needs one. */
const mostSpread = 2;

export class RotationWriter {
  /** [rows of the item] the offset that each is rotated by since the last slice whose `rotation` is not 0. */
  readonly #rotated = new Int32Array(largeTiles * tileHeads).fill(notRead);
  /** That slice; the range of the rows that have had an offset since; and how many rows of the range have one. */
  #open = -1;
  #firstRow = 0;
  #endRow = 0;
  #count = 0;

  /** Writes `rotation` of an item's slices, and the offsets that do not stand in the list yet as they are needed. */
  write(slices: Int32Array, offsets: IntList, firstSlice: number, sliceCount: number, itemRows: number): void {
    for (let s = firstSlice; s < firstSlice + sliceCount; s++) {
      const at = s * planSliceWords;
      slices[at + planSlice.rotation] = 0;
      if (slices[at + planSlice.tokenCount] <= 0) continue;
      const [firstOffset, firstRow] = [slices[at + planSlice.firstOffset], slices[at + planSlice.firstRow]];
      const rowCount = slices[at + planSlice.rowCount];
      if (this.#open < 0 || !this.#takes(offsets.memory, firstOffset, firstRow, rowCount)) {
        this.#end(slices, offsets, itemRows);
        [this.#open, this.#firstRow, this.#endRow] = [at, firstRow, firstRow];
      }
      for (let i = 0; i < rowCount; i++) {
        if (this.#rotated[firstRow + i] === notRead) this.#count += 1;
        this.#rotated[firstRow + i] = offsets.memory[firstOffset + i];
      }
      this.#firstRow = Math.min(this.#firstRow, firstRow);
      this.#endRow = Math.max(this.#endRow, firstRow + rowCount);
    }
    this.#end(slices, offsets, itemRows);
  }

  /** Does no row of the slice need another offset than it has, and do rows with offsets stand close enough together? */
  #takes(offsets: Int32Array, firstOffset: number, firstRow: number, rowCount: number): boolean {
    let count = this.#count;
    for (let i = 0; i < rowCount; i++) {
      const rotated = this.#rotated[firstRow + i];
      if (rotated !== notRead && rotated !== offsets[firstOffset + i]) return false;
      if (rotated === notRead) count += 1;
    }
    const spread = Math.max(this.#endRow, firstRow + rowCount) - Math.min(this.#firstRow, firstRow);
    return spread <= mostSpread * count;
  }

  #end(slices: Int32Array, offsets: IntList, itemRows: number): void {
    const open = this.#open;
    const firstRow = this.#firstRow;
    const endRow = this.#endRow;
    if (open < 0) return;
    const isOwn = slices[open + planSlice.rowCount] === itemRows;
    const isWhole = endRow - firstRow === itemRows;
    if (isOwn) {
      slices[open + planSlice.rotation] = slices[open + planSlice.firstOffset] + 1;
    } else {
      slices[open + planSlice.rotation] = isWhole ? offsets.length + 1 : -offsets.length - 1;
      if (!isWhole) offsets.push(firstRow | (endRow << 16));
      for (let i = firstRow; i < endRow; i++) offsets.push(this.#rotated[i]);
    }
    this.#rotated.fill(notRead, firstRow, endRow);
    this.#open = -1;
    this.#count = 0;
  }
}
