/**
 * How fast weights get from files to the device, beside the bus itself and the files alone:
 * `bun test/gpu/upload.ts FOLDER [folder of NVIDIA's libraries]...` with a model folder (test/gpu/random-model.ts makes
 * one) that is in the page cache. Writes $OUT/upload.json.
 */
import { open } from "node:fs/promises";
import { type CudaDevice, openDevice } from "../../worker/backend/cuda/open-device.ts";
import { FileReader, type FileReaderOptions } from "../../worker/backend/cuda/weights/tensor-reader.ts";
import { loadWeights } from "../../worker/backend/cuda/weights/weights.ts";
import { type LoadedModel, loadModel } from "../../worker/model/load.ts";
import { Report } from "./report.ts";

const [folder = "", ...libraryFolders] = process.argv.slice(2);
const rounds = 3;
const gigabyte = 1e9;
const variants: readonly Required<FileReaderOptions>[] = [8, 16, 24].flatMap((laneCount) =>
  [1, 2, 4].map((mebi) => ({ laneCount, partElements: mebi << 20 })),
);

const report = new Report();
const model = loadModel(folder, "cuda-bfloat16");
const openTo = () =>
  openDevice({ index: 0, headDim: model.config.headDim, libraryFolders, kernelFolder: "kernels/cuda" });

/** Best of the rounds, in GB/s: others of the machine only ever slow one down. */
async function bestRate(byteCount: number, run: () => Promise<void>): Promise<number> {
  const rates: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const startMs = performance.now();
    await run();
    rates.push(byteCount / gigabyte / ((performance.now() - startMs) / 1_000));
  }
  return Math.max(...rates);
}

async function busRate(device: CudaDevice): Promise<number> {
  const source = device.allocateHost("bus", 2 ** 28);
  const target = device.allocate("bus", 2 ** 28);
  const copies = 16;
  return await bestRate(copies * source.length, async () => {
    for (let i = 0; i < copies; i++) device.copyIn(target, source);
    await device.settled();
  });
}

/** The shards read by so many threads at once, into memory that is there already. */
async function fileRate({ weights }: LoadedModel, laneCount: number): Promise<number> {
  const files = await Promise.all(weights.files.map((file) => open(file, "r")));
  const pieces = weights.files.flatMap((name, index) => {
    const { size } = Bun.file(name);
    return Array.from({ length: Math.floor(size / 2 ** 24) }, (_, at) => ({ file: files[index], at: at * 2 ** 24 }));
  });
  const run = async (): Promise<void> => {
    const queue = pieces.values();
    const lane = async (): Promise<void> => {
      const buffer = new Uint8Array(2 ** 24).fill(1);
      for (const { file, at } of queue) await file?.read(buffer, 0, buffer.length, at);
    };
    await Promise.all(Array.from({ length: laneCount }, lane));
  };
  const rate = await bestRate(pieces.length * 2 ** 24, run);
  for (const file of files) await file.close();
  return rate;
}

/** Best of the rounds, memory for it included. */
async function loadRate(name: string, options?: FileReaderOptions): Promise<string> {
  const seconds: number[] = [];
  let byteCount = 0;
  for (let round = 0; round < rounds; round++) {
    const device = await openTo();
    const startMs = performance.now();
    const reader = new FileReader(options);
    ({ byteLength: byteCount } = await loadWeights(device, model.config, model.weights, { reader, keepsE4m3: false }));
    seconds.push((performance.now() - startMs) / 1_000);
    device.close();
  }
  const best = Math.min(...seconds);
  return `${report.figure(name, byteCount / gigabyte / best)}, ${best.toFixed(2)} s`;
}

/** What is no copying: memory on the device and for staging. */
function allocationTimes(device: CudaDevice): string {
  const millisecondsOf = (run: () => void): number => {
    const startMs = performance.now();
    run();
    return performance.now() - startMs;
  };
  const deviceMs = millisecondsOf(() => device.allocate("weights", 16 * 2 ** 30));
  const pinnedMs = millisecondsOf(() => device.allocateHost("staging", 2 ** 27));
  return [report.figure("allocate.device16GiB.ms", deviceMs), report.figure("allocate.pinned128MiB.ms", pinnedMs)].join(
    ", ",
  );
}

const first = await openTo();
await report.check("bus", async () => report.figure("bus.gbPerSecond", await busRate(first)));
await report.check("memory", () => allocationTimes(first));
first.close();
for (const laneCount of [1, 16]) {
  const name = `files.lanes${laneCount}.gbPerSecond`;
  await report.check(name, async () => report.figure(name, await fileRate(model, laneCount)));
}
await report.check("load", () => loadRate("load.gbPerSecond"));
for (const options of variants) {
  const partMiB = options.partElements >> 19;
  const name = `load.lanes${options.laneCount}.partMiB${partMiB}.gbPerSecond`;
  await report.check(name, () => loadRate(name, options));
}
const { OUT: outFolder } = process.env;
process.exit(await report.end(outFolder && `${outFolder}/upload.json`));
