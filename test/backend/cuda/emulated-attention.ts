/** Attention over work items and the merge of their parts, in plain loops (worker/backend/cuda/work-items.ts). */
import type { DeviceBuffer } from "../../../worker/backend/cuda/device.ts";
import { itemWords, mergeWords, sliceWords } from "../../../worker/backend/cuda/work-items.ts";
import { keyOffset, Turns, type Values } from "./emulated-heads.ts";
import type { EmulatedMemory } from "./emulated-memory.ts";

const buffer = (value: unknown): DeviceBuffer => value as DeviceBuffer;

/** A row's output for one head, and the base-2 logarithm of the sum of its weights. */
interface Part {
  readonly out: Float32Array;
  readonly logSum: number;
}

/** Does the launch cover so many items of a KV head? */
export type FitsGrid = (units: number) => boolean;

export function emulatedAttention(memory: EmulatedMemory, values: Values, fits: FitsGrid): void {
  const { headDim } = memory;
  const [qkv, pool, turns, items, slices, blockIds, positions, itemCount] = values;
  const [queryHeads, kvHeads, rotaryDim, blockTokens, scale] = values.slice(8, 13).map(Number);
  const [out, partialOut, partialSums] = values.slice(13);
  const count = memory.int32(buffer(itemCount))[0];
  if (!fits(count * kvHeads)) throw new RangeError(`the grid is too small for ${count} items`);
  const [data, kv] = [memory.bfloat16(buffer(qkv)), memory.bfloat16(buffer(pool))];
  const place = { kvHeads, headDim, blockTokens };
  const width = (queryHeads + 2 * kvHeads) * headDim;
  const group = queryHeads / kvHeads;

  const attend = (row: number, head: number, index: number, item: Int32Array): Part => {
    const scores: number[] = [];
    const seen: Float32Array[] = [];
    for (let s = item[2]; s < item[2] + item[3]; s++) {
      const slice = memory.int32(buffer(slices)).subarray(s * sliceWords, (s + 1) * sliceWords);
      const [block, first, tokens, offset, visible] = slice;
      const q = data.row(row * width + head * headDim, headDim);
      const position = memory.int32(buffer(positions))[row] - offset;
      if (rotaryDim > 0) new Turns(memory, buffer(turns)).rotate(q, position, rotaryDim);
      for (let token = 0; token < Math.min(tokens, visible + index); token++) {
        const at = first + token;
        const id = memory.int32(buffer(blockIds))[block + Math.floor(at / blockTokens)];
        const key = keyOffset(place, id * blockTokens + (at % blockTokens), Math.floor(head / group));
        const k = kv.row(key, headDim);
        scores.push(q.reduce((sum, x, d) => sum + x * k[d], 0) * scale);
        seen.push(kv.row(key + blockTokens * headDim, headDim));
      }
    }
    return combine(scores, seen, headDim);
  };

  for (let i = 0; i < count; i++) {
    const item = memory.int32(buffer(items)).subarray(i * itemWords, (i + 1) * itemWords);
    const [firstRow, rowCount, , , partial] = item;
    for (let r = 0; r < rowCount; r++) {
      for (let head = 0; head < queryHeads; head++) {
        const part = attend(firstRow + r, head, r, item);
        if (partial < 0) {
          memory.bfloat16(buffer(out)).setRow(((firstRow + r) * queryHeads + head) * headDim, part.out);
        } else {
          const at = (partial + r) * queryHeads + head;
          memory.float32(buffer(partialOut)).set(part.out, at * headDim);
          memory.float32(buffer(partialSums))[at] = part.logSum;
        }
      }
    }
  }
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

export function emulatedMerge(memory: EmulatedMemory, values: Values, [grid]: readonly number[]): void {
  const [partialOut, partialSums, merges, mergeCount, queryHeads, headDim, out] = values;
  const [heads, width] = [Number(queryHeads), Number(headDim)];
  const count = memory.int32(buffer(mergeCount))[0];
  if (count > grid) throw new RangeError(`a grid of ${grid} for ${count} merges`);
  for (let i = 0; i < count; i++) {
    const [row, first, parts, stride] = memory.int32(buffer(merges)).subarray(i * mergeWords, (i + 1) * mergeWords);
    for (let head = 0; head < heads; head++) {
      const places = Array.from({ length: parts }, (_, k) => (first + k * stride) * heads + head);
      const sums = places.map((at) => memory.float32(buffer(partialSums))[at]);
      const outs = places.map((at) => memory.float32(buffer(partialOut)).subarray(at * width, (at + 1) * width));
      memory.bfloat16(buffer(out)).setRow((row * heads + head) * width, combine(sums, outs, width).out);
    }
  }
}
