import { expect, test } from "bun:test";
import { notRead, planSlice, planSliceWords } from "../../worker/attention/plan-format.ts";
import { RotationWriter } from "../../worker/attention/rotations.ts";
import { IntList } from "../../worker/base/int-list.ts";

/** Slices of 16 tokens for a row each, with an offset of its own. */
function written(rows: readonly number[], itemRows: number): { rotations: number[]; added: number[] } {
  const slices = new Int32Array(rows.length * planSliceWords);
  const offsets = new IntList();
  rows.forEach((row, s) => {
    slices[s * planSliceWords + planSlice.tokenCount] = 16;
    slices[s * planSliceWords + planSlice.firstOffset] = s;
    slices[s * planSliceWords + planSlice.firstRow] = row;
    slices[s * planSliceWords + planSlice.rowCount] = 1;
    offsets.push(1_000 + s);
  });
  new RotationWriter().write(slices, offsets, 0, rows.length, itemRows);
  const rotations = rows.map((_, s) => slices[s * planSliceWords + planSlice.rotation]);
  return { rotations, added: [...offsets.view()].slice(rows.length) };
}

test("rows of a level are rotated at once, and one that stands again begins anew", () => {
  expect(written([0, 1, 2, 3], 4)).toEqual({ rotations: [5, 0, 0, 0], added: [1_000, 1_001, 1_002, 1_003] });
  expect(written([0, 1, 1], 2).rotations.map(Boolean)).toEqual([true, false, true]);
  expect(written([1, 3], 8)).toEqual({ rotations: [-3, 0], added: [1 | (4 << 16), 1_000, notRead, 1_001] });
});

test("rows far apart have places of their own: three words a row at most", () => {
  const { rotations, added } = written([0, 63], 64);
  expect(rotations.every((place) => place < 0)).toBe(true);
  expect(added).toEqual([1 << 16, 1_000, 63 | (64 << 16), 1_001]);
});
