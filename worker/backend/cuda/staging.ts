/**
 * The integers of a step, sent to the device in one copy from one pinned buffer. Two buffers alternate: the device may
 * still have to read the buffer of one step while the next step is written. Lists at fixed places come first, so that
 * recorded launches find them; lists whose length depends on the step (slices, block ids) follow, and indices count
 * from the buffer's start.
 *
 *   counts | tokenIds | positions | slots | logitRows | samples | merges | smallItems | largeItems
 *   | edits, rows, slices, offsets, blockIds of the plan, from the end of the items on that the step has
 */
import {
  type AttentionPlan,
  planItem,
  planItemWords,
  planMergeWords,
  planRowWords,
  planSlice,
  planSliceWords,
} from "../../attention/plan-format.ts";
import type { Batch } from "../../contract/batch.ts";
import type { ComputeDevice, DeviceBuffer } from "./device/device.ts";
import { editWords, noSamples, type SampleLists, sampleWords } from "./sampling.ts";

/** Word of each count in `counts`. */
export const countPlaces = { rows: 0, logitRows: 1, smallItems: 2, largeItems: 3, merges: 4 } as const;
const countWords = 16;

/** How many entries each list at a fixed place can hold. */
export interface StepCapacity {
  readonly rows: number;
  readonly logitRows: number;
  readonly smallItems: number;
  readonly largeItems: number;
  readonly merges: number;
}

/** How many entries of each list a step has; its launches are sized for them. */
export type StepCounts = StepCapacity;

/** The first word of each list at a fixed place. */
export class StepLayout {
  readonly capacity: StepCapacity;
  readonly tokenIds: number;
  readonly positions: number;
  readonly slots: number;
  readonly logitRows: number;
  readonly smallItems: number;
  readonly largeItems: number;
  readonly merges: number;
  readonly samples: number;
  /** Words that all these lists take together. */
  readonly wordCount: number;

  constructor(capacity: StepCapacity) {
    this.capacity = capacity;
    let at = 0;
    const take = (words: number): number => {
      const start = at;
      at += alignedWords(words);
      return start;
    };
    take(countWords);
    this.tokenIds = take(capacity.rows);
    this.positions = take(capacity.rows);
    this.slots = take(capacity.rows);
    this.logitRows = take(capacity.logitRows);
    this.samples = take(capacity.logitRows * sampleWords);
    this.merges = take(capacity.merges * planMergeWords);
    this.smallItems = take(capacity.smallItems * planItemWords);
    this.largeItems = take(capacity.largeItems * planItemWords);
    this.wordCount = at;
  }
}

export class StepStaging {
  /** The device's copy of the buffer. */
  readonly buffer: DeviceBuffer;
  readonly #buffers: readonly [Int32Array, Int32Array];
  #next: 0 | 1 = 0;
  readonly #wordCount: number;
  readonly #device: ComputeDevice;

  constructor(device: ComputeDevice, wordCount: number) {
    const words = (name: string) => {
      const bytes = device.allocateHost(name, wordCount * 4);
      return new Int32Array(bytes.buffer, bytes.byteOffset, wordCount);
    };
    this.#device = device;
    this.#wordCount = wordCount;
    this.#buffers = [words("step"), words("next step")];
    this.buffer = device.allocate("step", wordCount * 4);
  }

  /** The list that begins at a word of the layout. */
  list(firstWord: number): DeviceBuffer {
    return this.buffer.slice(firstWord * 4);
  }

  count(name: keyof typeof countPlaces): DeviceBuffer {
    return this.buffer.slice(countPlaces[name] * 4, 4);
  }

  /**
   * Puts the copy of a step into the stream. Of the steps sent before, only the last one may still be running.
   * @throws RangeError when the step does not fit the layout or the buffer
   */
  send(layout: StepLayout, batch: Batch, plan: AttentionPlan, samples: SampleLists = noSamples): void {
    const counts = stepCounts(batch, plan);
    assertFits(layout.capacity, counts);
    // A step has far fewer items than there is space for, so the other lists begin where its items end.
    const hasLarge = plan.largeItems.length > 0;
    const edits = hasLarge ? layout.largeItems + plan.largeItems.length : layout.smallItems + plan.smallItems.length;
    const rows = alignedWords(edits + samples.edits.length);
    const slices = alignedWords(rows + plan.rows.length);
    const offsets = slices + plan.slices.length;
    const blockIds = offsets + plan.offsets.length;
    const end = blockIds + batch.blockIds.length;
    if (end > this.#wordCount) {
      throw new RangeError(`a step of ${end} words does not fit into a buffer of ${this.#wordCount}`);
    }
    const words = this.#nextWords();
    for (const [name, place] of Object.entries(countPlaces)) words[place] = counts[name as keyof StepCounts];
    words.set(batch.tokenIds, layout.tokenIds);
    words.set(batch.positions, layout.positions);
    words.set(batch.slots, layout.slots);
    words.set(batch.logitRows, layout.logitRows);
    words.set(plan.merges, layout.merges);
    words.set(samples.edits, edits);
    words.set(plan.rows, rows);
    words.set(plan.offsets, offsets);
    words.set(batch.blockIds, blockIds);
    // Indices into a list become indices into the whole buffer.
    for (const name of ["smallItems", "largeItems"] as const) {
      words.set(plan[name], layout[name]);
      move(words, layout[name] + planItem.firstRow, plan[name].length, planItemWords, rows / planRowWords);
      move(words, layout[name] + planItem.firstSlice, plan[name].length, planItemWords, slices / planSliceWords);
    }
    words.set(samples.rows, layout.samples);
    move(words, layout.samples + 7, samples.rows.length, sampleWords, edits / editWords);
    words.set(plan.slices, slices);
    move(words, slices + planSlice.block, plan.slices.length, planSliceWords, blockIds);
    move(words, slices + planSlice.firstOffset, plan.slices.length, planSliceWords, offsets);
    moveRotations(words, slices, plan.slices.length, offsets);
    this.#device.copyIn(this.buffer, words.subarray(0, end));
  }

  /** Words that `send` has left for the lists without a fixed place. */
  roomFor(layout: StepLayout): number {
    return this.#wordCount - layout.wordCount;
  }

  /** Sends a step of zero rows: launches read the counts from the device and do nothing. */
  sendNothing(): void {
    const words = this.#nextWords();
    words.fill(0, 0, countWords);
    this.#device.copyIn(this.buffer, words.subarray(0, countWords));
  }

  #nextWords(): Int32Array {
    this.#next = this.#next === 0 ? 1 : 0;
    return this.#buffers[this.#next];
  }
}

/** Rounds up to a multiple of 8 words, so that a list begins at a whole entry, whatever its entries' size. */
const alignedWords = (count: number): number => Math.ceil(count / 8) * 8;

/** Adds `by` to every `size`-th of the `length` words from `at` on. */
function move(words: Int32Array, at: number, length: number, size: number, by: number): void {
  for (let word = at; word < at + length; word += size) words[word] += by;
}

/** The sign of a slice's `rotation` tells two kinds of place apart (plan-format.ts), so `by` moves it away from 0. */
function moveRotations(words: Int32Array, slices: number, length: number, by: number): void {
  for (let word = slices + planSlice.rotation; word < slices + length; word += planSliceWords) {
    words[word] += Math.sign(words[word]) * by;
  }
}

export function stepCounts(batch: Batch, plan: AttentionPlan): StepCounts {
  return {
    rows: batch.tokenIds.length,
    logitRows: batch.logitRows.length,
    smallItems: plan.smallItems.length / planItemWords,
    largeItems: plan.largeItems.length / planItemWords,
    merges: plan.merges.length / planMergeWords,
  };
}

function assertFits(capacity: StepCapacity, counts: StepCounts): void {
  for (const name of ["rows", "logitRows", "smallItems", "largeItems", "merges"] as const) {
    if (counts[name] > capacity[name]) {
      throw new RangeError(`a step has ${counts[name]} ${name}, its launches are for ${capacity[name]}`);
    }
  }
}
