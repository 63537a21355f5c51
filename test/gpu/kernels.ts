/**
 * The CUDA kernels on a device: each against its twin on fresh random inputs, then their times against what the device
 * can do at best. Runs from the repository root, as it is or bundled: `bun test/gpu/kernels.ts [seed] [folder of NVIDIA's
 * libraries]...`; writes $OUT/kernels.json where OUT is set. SPANGATE_KERNEL_CHECKS=small leaves out the times, for a
 * memory checker; =times leaves out the checks.
 */
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { Random } from "../native/random.ts";
import { attentionCases, checkAttention } from "./kernel-attention.ts";
import { checkProducts, productShapes } from "./kernel-products.ts";
import { timeRows } from "./kernel-row-timings.ts";
import { checkHeads, checkNorm, checkRows } from "./kernel-rows.ts";
import { checkSampling } from "./kernel-sampling.ts";
import { fillRandom, KernelTimer, putInts, type Rates, timeAttention } from "./kernel-timings.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";

const options = gpuOptions();
const { SPANGATE_KERNEL_CHECKS } = process.env;
const isSmall = SPANGATE_KERNEL_CHECKS === "small";
const isTimes = SPANGATE_KERNEL_CHECKS === "times";
const seed = options.parts.length === 0 ? freshSeed() : Number(options.parts[0]);
const random = new Random(seed);
const report = new Report();
const open = (headDim: number) => openTestDevice(headDim, options);
console.log(`seed ${seed}`);

for (const headDim of isTimes ? [] : isSmall ? [80] : [16, 64, 80, 96, 128]) {
  const device = await open(headDim);
  for (const shape of attentionCases(headDim)) {
    await report.check(`attention ${JSON.stringify(shape)}`, () => checkAttention(device, random, shape));
  }
  for (const [hasBias, hasNorm] of [
    [false, false],
    [true, false],
    [false, true],
  ] as const) {
    const name = `heads of ${headDim}, bias ${hasBias}, norm ${hasNorm}`;
    await report.check(name, () => checkHeads(device, random, headDim, hasBias, hasNorm));
  }
  device.close();
}

const device = await open(128);
await report.check("a turn by one position shows", async () => {
  const shape = { ...attentionCases(128)[3], multiprocessorCount: 1 };
  const failure = await checkAttention(device, random, shape, 1).catch((error: Error) => error.message);
  assertThat(failure.includes("in its twin"), failure);
  return failure;
});
if (!isTimes) {
  for (const hidden of [64, 4_096, 5_120, 16_384]) {
    await report.check(`add_rmsnorm of ${hidden}`, () => checkNorm(device, random, hidden));
  }
  for (const [width, count] of productShapes) {
    await report.check(`products of ${width}, ${count}`, () => checkProducts(device, random, width, count));
  }
  await report.check("rows", () => checkRows(device, random));
  await report.check("sampling of 257", () => checkSampling(device, random, 257, 200));
}
if (!isSmall) {
  await report.check("sampling of 151,936", () => checkSampling(device, random, 151_936, 120));
  await report.check("times", async () => {
    const timer = new KernelTimer(device, await measureRates(device));
    await timeAttention(timer, random);
    await timeRows(timer, random);
    const lines = timer.timings.map(({ name, microseconds, floorMicroseconds, bound }) => {
      report.figure(`${name} us`, microseconds);
      report.figure(`${name} floor us`, floorMicroseconds);
      const share = ((100 * floorMicroseconds) / microseconds).toFixed(0);
      return `${name.padEnd(34)} ${microseconds.toFixed(1).padStart(9)} us, floor ${floorMicroseconds.toFixed(1).padStart(8)} (${share}% of ${bound})`;
    });
    return `\n${lines.join("\n")}\n`;
  });
}
device.close();
process.exitCode = await report.end(resultPath(options, isSmall ? "kernels-small.json" : "kernels.json"));

/** A copy of 2 GiB, reads and writes counted, and a product of 8,192 cubed: what floors are made of. */
async function measureRates(device: CudaDevice): Promise<Rates> {
  const bytes = 2 ** 31;
  const [from, to] = [device.allocate("from", bytes), device.allocate("to", bytes)];
  fillRandom(device, random, from, "bfloat16");
  const rows = 2 ** 17;
  const [ascending, count] = [Int32Array.from({ length: rows }, (_, i) => i), Int32Array.of(rows)].map((list) =>
    putInts(device, list),
  );
  const side = 8_192;
  const matrix = (index: number) => from.slice(index * side * side * 2, side * side * 2);
  const shape = { rows: side, outWidth: side, inWidth: side, outputType: "bfloat16" } as const;
  const operands = { input: matrix(0), weights: matrix(1), output: to.slice(0, side * side * 2) };
  const plain = new KernelTimer(device, { bytesPerSecond: 1, flopPerSecond: 1 });
  // As launches: copies in a graph take a slower path.
  const copy = device.prepare("gather_rows", from, ascending, count, bytes / rows, to);
  const copyMs = await plain.milliseconds(4, () => copy({ grid: [rows], blockThreads: 256 }));
  const productMs = await plain.milliseconds(4, () => device.matmul(shape, operands));
  const rates = { bytesPerSecond: (2 * bytes * 1000) / copyMs, flopPerSecond: (2 * side ** 3 * 1000) / productMs };
  report.figure("copyBytesPerSecond", rates.bytesPerSecond);
  report.figure("productFlopPerSecond", rates.flopPerSecond);
  console.log(
    `copy ${(rates.bytesPerSecond / 1e12).toFixed(2)} TB/s, products ${(rates.flopPerSecond / 1e12).toFixed(0)} TFLOP/s`,
  );
  return rates;
}
