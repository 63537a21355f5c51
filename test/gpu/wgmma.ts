/**
 * Attention for large items on Hopper (kernels/cuda/attention/wgmma/attention_wgmma.cu): against the oracle in float64
 * on fresh random plans, then times, with the rotation of q and without. `bun test/gpu/wgmma.ts [library folder]...`,
 * from the project's root; SPANGATE_KERNEL_CHECKS=times or =checks leaves the other out, =small is for a memory
 * checker; writes $OUT/wgmma.json.
 */
import { Random } from "../native/random.ts";
import { AttentionDevice } from "./attention-device.ts";
import { attentionOracle } from "./attention-oracle.ts";
import { freshSeed, gpuOptions, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";
import {
  buildPlan,
  type PlanCase,
  planCases,
  putPoolMap,
  randomPool,
  randomQueries,
  turnTable,
  wgmmaSharedBytes,
  wgmmaThreads,
} from "./wgmma-cases.ts";
import { timeCases } from "./wgmma-times.ts";

const { SPANGATE_KERNEL_CHECKS: part } = process.env;
const options = gpuOptions();
const seed = freshSeed();
const random = new Random(seed);
const report = new Report();
const device = new AttentionDevice(options.libraryFolders);
console.log(`seed ${seed}`);

if (part !== "times") {
  for (const headDim of [128, 64]) {
    for (const [name, shape] of planCases(random, headDim).slice(0, part === "small" ? 6 : undefined)) {
      await report.check(`${name}, heads of ${headDim}`, () => check(shape, random.pick([1, 3, 200])));
    }
  }
  const [name, shape] = planCases(random, 128)[3];
  await report.check(`${name}: an offset too large by one shows`, () => {
    const words = refusal(() => check(shape, 1, 1));
    assertThat(words.includes("where the oracle"), words);
    return words;
  });
}
if (part !== "checks" && part !== "small") await report.check("times", () => timeCases(device, random, report));
process.exitCode = await report.end(resultPath(options, "wgmma.json"));

function refusal(run: () => string): string {
  try {
    return run();
  } catch (error) {
    return String(error);
  }
}

/** @param shift what the oracle's offsets are larger by */
function check(shape: PlanCase, grid: number, shift = 0): string {
  const { heads } = shape;
  const built = buildPlan(random, shape);
  const { plan, positions } = built;
  const queries = randomQueries(random, shape, positions.length);
  const pool = randomPool(random, shape, built);
  const { table, zero } = turnTable(heads.rotaryDim);
  const rowBytes = heads.queryHeads * heads.headDim * 2;
  const guarded = positions.length + 1;
  const buffers = {
    qkv: device.put("qkv", queries.words),
    pool: putPoolMap(device, heads, device.put("pool", pool.words)),
    rotations: device.put("rotations", table).slice(zero * (heads.rotaryDim / 2) * 8),
    positions: device.put("positions", positions),
    blockIds: device.put("block ids", built.blockIds),
    out: device.space("out", guarded * rowBytes),
    partialOut: device.space("partial results", plan.partialCount * rowBytes * 2),
    partialSums: device.space("partial sums", plan.partialCount * heads.queryHeads * 4),
    arrivals: device.space("arrivals", (plan.merges.length / 4) * heads.queryHeads * 4),
  };
  device.fill(buffers.arrivals, 0);
  const size = { grid, threads: wgmmaThreads, sharedBytes: wgmmaSharedBytes(heads.headDim) };
  const launch = device.prepare("attention_wgmma", heads, buffers, plan, size);
  const out = new Uint16Array((guarded * rowBytes) / 2);
  // Twice: counters must be as they were.
  for (let round = 0; round < 2; round++) {
    for (const poisoned of [buffers.out, buffers.partialOut, buffers.partialSums]) device.fill(poisoned, 0xff);
    launch();
    device.read(buffers.out, out);
  }
  assertThat(
    device.read(buffers.arrivals, new Int32Array(buffers.arrivals.byteLength / 4)).every((n) => n === 0),
    "counters are left",
  );
  device.clear();
  assertThat(
    out.subarray(-rowBytes / 2).every((word) => word === 0xffff),
    "rows past the end were written",
  );
  const shifted = { ...plan, offsets: plan.offsets.map((offset) => offset + shift) };
  const inputs = { ...heads, qkv: queries.values, pool: pool.values, rotations: table, rotationsZero: zero };
  const oracle = attentionOracle({ ...inputs, positions, blockIds: built.blockIds }, shifted);
  return compare(out, oracle, shape);
}

function compare(out: Uint16Array, oracle: ReturnType<typeof attentionOracle>, { heads }: PlanCase): string {
  const got = new Float32Array(Uint32Array.from(out, (half) => half << 16).buffer);
  let [worst, errors, squares, wrong] = [0, 0, 0, 0];
  let words = "";
  oracle.out.forEach((wanted, i) => {
    const difference = Math.abs(got[i] - wanted);
    errors += difference ** 2;
    squares += wanted ** 2;
    if (difference > 0) worst = Math.max(worst, difference / oracle.tolerance[i]);
    if (difference <= oracle.tolerance[i]) return;
    wrong++;
    const [head, d] = [Math.floor(i / heads.headDim), i % heads.headDim];
    const [row, h] = [Math.floor(head / heads.queryHeads), head % heads.queryHeads];
    words ||= `row ${row}, head ${h}, dimension ${d} is ${got[i]}, where the oracle has ${wanted}`;
  });
  const relative = Math.sqrt(errors / squares);
  assertThat(
    wrong === 0,
    `${words}; ${wrong} of ${oracle.out.length} are wrong, relative error ${relative.toExponential(1)}`,
  );
  assertThat(relative < 0.01, `relative error ${relative}`);
  return `relative error ${relative.toExponential(1)}, ${worst.toFixed(2)} of the tolerance`;
}
