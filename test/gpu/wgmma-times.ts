/** Times of the kernel for many rows, in the shapes of an 8B model, with the rotation of q and without. */
import type { Random } from "../native/random.ts";
import type { AttentionDevice, Heads } from "./attention-device.ts";
import type { Report } from "./report.ts";
import {
  buildPlan,
  itemRows,
  putPoolMap,
  type RowsSpec,
  type SliceSpec,
  turnTable,
  wgmmaSharedBytes,
  wgmmaThreads,
} from "./wgmma-cases.ts";

const blockTokens = 16;
/** Of a graph; how often it runs. */
const launches = 3;
const rounds = 31;

interface TimeCase {
  readonly name: string;
  readonly headDim: number;
  readonly rows: readonly RowsSpec[];
  /** Pairs of a row and a token that it sees. */
  readonly pairs: number;
}

function headsOf(headDim: number, isTurned: boolean): Heads {
  return { queryHeads: 32, kvHeads: 8, headDim, rotaryDim: isTurned ? headDim : 0, blockTokens };
}

const most = itemRows(headsOf(128, true));
const times = <Value>(count: number, of: (i: number) => Value): Value[] =>
  Array.from({ length: count }, (_, i) => of(i));

/** Rows that all see the same slices. */
function shared(name: string, headDim: number, rowCount: number, slices: readonly SliceSpec[]): TimeCase {
  const tokens = slices.reduce((sum, slice) => sum + slice.tokens, 0);
  const rows = times(rowCount / most, () => ({ rowCount: most, parts: [slices] }));
  return { name, headDim, rows, pairs: rowCount * tokens };
}

/** A fragment on itself; the last rows, which see most, first. */
function causal(tokens: number): TimeCase {
  const rows = times(Math.ceil(tokens / most), (i) => {
    const rowCount = Math.min(most, tokens - i * most);
    return { rowCount, parts: [[{ tokens: i * most + rowCount, firstVisible: i * most + 1, run: 0 }]] };
  });
  return { name: `causal ${tokens}`, headDim: 128, rows: rows.reverse(), pairs: (tokens * (tokens + 1)) / 2 };
}

const fragments = (count: number, tokens: number) => times(count, (run) => ({ tokens, run }));

const cases: readonly TimeCase[] = [
  shared("512 rows over 32 x 2,048", 128, 512, fragments(32, 2_048)),
  shared("512 rows over 23 x 2,857", 128, 512, fragments(23, 2_857)),
  shared("512 rows over 256 x 256", 128, 512, fragments(256, 256)),
  causal(8_192),
  causal(2_857),
  shared("1,024 rows x 2,048", 128, 1_024, fragments(1, 2_048)),
  shared("heads of 64: 512 rows over 32 x 2,048", 64, 512, fragments(32, 2_048)),
];

export function timeCases(device: AttentionDevice, random: Random, report: Report): string {
  const words = Uint16Array.from(new Uint32Array(random.normals(1 << 22, 1e9).buffer), (bits) => bits >>> 16);
  const { flopPerSecond } = device.rates(words);
  report.figure("productFlopPerSecond", flopPerSecond);
  const lines = [`products ${(flopPerSecond / 1e12).toFixed(0)} TFLOP/s`];
  for (const shape of cases) {
    const [rotated, plain] = timeBoth(device, random, shape, words);
    const flop = 4 * shape.headDim * 32 * shape.pairs;
    const rate = flop / rotated / 1e6;
    report.figure(`${shape.name} us`, rotated);
    report.figure(`${shape.name} without rotation us`, plain);
    report.figure(`${shape.name} TFLOP/s`, rate);
    const share = ((100 * rate * 1e12) / flopPerSecond).toFixed(0);
    const cost = (100 * (rotated / plain - 1)).toFixed(1);
    const name = shape.name.padEnd(40);
    lines.push(
      `${name} ${rotated.toFixed(1).padStart(8)} us, ${rate.toFixed(0)} TFLOP/s (${share}%), rotation ${cost}%`,
    );
  }
  return `\n${lines.join("\n")}\n`;
}

/** Median microseconds with the rotation and without, measured in turn. */
function timeBoth(device: AttentionDevice, random: Random, shape: TimeCase, words: Uint16Array): [number, number] {
  const { headDim, rows } = shape;
  const built = buildPlan(random, { heads: headsOf(headDim, true), rows, isAligned: true });
  const { queryHeads, kvHeads } = headsOf(headDim, true);
  const rowCount = built.positions.length;
  const qkv = device.space("qkv", rowCount * (queryHeads + 2 * kvHeads) * headDim * 2);
  const pool = device.space("pool", built.blockCount * kvHeads * 2 * blockTokens * headDim * 2);
  for (const buffer of [qkv, pool]) device.repeat(buffer, words);
  const { table, zero } = turnTable(headDim);
  const buffers = {
    qkv,
    pool: putPoolMap(device, headsOf(headDim, true), pool),
    rotations: device.put("rotations", table).slice(zero * (headDim / 2) * 8),
    positions: device.put("positions", built.positions),
    blockIds: device.put("block ids", built.blockIds),
    out: device.space("out", rowCount * queryHeads * headDim * 2),
    partialOut: device.space("partial results", 16),
    partialSums: device.space("partial sums", 16),
    arrivals: device.space("arrivals", 16),
  };
  const size = { grid: device.multiprocessorCount, threads: wgmmaThreads, sharedBytes: wgmmaSharedBytes(headDim) };
  const graphs = [true, false].map((isTurned) => {
    const launch = device.prepare("attention_wgmma", headsOf(headDim, isTurned), buffers, built.plan, size);
    return device.record(() => void times(launches, launch));
  });
  const samples = times(rounds + 1, () =>
    graphs.map((graph) => device.microseconds(() => graph.launch(device.stream)) / launches),
  ).slice(1);
  for (const graph of graphs) graph.close();
  device.clear();
  const middle = (which: number) => samples.map((pair) => pair[which]).sort((a, b) => a - b)[rounds >> 1];
  return [middle(0), middle(1)];
}
