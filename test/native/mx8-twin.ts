/** KV in mx8 (kernels/abi.h) in plain TypeScript: the kernels must agree with it bit for bit. */
import { mx8Group } from "../../worker/contract/units.ts";
import type { KvPoolOptions } from "../../worker/native/cpu-kernels.ts";

type Shape = Pick<KvPoolOptions, "headDim" | "blockTokens">;

export interface Mx8Group {
  readonly scale: number;
  readonly numbers: Int8Array;
}

/** Rounds 32 values. */
export function encodeGroup(values: Float32Array): Mx8Group {
  const numbers = new Int8Array(mx8Group);
  let greatest = 0;
  for (const value of values) {
    if (!Number.isFinite(value)) return { scale: 255, numbers };
    greatest = Math.max(greatest, Math.abs(value));
  }
  const exponent = new Uint32Array(Float32Array.of(greatest).buffer)[0] >>> 23;
  const scale = Math.max(exponent, 7);
  const steps = 2 ** (133 - scale);
  for (let i = 0; i < mx8Group; i++) numbers[i] = Math.max(-127, Math.min(127, roundedToEven(values[i] * steps)));
  return { scale, numbers };
}

export function decodeGroup({ scale, numbers }: Mx8Group): Float32Array {
  const power = scale === 255 ? Number.NaN : 2 ** (scale - 133);
  const values = new Float32Array(mx8Group);
  for (let i = 0; i < mx8Group; i++) values[i] = numbers[i] * power;
  return values;
}

function roundedToEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  if (rest !== 0.5) return rest < 0.5 ? below : below + 1;
  return below % 2 === 0 ? below : below + 1;
}

/** Where the float32 layout and mx8 have a group: its first element, the way to the next, its scale's byte. */
interface GroupPlace {
  readonly first: number;
  readonly stride: number;
  readonly scaleAt: number;
}

/** The groups of a head's block. */
function groupsOf({ headDim, blockTokens }: Shape): readonly GroupPlace[] {
  const places: GroupPlace[] = [];
  const half = headDim * blockTokens;
  const groups = headDim / mx8Group;
  for (let token = 0; token < blockTokens; token++) {
    for (let group = 0; group < groups; group++) {
      const d = group * mx8Group;
      const keyScaleAt = 2 * half + group * blockTokens + token;
      places.push({ first: d * blockTokens + token, stride: blockTokens, scaleAt: keyScaleAt });
      const scaleAt = 2 * half + groups * (blockTokens + token) + group;
      places.push({ first: half + token * headDim + d, stride: 1, scaleAt });
    }
  }
  return places;
}

const headBytesOf = ({ headDim, blockTokens }: Shape) => (2 * headDim * blockTokens * (mx8Group + 1)) / mx8Group;

/** A pool's contents in mx8, of those in float32. */
export function encodePool(kv: Float32Array, shape: Shape): Uint8Array {
  const headElements = 2 * shape.headDim * shape.blockTokens;
  const headBytes = headBytesOf(shape);
  const out = new Uint8Array((kv.length / headElements) * headBytes);
  const values = new Float32Array(mx8Group);
  const groups = groupsOf(shape);
  for (let head = 0; head < kv.length / headElements; head++) {
    const [from, to] = [head * headElements, head * headBytes];
    for (const { first, stride, scaleAt } of groups) {
      for (let i = 0; i < mx8Group; i++) values[i] = kv[from + first + i * stride];
      const { scale, numbers } = encodeGroup(values);
      out[to + scaleAt] = scale;
      for (let i = 0; i < mx8Group; i++) out[to + first + i * stride] = numbers[i];
    }
  }
  return out;
}

/** A pool's contents in float32, of those in mx8. */
export function decodePool(bytes: Uint8Array, shape: Shape): Float32Array {
  const headElements = 2 * shape.headDim * shape.blockTokens;
  const headBytes = headBytesOf(shape);
  const out = new Float32Array((bytes.length / headBytes) * headElements);
  const numbers = new Int8Array(mx8Group);
  const groups = groupsOf(shape);
  for (let head = 0; head < bytes.length / headBytes; head++) {
    const [from, to] = [head * headBytes, head * headElements];
    for (const { first, stride, scaleAt } of groups) {
      for (let i = 0; i < mx8Group; i++) numbers[i] = bytes[from + first + i * stride];
      const values = decodeGroup({ scale: bytes[from + scaleAt], numbers });
      for (let i = 0; i < mx8Group; i++) out[to + first + i * stride] = values[i];
    }
  }
  return out;
}
