/** The kernels of an attention plan against the float64 oracle, on fresh random inputs, with poisoned outputs. */
import type { Random } from "../native/random.ts";
import {
  type AttentionDevice,
  type Heads,
  type LargeKernelName,
  type PlanBuffers,
  packedSharedBytes,
  packedThreads,
  type SmallKernelName,
  tilesSharedBytes,
} from "./attention-device.ts";
import { attentionOracle, type OracleOutput } from "./attention-oracle.ts";
import { type PlanShape, randomPlan } from "./attention-random.ts";
import { packedWgmmaSharedBytes, packedWgmmaThreads, putPoolMap } from "./wgmma-cases.ts";

export interface AttentionCheck {
  readonly heads: Heads;
  readonly plan: Omit<PlanShape, "group" | "blockTokens">;
  /** Blocks of threads, slots of the packed kernel's ring, tokens of a step of the tiles. */
  readonly grid: number;
  readonly slots: number;
  readonly stepTokens: number;
  /** Which kernel takes large items. */
  readonly large: LargeKernelName;
}

const poison = 0xff;

/** Float32 bits to the nearest bfloat16, ties to even. */
export function toBfloat16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
}

export function fromBfloat16(halves: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}

/** (cos, sin) rows of positions from -2 to 2 contexts. */
function rotationsOf(rotaryDim: number, contextTokens: number): Float32Array {
  const half = rotaryDim / 2;
  const table = new Float32Array(Math.max(1, 4 * contextTokens * half * 2));
  for (let n = 0; n < 4 * contextTokens; n++) {
    for (let i = 0; i < half; i++) {
      const angle = (n - 2 * contextTokens) * 10_000 ** (-i / half);
      table[2 * (n * half + i)] = Math.cos(angle);
      table[2 * (n * half + i) + 1] = Math.sin(angle);
    }
  }
  return table;
}

/** @param rotation by how much every offset is wrong on the device: a check that cannot fail is none */
export function checkAttention(device: AttentionDevice, random: Random, check: AttentionCheck, rotation = 0): string {
  const { heads } = check;
  const { queryHeads, kvHeads, headDim, rotaryDim, blockTokens } = heads;
  const { rowCount, contextTokens, blockCount } = check.plan;
  const { plan, positions, blockIds } = randomPlan(random, {
    ...check.plan,
    group: queryHeads / kvHeads,
    blockTokens,
  });
  const qkv = toBfloat16(random.normals(rowCount * (queryHeads + 2 * kvHeads) * headDim));
  const pool = toBfloat16(random.normals(blockCount * kvHeads * 2 * blockTokens * headDim));
  const rotations = rotationsOf(rotaryDim, contextTokens);
  const table = device.put("rotations", rotations);
  const chunks = Math.ceil(queryHeads / kvHeads / 16);
  const buffers: PlanBuffers = {
    qkv: device.put("qkv", qkv),
    pool: device.put("pool", pool),
    rotations: rotaryDim === 0 ? table : table.slice(2 * contextTokens * rotaryDim * 4),
    positions: device.put("positions", positions),
    blockIds: device.put("block ids", blockIds),
    out: device.space("out", rowCount * queryHeads * headDim * 2),
    partialOut: device.space("partial results", plan.partialCount * queryHeads * headDim * 4),
    partialSums: device.space("partial sums", plan.partialCount * queryHeads * 4),
    arrivals: device.space("arrivals", plan.merges.length * kvHeads * chunks),
  };
  device.fill(buffers.arrivals, 0);
  const wrong = { ...plan, offsets: plan.offsets.map((offset) => offset + rotation) };
  const oracle = attentionOracle(
    {
      ...heads,
      qkv: fromBfloat16(qkv),
      pool: fromBfloat16(pool),
      rotations,
      rotationsZero: 2 * contextTokens,
      positions,
      blockIds,
    },
    plan,
  );
  let words = "";
  // The second round shows that the first left the counters as they must be.
  const rounds = smallKernelsOf(device, check).flatMap((kernel) => [kernel, kernel]);
  for (const kernel of rounds) {
    const launches = launchesOf(device, check, kernel, buffers, wrong);
    for (const buffer of [buffers.out, buffers.partialOut, buffers.partialSums]) device.fill(buffer, poison);
    for (const launch of launches) launch();
    const out = fromBfloat16(device.read(buffers.out, new Uint16Array(oracle.out.length)));
    words = compare(out, oracle, queryHeads * headDim);
    const counters = device.read(buffers.arrivals, new Int32Array((plan.merges.length / 4) * kvHeads * chunks));
    if (counters.some((counter) => counter !== 0)) throw new Error("a counter of arrivals is not back at zero");
  }
  device.clear();
  return `${rowCount} rows, ${plan.merges.length / 4} merged: ${words}`;
}

/** Those that take heads of this shape. */
function smallKernelsOf(device: AttentionDevice, { heads }: AttentionCheck): SmallKernelName[] {
  const { headDim, rotaryDim, blockTokens } = heads;
  const takes =
    device.hasWarpgroups && (headDim === 64 || headDim === 128) && rotaryDim % 16 === 0 && blockTokens >= 16;
  return takes ? ["attention_packed", "attention_packed_wgmma"] : ["attention_packed"];
}

function launchesOf(
  device: AttentionDevice,
  check: AttentionCheck,
  small: SmallKernelName,
  buffers: PlanBuffers,
  plan: ReturnType<typeof randomPlan>["plan"],
): (() => void)[] {
  const { heads, grid, slots, stepTokens, large } = check;
  const sharedOf = { attention_tiles: tilesSharedBytes(heads.headDim, stepTokens), attention_wgmma: 0 };
  const launches: (() => void)[] = [];
  if (plan.largeItems.length > 0) {
    launches.push(device.prepare(large, heads, buffers, plan, { grid, sharedBytes: sharedOf[large] }));
  }
  if (plan.smallItems.length > 0) {
    const isPlain = small === "attention_packed";
    const sharedBytes = isPlain ? packedSharedBytes(heads.headDim, slots) : packedWgmmaSharedBytes(heads.headDim);
    const pool = isPlain ? buffers.pool : putPoolMap(device, heads, buffers.pool, 16);
    const threads = isPlain ? packedThreads : packedWgmmaThreads;
    launches.push(device.prepare(small, heads, { ...buffers, pool }, plan, { grid, sharedBytes, threads }));
  }
  return launches;
}

function compare(got: Float32Array, { out, tolerance }: OracleOutput, rowSize: number): string {
  let [worst, error, norm] = [0, 0, 0];
  for (let i = 0; i < out.length; i++) {
    const difference = Math.abs(got[i] - out[i]);
    if (!(difference <= tolerance[i])) {
      const where = `row ${Math.floor(i / rowSize)}, value ${i % rowSize}`;
      throw new Error(`${where} is ${got[i]}, not ${out[i]} (may differ by ${tolerance[i]})`);
    }
    worst = Math.max(worst, tolerance[i] > 0 ? difference / tolerance[i] : 0);
    error += difference ** 2;
    norm += out[i] ** 2;
  }
  const relative = Math.sqrt(error / Math.max(norm, 1e-30));
  return `${worst.toFixed(2)} of the tolerance, relative error ${relative.toExponential(1)}`;
}
