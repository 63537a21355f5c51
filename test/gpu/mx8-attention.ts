/** The kernels that read KV in mx8, against themselves over a bfloat16 pool of the same values; and both kernels' times. */
import { packedWarpgroupLaunch, warpgroupLaunch } from "../../worker/backend/cuda/attention.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import type { Random } from "../native/random.ts";
import { decodeMx8Row, encodeMx8Row, mx8BlockBytes } from "../support/gpu-mx8.ts";
import { toBfloat16 } from "./attention-checks.ts";
import type { AttentionDevice, Heads, PlanBuffers } from "./attention-device.ts";
import { median } from "./attention-device.ts";
import { type PlanShape, type RandomPlan, randomPlan } from "./attention-random.ts";
import { assertThat, type Report } from "./report.ts";
import { putPoolMap, turnTable } from "./wgmma-cases.ts";

interface ReadCase {
  readonly heads: Heads;
  readonly plan: Omit<PlanShape, "group" | "blockTokens" | "contextTokens">;
  readonly grid: number;
}

const contextTokens = 4_096;

export function mx8Cases(random: Random): [name: string, ReadCase][] {
  const cases: [string, ReadCase][] = [];
  for (const headDim of [128, 64]) {
    for (const blockTokens of [16, 32, 128]) {
      for (const group of [1, 4, 7, 16]) {
        for (const [smallRounds, largeRounds] of [
          [2, 0],
          [0, 2],
          [2, 1],
        ] as const) {
          const rotaryDim = random.pick([0, 16, headDim]);
          const heads = { headDim, rotaryDim, kvHeads: 2, queryHeads: 2 * group, blockTokens };
          const rows = { rowCount: random.integer(1, 60), smallRounds, largeRounds };
          const slices = { sharedSlices: random.pick([3, 40]), privateSlices: 2, maxTokens: random.pick([90, 400]) };
          const plan = { ...rows, ...slices, blockCount: Math.ceil(1_200 / blockTokens) };
          const name = `heads of ${headDim}, group ${group}, blocks of ${blockTokens}, ${smallRounds} small, ${largeRounds} large`;
          cases.push([name, { heads, plan, grid: random.pick([1, 5, 64, 264]) }]);
        }
      }
    }
  }
  return cases;
}

/** The same pool twice. Tokens that no slice has are NaN in both. */
function randomPools(random: Random, heads: Heads, { plan, blockIds }: RandomPlan, blockCount: number) {
  const { blockTokens, kvHeads, headDim } = heads;
  const mx8 = new Uint8Array(blockCount * mx8BlockBytes(heads)).fill(0xff);
  const bfloat16 = new Uint16Array(blockCount * kvHeads * 2 * blockTokens * headDim).fill(0xffff);
  const seen = new Set<number>();
  for (let at = 0; at < plan.slices.length; at += 8) {
    const [block, first, count] = plan.slices.subarray(at, at + 3);
    for (let place = first; place < first + count; place++) {
      seen.add(blockIds[block + Math.floor(place / blockTokens)] * blockTokens + (place % blockTokens));
    }
  }
  for (const slot of seen) {
    for (let head = 0; head < kvHeads; head++) {
      for (const isKey of [true, false]) {
        const size = 2 ** random.integer(-3, 3);
        encodeMx8Row(
          mx8,
          heads,
          slot,
          head,
          isKey,
          random.normals(headDim).map((value) => value * size),
        );
        const row = (Math.floor(slot / blockTokens) * kvHeads + head) * 2 + (isKey ? 0 : 1);
        const from = (row * blockTokens + (slot % blockTokens)) * headDim;
        bfloat16.set(toBfloat16(decodeMx8Row(mx8, heads, slot, head, isKey)), from);
      }
    }
  }
  return { mx8, bfloat16 };
}

/** @throws Error when a bit differs */
export function checkReads(device: AttentionDevice, random: Random, { heads, plan: shape, grid }: ReadCase): string {
  const { queryHeads, kvHeads, headDim, rotaryDim, blockTokens } = heads;
  const { rowCount, blockCount } = shape;
  const made = randomPlan(random, { ...shape, contextTokens, group: queryHeads / kvHeads, blockTokens });
  const { plan, positions, blockIds } = made;
  const pools = randomPools(random, heads, made, blockCount);
  const { table, zero } = turnTable(rotaryDim);
  const outWords = rowCount * queryHeads * headDim;
  const buffers: Omit<PlanBuffers, "pool"> = {
    qkv: device.put("qkv", toBfloat16(random.normals(rowCount * (queryHeads + 2 * kvHeads) * headDim))),
    rotations: device.put("rotations", table).slice(zero * (Math.max(4, rotaryDim) / 2) * 8),
    positions: device.put("positions", positions),
    blockIds: device.put("block ids", blockIds),
    out: device.space("out", outWords * 2),
    partialOut: device.space("partial results", plan.partialCount * queryHeads * headDim * 4),
    partialSums: device.space("partial sums", plan.partialCount * queryHeads * 4),
    arrivals: device.space("arrivals", plan.merges.length * queryHeads * 4),
  };
  device.fill(buffers.arrivals, 0);
  const outOf = (kvElement: KvElement): Uint16Array<ArrayBuffer> => {
    const pool = device.put(kvElement, pools[kvElement]);
    const run = () => launchesOf(device, heads, { ...buffers, pool }, plan, grid, kvElement);
    for (const buffer of [buffers.out, buffers.partialOut, buffers.partialSums]) device.fill(buffer, 0xff);
    for (const launch of run()) launch();
    return device.read(buffers.out, new Uint16Array(outWords));
  };
  const wanted = outOf("bfloat16");
  assertThat(
    wanted.every((word) => (word & 0x7fff) <= 0x7f80),
    "the result over bfloat16 has NaN in it",
  );
  for (const round of ["first", "second"]) {
    const got = outOf("mx8");
    const wrong = got.findIndex((word, i) => word !== wanted[i]);
    const count = got.reduce((sum, word, i) => sum + (word === wanted[i] ? 0 : 1), 0);
    const value = (word: number) => new Float32Array(Uint32Array.of(word << 16).buffer)[0];
    const words = `value ${wrong} is ${value(got[wrong])}, ${value(wanted[wrong])} over bfloat16`;
    assertThat(wrong < 0, `${round} run: ${count} of ${outWords} differ: ${words}`);
  }
  return `${rowCount} rows, ${plan.merges.length / 4} merged: the same bits`;
}

function launchesOf(
  device: AttentionDevice,
  heads: Heads,
  buffers: PlanBuffers,
  plan: RandomPlan["plan"],
  grid: number,
  kvElement: KvElement,
): (() => void)[] {
  const { headDim } = heads;
  const isMx8 = kvElement === "mx8";
  const launches: (() => void)[] = [];
  for (const [name, items, of, boxRows] of [
    ["attention_wgmma", plan.largeItems, warpgroupLaunch, undefined],
    ["attention_packed_wgmma", plan.smallItems, packedWarpgroupLaunch, 16],
  ] as const) {
    if (items.length === 0) continue;
    const { sharedBytes, blockThreads: threads } = of(1, headDim, kvElement);
    const pool = isMx8 ? buffers.pool : putPoolMap(device, heads, buffers.pool, boxRows);
    launches.push(device.prepare(name, heads, { ...buffers, pool }, plan, { grid, sharedBytes, threads, kvElement }));
  }
  return launches;
}

interface TimeCase {
  readonly name: string;
  readonly rows: number;
  /** Tokens that each row sees alone, or that all rows see. */
  readonly tokens: number;
  readonly isShared: boolean;
  readonly isLarge: boolean;
}

const timeCases: readonly TimeCase[] = [
  { name: "decode16x8k", rows: 16, tokens: 8_192, isShared: false, isLarge: false },
  { name: "decode64x2k", rows: 64, tokens: 2_048, isShared: false, isLarge: false },
  { name: "decode16on32k", rows: 16, tokens: 32_768, isShared: true, isLarge: false },
  { name: "prefill2kOn8k", rows: 2_048, tokens: 8_192, isShared: true, isLarge: true },
];

/** One layer of 32 query and 8 KV heads of 128, as a plan of one kind of items has it. */
export function timeReads(device: AttentionDevice, random: Random, report: Report): string {
  const heads: Heads = { headDim: 128, rotaryDim: 128, queryHeads: 32, kvHeads: 8, blockTokens: 16 };
  const rates = device.rates(toBfloat16(random.normals(1 << 21, Number.POSITIVE_INFINITY)));
  const lines = timeCases.flatMap((one) => {
    const times = (["bfloat16", "mx8"] as const).map((kvElement) => {
      const microseconds = timeOf(device, random, heads, one, kvElement);
      const tokens = one.tokens * (one.isShared ? 1 : one.rows);
      const bytes = tokens * heads.kvHeads * 2 * (kvElement === "mx8" ? 132 : 256);
      const pairs = one.rows * one.tokens * heads.queryHeads;
      const floor = 1e6 * Math.max(bytes / rates.bytesPerSecond, (4 * 128 * pairs) / rates.flopPerSecond);
      report.figure(`${one.name}.${kvElement}.overFloor`, microseconds / floor);
      report.figure(`${one.name}.${kvElement}.us`, microseconds);
      return { microseconds, over: microseconds / floor };
    });
    const [plain, packed] = times;
    const words = times.map(
      ({ microseconds, over }) => `${microseconds.toFixed(1)} us (${over.toFixed(2)} of its floor)`,
    );
    report.figure(`${one.name}.ratio`, packed.microseconds / plain.microseconds);
    return `${one.name}: ${words.join(", mx8 ")}`;
  });
  return lines.join("; ");
}

function timeOf(
  device: AttentionDevice,
  random: Random,
  heads: Heads,
  { rows, tokens, isShared, isLarge }: TimeCase,
  kvElement: KvElement,
): number {
  const { queryHeads, kvHeads, headDim, blockTokens } = heads;
  const blocks = (tokens / blockTokens) * (isShared ? 1 : rows);
  const poolBytes = blocks * (kvElement === "mx8" ? mx8BlockBytes(heads) : kvHeads * 2 * blockTokens * headDim * 2);
  const pool = device.space("pool", poolBytes);
  // Bytes that are finite numbers of either kind, and scales of such.
  const byte = () => random.integer(0x38, 0x47);
  device.repeat(
    pool,
    new Uint16Array(1 << 21).map(() => 256 * byte() + byte()),
  );
  const { table, zero } = turnTable(headDim);
  const made = kernelPlan(heads, { rows, tokens, isShared, isLarge });
  const buffers: PlanBuffers = {
    qkv: device.put("qkv", toBfloat16(random.normals(rows * (queryHeads + 2 * kvHeads) * headDim))),
    pool,
    rotations: device.put("rotations", table).slice(zero * (headDim / 2) * 8),
    positions: device.put("positions", new Int32Array(rows).fill(100)),
    blockIds: device.put("block ids", Int32Array.from(random.shuffle(Array.from({ length: blocks }, (_, i) => i)))),
    out: device.space("out", rows * queryHeads * headDim * 2),
    partialOut: device.space("partial results", made.partialCount * queryHeads * headDim * 4),
    partialSums: device.space("partial sums", made.partialCount * queryHeads * 4),
    arrivals: device.space("arrivals", made.merges.length * queryHeads * 4),
  };
  device.fill(buffers.arrivals, 0);
  const grid = (isLarge ? 1 : 2) * device.multiprocessorCount;
  const launches = launchesOf(device, heads, buffers, made, grid, kvElement);
  const flush = device.flusher(192 << 20, true);
  const microseconds = median(9, () => {
    flush();
    return device.microseconds(() => {
      for (const launch of launches) launch();
    });
  });
  device.clear();
  return microseconds;
}

/** Every item has as many rows as it takes; small ones are cut into parts, so that all multiprocessors have work. */
function kernelPlan(heads: Heads, one: Omit<TimeCase, "name">): RandomPlan["plan"] {
  const { rows: rowCount, tokens, isShared, isLarge } = one;
  const rowsOfItem = isLarge ? 32 : isShared ? 16 : 1;
  const groups = rowCount / rowsOfItem;
  const partCount = isLarge ? 1 : Math.max(1, Math.floor(264 / (groups * heads.kvHeads)));
  const partTokens = Math.ceil(tokens / partCount / 16) * 16;
  const [rows, items, slices, offsets, merges]: number[][] = [[], [], [], [], []];
  for (let group = 0; group < groups; group++) {
    for (let part = 0; part < partCount; part++) {
      const [first, end] = [part * partTokens, Math.min(tokens, (part + 1) * partTokens)];
      items.push(rows.length / 4, rowsOfItem, slices.length / 8, 1, 1, end - first, isLarge ? 0 : 1, 0);
      const block = (first + (isShared ? 0 : group * tokens)) / heads.blockTokens;
      slices.push(block, 0, end - first, offsets.length, 0, rowsOfItem, end - first, offsets.length + 1);
      for (let r = 0; r < rowsOfItem; r++) {
        const row = group * rowsOfItem + r;
        const isSplit = partCount > 1;
        rows.push(row, isSplit ? row * partCount + part : -1, isSplit ? row : -1, 0);
        offsets.push(0);
      }
    }
  }
  if (partCount > 1) for (let row = 0; row < rowCount; row++) merges.push(row, row * partCount, partCount, 0);
  const [small, large] = isLarge ? [[], items] : [items, []];
  return {
    rows: Int32Array.from(rows),
    smallItems: Int32Array.from(small),
    largeItems: Int32Array.from(large),
    slices: Int32Array.from(slices),
    offsets: Int32Array.from(offsets),
    merges: Int32Array.from(merges),
    partialCount: partCount > 1 ? rowCount * partCount : 0,
  };
}
