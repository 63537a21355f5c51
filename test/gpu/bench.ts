/**
 * Speed on the device, random weights in the true shapes: `bun test/gpu/bench.ts [part]... [folder of NVIDIA's libraries]...`,
 * parts: names of models, decode, decode64, prefill, documents.
 * Decoding at batch 1 and 64 and 1,024 tokens, prefill of 8,192, and time to the first token over k documents. Floors
 * are from the ceilings that the same run measures. Writes $OUT/gpu-MODEL.json.
 */
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { ModelConfig } from "../../worker/model/config.ts";
import { BenchEngine, median, type StepTimes } from "./bench-engine.ts";
import { type Ceilings, measureCeilings } from "./ceilings.ts";
import { configOf, type ModelName, modelNames, openRandomModel } from "./models.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const options = gpuOptions();
const contextTokens = 1_024;
const prefillTokens = 8_192;
const documentTokens = 2_857;
const questionTokens = 32;
const kvBytes = 60e9;

const isModel = (part: string): part is ModelName => modelNames.some((name) => name === part);
const models = options.parts.some(isModel) ? options.parts.filter(isModel) : modelNames;
const parts = options.parts.filter((part) => !isModel(part));

/** Is a part of the benchmark, under any of its names, to run? */
function isWanted(...names: readonly string[]): boolean {
  return parts.length === 0 || names.some((name) => parts.includes(name));
}

interface Bench {
  readonly report: Report;
  readonly config: ModelConfig;
  readonly backend: CudaBackend;
  readonly device: CudaDevice;
  readonly ceilings: Ceilings;
}

function kvBytesOf({ config }: Bench, tokens: number): number {
  return tokens * config.layerCount * config.kvHeadCount * config.headDim * 4;
}

/** Bytes that a decode step reads at least: all weights but the embedding's rows, and the KV of each request. */
function decodeFloorMs(bench: Bench, batch: number, tokens: number): number {
  const { backend, config, ceilings } = bench;
  const weights = backend.weightBytes - config.vocabSize * config.hiddenSize * 2;
  return ((weights + batch * kvBytesOf(bench, tokens)) / ceilings.copyBytesPerSecond) * 1_000;
}

async function benchDecode(bench: Bench, batch: number): Promise<string> {
  const { report } = bench;
  const engine = new BenchEngine(bench.backend, bench.device, prefillTokens);
  for (let i = 0; i < batch; i++) engine.submit([], engine.randomTokens(contextTokens - 32), 64, false);
  const steps = (await engine.settle()).slice(-56, -8);
  const of = (read: (step: StepTimes) => number) => median(steps.map(read));
  const wallMs = of((step) => step.wallMs);
  const deviceMs = of((step) => step.deviceMs);
  const name = (what: string) => `decode.batch${batch}.${what}`;
  return [
    report.figure(name("wallMs"), wallMs),
    report.figure(name("deviceMs"), deviceMs),
    report.figure(name("overFloor"), wallMs / decodeFloorMs(bench, batch, contextTokens)),
    report.figure(name("hostShare"), (wallMs - deviceMs) / wallMs),
  ].join(", ");
}

function prefillFlop({ config }: Bench, tokens: number): number {
  const { layerCount, hiddenSize, headCount, kvHeadCount, headDim, ffnSize } = config;
  const weights = hiddenSize * ((2 * headCount + 2 * kvHeadCount) * headDim + 3 * ffnSize);
  return layerCount * (2 * tokens * weights + 2 * tokens * tokens * headCount * headDim);
}

async function benchPrefill(bench: Bench): Promise<string> {
  const engine = new BenchEngine(bench.backend, bench.device, prefillTokens);
  const times: number[] = [];
  for (let round = 0; round < 5; round++) {
    engine.submit([], engine.randomTokens(prefillTokens), 1, false);
    times.push((await engine.settle()).reduce((sum, { wallMs }) => sum + wallMs, 0));
  }
  const seconds = median(times.slice(1)) / 1_000;
  const rate = prefillFlop(bench, prefillTokens) / seconds;
  return [
    bench.report.figure("prefill.wallMs", seconds * 1_000),
    bench.report.figure("prefill.shareOfMatrixRate", rate / bench.ceilings.matrixFlopPerSecond),
  ].join(", ");
}

async function benchDocuments(bench: Bench, count: number): Promise<string> {
  const engine = new BenchEngine(bench.backend, bench.device, prefillTokens);
  const { report } = bench;
  const documents = Array.from({ length: count }, () => engine.randomTokens(documentTokens));
  const ttft = async (reuse: boolean, spans: readonly Int32Array[], question: Int32Array): Promise<number> => {
    engine.submit(spans, question, 1, reuse);
    return (await engine.settle()).reduce((sum, { wallMs }) => sum + wallMs, 0);
  };
  const question = () => engine.randomTokens(questionTokens);
  const whole = Int32Array.from(documents.flatMap((tokens) => [...tokens]));
  const plainMs = await ttft(false, [], Int32Array.from([...whole, ...question()]));
  const spansMs = await ttft(true, documents, question());
  const prepared: number[] = [];
  for (let round = 0; round < 7; round++) prepared.push(await ttft(true, documents, question()));
  const preparedMs = median(prepared.slice(2));
  const name = (what: string) => `documents${count}.${what}`;
  return [
    report.figure(name("plainMs"), plainMs),
    report.figure(name("spansMs"), spansMs),
    report.figure(name("preparedMs"), preparedMs),
    report.figure(name("preparedGain"), plainMs / preparedMs),
    report.figure(name("spansGain"), plainMs / spansMs),
    report.figure(name("preparedOverFloor"), preparedMs / decodeFloorMs(bench, 1, count * documentTokens)),
  ].join(", ");
}

function conditions(model: ModelName): Record<string, unknown> {
  return {
    command: "sh test/gpu/run.sh bench",
    model,
    weights: "random, bfloat16",
    tokens: {
      decodeContext: contextTokens,
      prefill: prefillTokens,
      document: documentTokens,
      question: questionTokens,
    },
  };
}

async function benchModel(name: ModelName): Promise<number> {
  const report = new Report();
  const config = configOf(name);
  const device = await openTestDevice(config.headDim, options);
  const ceilings = measureCeilings(device);
  console.log(`${name} on ${device.context.device.name}: ${JSON.stringify(ceilings)}`);
  report.figures.copyBytesPerSecond = ceilings.copyBytesPerSecond;
  report.figures.matrixFlopPerSecond = ceilings.matrixFlopPerSecond;
  const startMs = performance.now();
  const backend = await openRandomModel(device, config, { kvBytes, maxRows: prefillTokens });
  console.log(`${name}: ${backend.weightBytes} bytes of weights, open after ${performance.now() - startMs} ms`);
  const bench = { report, config, backend, device, ceilings };
  for (const batch of [1, 64]) {
    if (!isWanted(`decode${batch}`, "decode")) continue;
    await report.check(`${name} decode ${batch}`, () => benchDecode(bench, batch));
  }
  if (isWanted("prefill")) await report.check(`${name} prefill`, () => benchPrefill(bench));
  for (const count of name === "Qwen3-8B" && isWanted("documents") ? [1, 2, 4, 8, 16, 32] : []) {
    await report.check(`${name} ${count} documents`, () => benchDocuments(bench, count));
  }
  const { context } = device;
  const hardware = { device: context.device.name, cudaVersion: context.driver.version };
  await backend.dispose();
  const path = resultPath(options, `gpu-${name.toLowerCase()}.json`);
  if (path !== undefined)
    await Bun.write(path, JSON.stringify({ ...conditions(name), hardware, figures: report.figures }, null, 2));
  return report.end(undefined);
}

const failures: number[] = [];
for (const name of models) failures.push(await benchModel(name));
process.exit(Math.max(...failures));
