/** KV in mx8 as GPUs have it (kernels/cuda/mx8.cuh), in plain TypeScript. */
import { mx8Group } from "../../worker/contract/units.ts";
import { decodeGroup, encodeGroup } from "../native/mx8-twin.ts";

/** Tokens that lie together: their numbers, and then their scales. */
export const mx8PartTokens = 16;

export interface Mx8Shape {
  readonly kvHeads: number;
  readonly headDim: number;
  readonly blockTokens: number;
}

/** Bytes of a part. */
export const mx8PartBytes = (headDim: number): number => 2 * mx8PartTokens * (headDim + headDim / mx8Group);

/** Bytes of a block in one layer. */
export const mx8BlockBytes = ({ kvHeads, headDim, blockTokens }: Mx8Shape): number =>
  (kvHeads * blockTokens * mx8PartBytes(headDim)) / mx8PartTokens;

/** Bytes from the start of a layer's part of the pool to the numbers and the scales of K or V of a token and head. */
export function mx8Place(shape: Mx8Shape, slot: number, head: number, isKey: boolean) {
  const { kvHeads, headDim, blockTokens } = shape;
  const [block, inBlock] = [Math.floor(slot / blockTokens), slot % blockTokens];
  const partOfHead = Math.floor(inBlock / mx8PartTokens);
  const part = (block * kvHeads + head) * (blockTokens / mx8PartTokens) + partOfHead;
  const start = part * mx8PartBytes(headDim);
  const [token, groups] = [inBlock % mx8PartTokens, headDim / mx8Group];
  return {
    numbers: start + ((isKey ? 0 : mx8PartTokens) + token) * headDim,
    scales: start + 2 * mx8PartTokens * headDim + ((isKey ? 0 : mx8PartTokens) + token) * groups,
  };
}

export function encodeMx8Row(
  pool: Uint8Array,
  shape: Mx8Shape,
  slot: number,
  head: number,
  isKey: boolean,
  values: Float32Array,
): void {
  const { numbers, scales } = mx8Place(shape, slot, head, isKey);
  for (let d = 0; d < shape.headDim; d += mx8Group) {
    const group = encodeGroup(values.subarray(d, d + mx8Group));
    pool.set(new Uint8Array(group.numbers.buffer), numbers + d);
    pool[scales + d / mx8Group] = group.scale;
  }
}

export function decodeMx8Row(
  pool: Uint8Array,
  shape: Mx8Shape,
  slot: number,
  head: number,
  isKey: boolean,
): Float32Array {
  const { numbers, scales } = mx8Place(shape, slot, head, isKey);
  const values = new Float32Array(shape.headDim);
  for (let d = 0; d < shape.headDim; d += mx8Group) {
    const group = new Int8Array(pool.slice(numbers + d, numbers + d + mx8Group).buffer);
    const scale = pool[scales + d / mx8Group];
    // Memory that nobody has written is zeros.
    if (scale >= 7) values.set(decodeGroup({ scale, numbers: group }), d);
  }
  return values;
}

/** Zeros for the tokens of a packed block in mx8 from `tokens` on. */
export function zeroMx8From(packed: Uint8Array, shape: Mx8Shape, tokens: number): void {
  for (let token = tokens; token < shape.blockTokens; token++) {
    for (let head = 0; head < 2 * shape.kvHeads; head++) {
      const { numbers, scales } = mx8Place(shape, token, head >> 1, head % 2 === 0);
      packed.fill(0, numbers, numbers + shape.headDim);
      packed.fill(0, scales, scales + shape.headDim / mx8Group);
    }
  }
}
