/**
 * Attention as a plan has it (worker/attention/plan-format.ts), in plain loops: items, partial results, their merge.
 */

import {
  planItemWords,
  planMergeWords,
  planRowWords,
  planSliceWords,
  rowsPerTile,
} from "../../../worker/attention/plan-format.ts";
import type { DeviceBuffer } from "../../../worker/backend/cuda/device/device.ts";
import { EmulatedPool, Rotations, type Values } from "./emulated-heads.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;

/** A row's output for one head, and the base-2 logarithm of the sum of its weights. */
interface Part {
  readonly out: Float32Array;
  readonly logSum: number;
}

/**
 * @param maxTiles m-tiles that the kernel's items have room for; more than four: shared slices only
 * @param byRotations q is rotated by what `rotation` of slices names, not by the slices' own offsets
 */
export function emulatedAttention(memory: EmulatedMemory, values: Values, maxTiles: number, byRotations = false): void {
  const ints = (value: unknown, size: number, index: number) =>
    memory.int32(buffer(value)).subarray(index * size, (index + 1) * size);
  const [items, itemCount] = [values[5], memory.int32(buffer(values[10]))[0]];
  const attend = new ItemReader(memory, values);
  for (let i = 0; i < itemCount; i++) {
    const [firstRow, rowCount, firstSlice, sharedSlices, sliceCount] = ints(items, planItemWords, i);
    if (rowCount > maxTiles * attend.rowsPerTile) throw new RangeError(`${rowCount} rows in an item`);
    if (maxTiles > 4 && sharedSlices < sliceCount) throw new RangeError("a large item has private slices");
    for (let r = 0; r < rowCount; r++) {
      const [row, partial, merge] = ints(values[4], planRowWords, firstRow + r);
      for (let head = 0; head < attend.queryHeads; head++) {
        const part = attend.part(row, head, r, firstSlice, sliceCount, byRotations);
        if (partial < 0) attend.write(row, head, attend.withSink(part, head));
        else attend.keep(row, head, partial, merge, part);
      }
    }
  }
}

class ItemReader {
  readonly queryHeads: number;
  readonly rowsPerTile: number;
  private readonly kvHeads: number;
  private readonly memory: EmulatedMemory;
  private readonly values: Values;
  private readonly group: number;

  constructor(memory: EmulatedMemory, values: Values) {
    this.memory = memory;
    this.values = values;
    [this.queryHeads, this.kvHeads] = [Number(values[11]), Number(values[12])];
    this.group = this.queryHeads / this.kvHeads;
    this.rowsPerTile = rowsPerTile(this.group);
  }

  /** What row `index` of an item gets of its slices. */
  part(row: number, head: number, index: number, firstSlice: number, sliceCount: number, byRotations: boolean): Part {
    const { memory, values } = this;
    const { headDim } = memory;
    const [qkv, pool, table, positions] = values;
    const [rotaryDim, blockTokens, scale] = values.slice(13, 16).map(Number);
    const data = memory.bfloat16(buffer(qkv));
    const kv = new EmulatedPool(memory, buffer(pool), { kvHeads: this.kvHeads, headDim, blockTokens });
    const width = (this.queryHeads + 2 * this.kvHeads) * headDim;
    const scores: number[] = [];
    const seen: Float32Array[] = [];
    const offsets = memory.int32(buffer(values[7]));
    let rotated = Number.NaN;
    for (let s = firstSlice; s < firstSlice + sliceCount; s++) {
      const slice = memory.int32(buffer(values[6])).subarray(s * planSliceWords, (s + 1) * planSliceWords);
      const [block, first, tokens, firstOffset, sliceRow, rowWord, visible, rotations] = slice;
      const [sliceRows, late] = [
        rowWord & 0xffff,
        rowWord >> 16 === 0 ? Number.POSITIVE_INFINITY : (rowWord >> 16) - 1,
      ];
      if (rotations !== 0) rotated = rotatedBy(offsets, rotations, index);
      const i = index - sliceRow;
      if (i < 0 || i >= sliceRows) continue;
      const q = data.row(row * width + head * headDim, headDim);
      const offset = byRotations ? rotated : offsets[firstOffset + i];
      const position = memory.int32(buffer(positions))[row] - offset;
      if (rotaryDim > 0) new Rotations(memory, buffer(table)).rotate(q, position, rotaryDim);
      for (let token = Math.max(0, i - late); token < Math.min(tokens, visible + i); token++) {
        const at = first + token;
        const id = memory.int32(buffer(values[8]))[block + Math.floor(at / blockTokens)];
        const [slot, kvHead] = [id * blockTokens + (at % blockTokens), Math.floor(head / this.group)];
        const k = kv.row(slot, kvHead, true);
        let product = 0;
        for (let d = 0; d < headDim; d++) product += q[d] * k[d];
        scores.push(capped(product * scale, memory.scoreCap));
        seen.push(kv.row(slot, kvHead, false));
      }
    }
    return combine(scores, seen, headDim);
  }

  write(row: number, head: number, out: Float32Array): void {
    const { headDim } = this.memory;
    this.memory.bfloat16(buffer(this.values[16])).setRow((row * this.queryHeads + head) * headDim, out);
  }

  /** What a row gets of all that it sees, of which the head's sink takes its share. */
  withSink({ out, logSum }: Part, head: number): Float32Array {
    const sinks = this.values[20];
    if (sinks === null) return out;
    const share = 1 / (1 + 2 ** (Math.LOG2E * this.memory.bfloat16(buffer(sinks)).get(head) - logSum));
    return out.map((x) => x * share);
  }

  /** A partial result; the last one of its row, KV head and chunk of heads merges them all. */
  keep(row: number, head: number, partial: number, merge: number, part: Part): void {
    const { memory, values, queryHeads, group } = this;
    const { headDim } = memory;
    const at = partial * queryHeads + head;
    const outs = memory.float32(buffer(values[17]));
    const sums = memory.float32(buffer(values[18]));
    outs.set(part.out, at * headDim);
    sums[at] = part.logSum;
    // A unit arrives once, when it has written all of its heads.
    const chunks = Math.ceil(group / 16);
    const inGroup = head % group;
    if (inGroup !== group - 1 && inGroup % 16 !== 15) return;
    const chunk = Math.floor(inGroup / 16);
    const arrivals = memory.int32(buffer(values[19]));
    const counter = merge * this.kvHeads * chunks + Math.floor(head / group) * chunks + chunk;
    const [mergedRow, first, count] = memory.int32(buffer(values[9])).subarray(merge * planMergeWords);
    if (mergedRow !== row) throw new RangeError(`merge ${merge} is of row ${mergedRow}, not of ${row}`);
    arrivals[counter] += 1;
    if (arrivals[counter] < count) return;
    arrivals[counter] = 0;
    for (let h = head - (inGroup % 16); h <= head; h++) {
      const places = Array.from({ length: count }, (_, k) => (first + k) * queryHeads + h);
      const parts = places.map((place) => outs.subarray(place * headDim, (place + 1) * headDim));
      const merged = combine(
        places.map((place) => sums[place]),
        parts,
        headDim,
      );
      this.write(row, h, this.withSink(merged, h));
    }
  }
}

/** A score in powers of 2, of which the cap is one in powers of e. */
function capped(score: number, cap: number | undefined): number {
  return cap === undefined ? score : Math.LOG2E * cap * Math.tanh(score / Math.LOG2E / cap);
}

/** What `rotation` of a slice says for a row of the item (plan-format.ts). */
function rotatedBy(offsets: Int32Array, rotations: number, row: number): number {
  if (rotations > 0) return offsets[rotations - 1 + row];
  const ends = offsets[-rotations - 1];
  const [from, end] = [ends & 0xffff, ends >> 16];
  return row >= from && row < end ? offsets[-rotations + row - from] : Number.NaN;
}

/** Softmax of base-2 scores over rows; of none the neutral element. */
function combine(scores: readonly number[], rows: readonly Float32Array[], width: number): Part {
  const out = new Float32Array(width);
  const max = Math.max(...scores);
  if (max === Number.NEGATIVE_INFINITY) return { out, logSum: max };
  const weights = scores.map((score) => 2 ** (score - max));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  rows.forEach((row, i) => {
    for (let d = 0; d < width; d++) out[d] += (weights[i] / total) * row[d];
  });
  return { out, logSum: max + Math.log2(total) };
}
