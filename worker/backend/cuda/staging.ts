/**
 * The integers of a step, sent to the device in one copy from one pinned buffer. Two buffers alternate: the device may
 * still have to read the buffer of one step while the next step is written. Lists at fixed places come first, so that
 * recorded launches find them; lists whose length depends on the step (slices, block ids) follow, and indices count
 * from the buffer's start.
 *
 *   counts | tokenIds | positions | slots | logitRows | samples | merges | smallItems | largeItems
 *   | edits, rows, slices, offsets, blockIds of the plan, choices (sparse/choice-words.ts), from the end of the items on
 *     that the step has
 *
 * Where layers slide, these follow a plan of their own: its merges and items stand behind those of the other plan, each
 * kind behind its kind, its rows, slices and offsets behind the other's.
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
import { choiceSizes, putChoices } from "./sparse/choice-words.ts";
import type { StepPlans } from "./step-planner.ts";

/** Word of each count in `counts`. */
export const countPlaces = {
  rows: 0,
  logitRows: 1,
  smallItems: 2,
  largeItems: 3,
  merges: 4,
  slidingSmallItems: 5,
  slidingLargeItems: 6,
  slidingMerges: 7,
  choices: 8,
} as const;
/** The word that says where the step's choices begin; 0: there are none. */
const choicePlace = 9;
const countWords = 16;

/** How many entries each list at a fixed place can hold. */
export type StepCapacity = Readonly<Record<keyof typeof countPlaces, number>>;

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
  readonly slidingSmallItems: number;
  readonly slidingLargeItems: number;
  readonly slidingMerges: number;
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
    this.slidingMerges = take(capacity.slidingMerges * planMergeWords);
    this.smallItems = take(capacity.smallItems * planItemWords);
    this.slidingSmallItems = take(capacity.slidingSmallItems * planItemWords);
    this.largeItems = take(capacity.largeItems * planItemWords);
    this.slidingLargeItems = take(capacity.slidingLargeItems * planItemWords);
    this.wordCount = at;
  }
}

/** Where the fixed lists of a plan begin. */
type PlanLists = Pick<StepLayout, "smallItems" | "largeItems" | "merges">;

const slidingLists = (layout: StepLayout): PlanLists => ({
  smallItems: layout.slidingSmallItems,
  largeItems: layout.slidingLargeItems,
  merges: layout.slidingMerges,
});

/** Where the other lists of a plan begin, and where the last of them ends. */
interface PlanPlaces {
  readonly rows: number;
  readonly slices: number;
  readonly offsets: number;
  readonly end: number;
}

function placesOf(plan: AttentionPlan, from: number): PlanPlaces {
  const rows = alignedWords(from);
  const slices = alignedWords(rows + plan.rows.length);
  const offsets = slices + plan.slices.length;
  return { rows, slices, offsets, end: offsets + plan.offsets.length };
}

/** A step has far fewer items than there is space for, so the other lists begin where its items end. */
function endOfItems(layout: StepLayout, { full, sliding }: StepPlans): number {
  const behind = [
    [layout.slidingLargeItems, sliding?.largeItems],
    [layout.largeItems, full.largeItems],
    [layout.slidingSmallItems, sliding?.smallItems],
  ] as const;
  const [start, items] = behind.find(([, list]) => list && list.length > 0) ?? [layout.smallItems, full.smallItems];
  return start + (items?.length ?? 0);
}

/** Writes a plan's lists; indices into a list become indices into the whole buffer. */
function putPlan(words: Int32Array, plan: AttentionPlan, places: PlanPlaces, blockIds: number, lists: PlanLists) {
  const { rows, slices, offsets } = places;
  words.set(plan.merges, lists.merges);
  words.set(plan.rows, rows);
  words.set(plan.offsets, offsets);
  for (const name of ["smallItems", "largeItems"] as const) {
    words.set(plan[name], lists[name]);
    move(words, lists[name] + planItem.firstRow, plan[name].length, planItemWords, rows / planRowWords);
    move(words, lists[name] + planItem.firstSlice, plan[name].length, planItemWords, slices / planSliceWords);
  }
  words.set(plan.slices, slices);
  move(words, slices + planSlice.block, plan.slices.length, planSliceWords, blockIds);
  move(words, slices + planSlice.firstOffset, plan.slices.length, planSliceWords, offsets);
  moveRotations(words, slices, plan.slices.length, offsets);
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

  get choicePlace(): DeviceBuffer {
    return this.buffer.slice(choicePlace * 4, 4);
  }

  /**
   * Puts the copy of a step into the stream. Of the steps sent before, only the last one may still be running.
   * @throws RangeError when the step does not fit the layout or the buffer
   */
  send(layout: StepLayout, batch: Batch, plans: StepPlans, samples: SampleLists = noSamples): void {
    const counts = stepCounts(batch, plans);
    assertFits(layout.capacity, counts);
    const edits = endOfItems(layout, plans);
    const places = placesOf(plans.full, edits + samples.edits.length);
    const sliding = plans.sliding && placesOf(plans.sliding, places.end);
    const blockIds = (sliding ?? places).end;
    const choices = batch.choices && alignedWords(blockIds + batch.blockIds.length);
    const end = choices ? choices + choiceSizes(batch.choices).words : blockIds + batch.blockIds.length;
    if (end > this.#wordCount) {
      throw new RangeError(`a step of ${end} words does not fit into a buffer of ${this.#wordCount}`);
    }
    const words = this.#nextWords();
    for (const [name, place] of Object.entries(countPlaces)) words[place] = counts[name as keyof StepCounts];
    words.set(batch.tokenIds, layout.tokenIds);
    words.set(batch.positions, layout.positions);
    words.set(batch.slots, layout.slots);
    words.set(batch.logitRows, layout.logitRows);
    words.set(samples.edits, edits);
    words.set(batch.blockIds, blockIds);
    words.set(samples.rows, layout.samples);
    words[choicePlace] = choices ?? 0;
    if (batch.choices && choices) putChoices(words, batch, batch.choices, choices, blockIds);
    // Indices into a list become indices into the whole buffer.
    move(words, layout.samples + 7, samples.rows.length, sampleWords, edits / editWords);
    putPlan(words, plans.full, places, blockIds, layout);
    if (plans.sliding && sliding) putPlan(words, plans.sliding, sliding, blockIds, slidingLists(layout));
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

export function stepCounts(batch: Batch, { full, sliding }: StepPlans): StepCounts {
  return {
    rows: batch.tokenIds.length,
    logitRows: batch.logitRows.length,
    smallItems: full.smallItems.length / planItemWords,
    largeItems: full.largeItems.length / planItemWords,
    merges: full.merges.length / planMergeWords,
    slidingSmallItems: (sliding?.smallItems.length ?? 0) / planItemWords,
    slidingLargeItems: (sliding?.largeItems.length ?? 0) / planItemWords,
    slidingMerges: (sliding?.merges.length ?? 0) / planMergeWords,
    choices: batch.choices?.pieces.length ?? 0,
  };
}

function assertFits(capacity: StepCapacity, counts: StepCounts): void {
  for (const name of Object.keys(countPlaces) as (keyof StepCounts)[]) {
    if (counts[name] > capacity[name]) {
      throw new RangeError(`a step has ${counts[name]} ${name}, its launches are for ${capacity[name]}`);
    }
  }
}
