/** What a step's lists name by place, they still name where the copy has them on the device. */
import { expect, test } from "bun:test";
import {
  notRead,
  planItem,
  planItemWords,
  planRowWords,
  planSlice,
  planSliceWords,
} from "../../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../../worker/attention/planner.ts";
import { StepLayout, StepStaging } from "../../../worker/backend/cuda/staging.ts";
import { batchOf, randomPieces } from "../../attention/world.ts";
import { Choices } from "../../sim/random.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const wordCount = 1 << 17;
const sliding = { slidingSmallItems: 400, slidingLargeItems: 100, slidingMerges: 200 };
const layout = new StepLayout({
  rows: 200,
  logitRows: 200,
  smallItems: 400,
  largeItems: 100,
  merges: 200,
  choices: 8,
  ...sliding,
});

/** The words of a list that stands at a place, as many as another has. */
const listAt = (words: Int32Array, at: number, list: Int32Array) => [...words.subarray(at, at + list.length)];

test("two plans lie beside each other, each with its own items, rows, slices, offsets and merges", async () => {
  const machine = { multiprocessorCount: 132, hasWarpgroups: true, packing: true, maxPartialRows: 4_096 };
  const shape = { group: 4, kvHeads: 8, headDim: 128, blockTokens: 16, ...machine };
  const sizes = { blockTokens: 16, documents: 3, maxBlocks: 80, maxRows: 40, maxSegments: 4, pieces: 6 };
  const choices = new Choices(3);
  const batch = batchOf(randomPieces(choices, sizes));
  const [full, sliding] = [
    new PackPlanner(shape).plan(batch),
    new PackPlanner({ ...shape, packing: false }).plan(batch),
  ];
  for (const plan of [full, sliding])
    for (const list of [plan.merges, plan.rows]) expect(list.length).toBeGreaterThan(0);
  const device = new EmulatedDevice(128);
  const staging = new StepStaging(device, wordCount);
  staging.send(layout, batch, { full, sliding });
  const words = new Int32Array(wordCount);
  device.copyOut(words, staging.buffer);
  await device.settled();
  const places = [
    [full, layout.smallItems, layout.largeItems, layout.merges],
    [sliding, layout.slidingSmallItems, layout.slidingLargeItems, layout.slidingMerges],
  ] as const;
  for (const [plan, small, large, merges] of places) {
    expect(listAt(words, merges, plan.merges)).toEqual([...plan.merges]);
    for (const [start, items] of [
      [small, plan.smallItems],
      [large, plan.largeItems],
    ] as const) {
      for (let item = 0; item < items.length; item += planItemWords) {
        const [row, slice] = [planItem.firstRow, planItem.firstSlice].map((field) => words[start + item + field]);
        const rows = plan.rows.subarray(items[item + planItem.firstRow] * planRowWords).subarray(0, planRowWords);
        expect(listAt(words, row * planRowWords, rows)).toEqual([...rows]);
        const from = items[item + planItem.firstSlice] * planSliceWords;
        const [own, wanted] = [words.subarray(slice * planSliceWords), plan.slices.subarray(from)];
        for (const field of ["firstToken", "tokenCount", "firstRow", "rowCount", "firstVisible"] as const)
          expect(own[planSlice[field]]).toBe(wanted[planSlice[field]]);
        expect(words[own[planSlice.block]]).toBe(batch.blockIds[wanted[planSlice.block]]);
        expect(words[own[planSlice.firstOffset]]).toBe(plan.offsets[wanted[planSlice.firstOffset]]);
      }
    }
  }
});

test("offsets of slices, and those that q is rotated by for them", async () => {
  let [windows, rows] = [0, 0];
  for (let seed = 0; seed < 20; seed++) {
    const choices = new Choices(seed);
    const shape = { group: choices.pick([1, 4, 8]), kvHeads: 8, headDim: 128, blockTokens: 16 };
    const machine = { multiprocessorCount: 132, hasWarpgroups: true, packing: true, maxPartialRows: 4_096 };
    const sizes = { blockTokens: 16, documents: 3, maxBlocks: 6, maxRows: 9, maxSegments: 4, pieces: 20 };
    const batch = batchOf(randomPieces(choices, sizes));
    const plan = new PackPlanner({ ...shape, ...machine }).plan(batch);
    const device = new EmulatedDevice(128);
    const staging = new StepStaging(device, wordCount);
    staging.send(layout, batch, { full: plan });
    const words = new Int32Array(wordCount);
    device.copyOut(words, staging.buffer);
    await device.settled();
    for (let item = layout.smallItems; item < layout.smallItems + plan.smallItems.length; item += planItemWords) {
      const field = (name: keyof typeof planItem) => words[item + planItem[name]];
      const rotated = new Int32Array(field("rowCount"));
      for (let s = field("firstSlice"); s < field("firstSlice") + field("sliceCount"); s++) {
        const slice = words.subarray(s * planSliceWords, (s + 1) * planSliceWords);
        const rotations = slice[planSlice.rotation];
        if (rotations > 0) rotated.set(words.subarray(rotations - 1, rotations - 1 + rotated.length));
        if (rotations < 0) {
          const [from, end] = [words[-rotations - 1] & 0xffff, words[-rotations - 1] >> 16];
          rotated.fill(notRead).set(words.subarray(-rotations, -rotations + end - from), from);
          windows += 1;
        }
        for (let i = 0; i < slice[planSlice.rowCount]; i++) {
          expect(rotated[slice[planSlice.firstRow] + i]).toBe(words[slice[planSlice.firstOffset] + i]);
          rows += 1;
        }
      }
    }
  }
  expect(rows).toBeGreaterThan(1_000);
  expect(windows).toBeGreaterThan(10);
});
