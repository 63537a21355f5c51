/**
 * Rows that choose what they read, on the device: `bun test/gpu/sparse.ts [kernels|kernels-256|model|times|steps|long]...
 * [seed] [folder of NVIDIA's libraries]...`; writes $OUT/sparse.json.
 *   kernels  each against plain loops; shadows, scores and choices bit for bit; kernels-256: for heads of 256 dimensions alone
 *   model    a small model: rows that choose everything against rows that read everything, and the engine in plain loops
 *   times    the kernels of a layer of the 8B shape, beside the bytes that they move
 *   steps    its decode steps, dense and sparse
 *   long     lists of more tokens than a thread block counts
 */
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../worker/backend/cuda/cuda-backend.ts";
import { allowChoices, type ListBlocks } from "../../worker/backend/cuda/sparse/sparse-ops.ts";
import { loadModel } from "../../worker/model/load.ts";
import { Random } from "../native/random.ts";
import { KernelTwin } from "./kernel-twin.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";
import { sparseBackendChecks, sparseModelOptions } from "./sparse-backend.ts";
import { checkSparse, sparseCases } from "./sparse-kernels.ts";
import { stepShapes, timeKernels, timeSteps } from "./sparse-times.ts";

/** Bytes a second of a copy on an H200, reads and writes counted (test/gpu/kernels.ts measures it). */
const copyBytesPerSecond = 4.29e12;

const options = gpuOptions();
const parts = options.parts.filter((part) => !/^\d+$/.test(part));
const isWanted = (part: string) => parts.length === 0 || parts.includes(part);
const seed = Number(options.parts.find((part) => /^\d+$/.test(part)) ?? freshSeed());
const random = new Random(seed);
const report = new Report();
console.log(`seed ${seed}`);

for (const headDim of [128, 32, 64, 96, 256].filter((size) => isWanted("kernels") || isWanted(`kernels-${size}`))) {
  const device = await openTestDevice(headDim, options);
  allowChoices(device, headDim);
  for (const given of sparseCases(headDim)) {
    const check = () => checkSparse(device, new KernelTwin(device, 64 << 20, headDim), random, given);
    await report.check(JSON.stringify(given), check);
  }
  device.close();
}
if (isWanted("model")) {
  const model = loadModel(join("test/golden", "qwen3"), numericMode);
  const open = async (graphs: boolean) => {
    const device = await openTestDevice(model.config.headDim, options);
    return CudaBackend.open(device, model, { ...sparseModelOptions, graphs });
  };
  for (const [name, check] of Object.entries(sparseBackendChecks)) {
    for (const graphs of [true, false]) {
      await report.check(`${name}, graphs ${graphs}`, () => check(() => open(graphs), model.config, random));
    }
  }
}
for (const shape of isWanted("times") ? stepShapes : []) {
  await report.check(`kernels of ${JSON.stringify(shape)}`, async () => {
    const device = await openTestDevice(128, options);
    const rows = await timeKernels(device, random, copyBytesPerSecond, shape);
    device.close();
    const lines = rows.map(([name, us, floor]) => {
      report.figure(`${name} us`, us);
      return `${name.padEnd(46)} ${us.toFixed(1).padStart(8)} us, floor ${floor.toFixed(1).padStart(7)}`;
    });
    return `\n${lines.join("\n")}`;
  });
}
for (const shape of isWanted("steps") ? stepShapes : []) {
  await report.check(`steps of ${JSON.stringify(shape)}`, () =>
    timeSteps(options, random, copyBytesPerSecond, shape, report),
  );
}
if (isWanted("long")) {
  const [headDim, most] = [64, 65_528];
  const device = await openTestDevice(headDim, options);
  allowChoices(device, headDim);
  const given = {
    ...{ headDim, rotaryDim: headDim, blockTokens: 16, queryHeads: 4, kvHeads: 1 },
    rows: [[[most, 5_000], 700, 70]],
  } as const;
  const check = (counts: readonly ListBlocks[]) =>
    checkSparse(device, new KernelTwin(device, 128 << 20, headDim), random, given, counts);
  await report.check(`choices from more than ${most} tokens`, () => check([2, 4, 8]));
  // The last one: a device does nothing any more after that.
  await report.check(`one thread block that is to count more than ${most}`, async () => {
    const failed = await check([1]).then(
      () => undefined,
      (error: Error) => error.message,
    );
    assertThat(failed !== undefined && /cuda|launch|instruction/i.test(failed), `it ended with ${failed}`);
    return `${failed}`;
  });
}
process.exitCode = await report.end(resultPath(options, "sparse.json"));
