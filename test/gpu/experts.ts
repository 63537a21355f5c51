/**
 * Experts on the device: `bun test/gpu/experts.ts [kernels|times|qwen|qwen-fp8|gpt-oss|gemma]... [folder of NVIDIA's
 * libraries]...`; writes $OUT/experts.json.
 *   kernels   routes, tiles, products and widened weights against plain loops
 *   times     kernels in the shape of a 30B with 3B active, of one row, of 64 and of 8,192
 *   the rest  decode steps and prompts of models of true shapes with random weights, beside the bytes that they have to
 *             read: of a batch, those of the experts that as many random assignments meet
 */
import type { MatmulScales } from "../../worker/backend/cuda/device/device.ts";
import type { ModelConfig } from "../../worker/model/config.ts";
import { Random } from "../native/random.ts";
import { timeExperts } from "./expert-timings.ts";
import { checkExperts, checkWidened, expertCases } from "./kernel-experts.ts";
import { KernelTimer } from "./kernel-timings.ts";
import { decodeMs, prefillMs, prefillTokens, spanText } from "./model-speed.ts";
import { configOf, type ModelName, openRandomModel } from "./models.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const options = gpuOptions();
const report = new Report();
const seed = freshSeed();
const random = new Random(seed);
console.log(`seed ${seed}`);
const isWanted = (part: string) => options.parts.length === 0 || options.parts.includes(part);
/** Of an H200: derived from earlier figures in docs/measurements.md, not measured in this run. */
const rates = { bytesPerSecond: 4.24e12, flopPerSecond: 790e12 };

if (isWanted("kernels")) {
  const device = await openTestDevice(128, options);
  for (const shape of expertCases) {
    await report.check(`experts ${JSON.stringify(shape)}`, () => checkExperts(device, random, shape));
  }
  await report.check("widened weights", () => checkWidened(device, random));
  device.close();
}
if (isWanted("times")) {
  await report.check("times", async () => {
    const device = await openTestDevice(128, options);
    const timer = new KernelTimer(device, rates);
    await timeExperts(timer, random);
    device.close();
    const lines = timer.timings.map(({ name, microseconds, floorMicroseconds, bound }) => {
      report.figure(`${name} us`, microseconds);
      const share = ((100 * floorMicroseconds) / microseconds).toFixed(0);
      return `${name.padEnd(34)} ${microseconds.toFixed(1).padStart(9)} us, floor ${floorMicroseconds.toFixed(1).padStart(8)} (${share}% of ${bound})`;
    });
    return `\n${lines.join("\n")}`;
  });
}

/** Weights that a decode step of so many rows reads, given bytes of an expert's weight and of another one. */
function bytesOfStep(config: ModelConfig, rows: number, expertBytes: number, denseBytes: number): number {
  const { layerCount, hiddenSize, headCount, kvHeadCount, headDim, ffnSize, vocabSize, experts } = config;
  const attention = 2 * hiddenSize * headDim * (headCount + kvHeadCount) * denseBytes;
  const met = experts && experts.count * (1 - (1 - experts.perToken / experts.count) ** rows);
  const mlp = met
    ? met * 3 * hiddenSize * experts.ffnSize * expertBytes + 2 * experts.count * hiddenSize
    : 3 * hiddenSize * ffnSize * denseBytes;
  return layerCount * (attention + mlp) + 2 * vocabSize * hiddenSize;
}

/** Operations of a prompt: of the weights that its rows meet, and of attention, half of which is masked. */
function flopOfPrompt(config: ModelConfig): number {
  const { layerCount, headCount, headDim } = config;
  const weights = bytesOfStep(config, 1, 1, 1) - 2 * config.vocabSize * config.hiddenSize;
  return 2 * weights * prefillTokens + 2 * layerCount * headCount * headDim * prefillTokens ** 2;
}

interface SpeedOptions {
  readonly batches: readonly number[];
  readonly e4m3?: MatmulScales;
  readonly expertBytes?: number;
}

async function measureModel(name: ModelName, { batches, e4m3, expertBytes }: SpeedOptions): Promise<string> {
  const config = configOf(name);
  const device = await openTestDevice(config.headDim, options, "bfloat16", config.scoreCap);
  const freeBytes = device.freeBytes();
  const kvBytes = 16e9;
  const backend = await openRandomModel(device, config, { kvBytes, maxRows: prefillTokens, e4m3 });
  const taken = freeBytes - device.freeBytes() - backend.shape.blockCount * backend.shape.kvBytesPerBlock;
  const words = [
    `${(backend.weightBytes / 1e9).toFixed(2)} GB of weights, ${(taken / 1e9).toFixed(2)} with space for steps`,
  ];
  const denseBytes = e4m3 === undefined ? 2 : 1;
  for (const batch of batches) {
    const span = await decodeMs(backend, device, batch);
    const floorMs = (1_000 * bytesOfStep(config, batch, expertBytes ?? denseBytes, denseBytes)) / rates.bytesPerSecond;
    report.figure(`${name} ${e4m3 ?? ""} decode ${batch} ms`, span.wallMs);
    const perLayer = (1_000 * (span.wallMs - floorMs)) / config.layerCount;
    words.push(
      `decode ${batch}: ${spanText(span)}, floor ${floorMs.toFixed(2)}, ${(span.wallMs / floorMs).toFixed(2)}x, ${perLayer.toFixed(1)} us a layer above`,
    );
  }
  const promptMs = await prefillMs(backend, device);
  report.figure(`${name} ${e4m3 ?? ""} prefill ms`, promptMs);
  const share = (flopOfPrompt(config) * 1_000) / promptMs / rates.flopPerSecond;
  words.push(`prefill ${prefillTokens}: ${promptMs.toFixed(1)} ms, ${(100 * share).toFixed(0)} % of the matrix rate`);
  await backend.dispose();
  return `\n  ${words.join("\n  ")}`;
}

const models: readonly [part: string, name: ModelName, speed: SpeedOptions][] = [
  ["qwen", "Qwen3-30B-A3B", { batches: [1, 8, 64] }],
  ["qwen-fp8", "Qwen3-30B-A3B", { batches: [1, 64], e4m3: "blocks" }],
  ["gpt-oss", "gpt-oss-20b", { batches: [1, 8, 64], expertBytes: 17 / 32 }],
  ["gemma", "gemma-3-12b", { batches: [1] }],
];
for (const [part, name, speed] of models) {
  if (isWanted(part)) await report.check(`${name} ${speed.e4m3 ?? ""}`, () => measureModel(name, speed));
}
process.exitCode = await report.end(resultPath(options, "experts.json"));
