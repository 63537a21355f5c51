/**
 * What stands between the kernels of a decode step: products of few rows by rings, which read weights ahead
 * (kernels/cuda/products/matvec_ring.cuh), and by the others.
 * `bun test/gpu/launches.ts [checks|8b|8b-fp8|30b|30b-fp8|gpt-oss|gemma]... [folder of NVIDIA's libraries]...`; writes
 * $OUT/launches.json. ROWS: of the steps that are timed, 1 where it is not set.
 *   checks  kernels of rings against plain loops
 *   8b...   a model decodes by both in turn: what a step takes, and whether logits are the same each time, and nearly
 *           those of the others
 */
import { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { MatmulScales } from "../../worker/backend/cuda/device/device.ts";
import { allowFewRows } from "../../worker/backend/cuda/products/few-rows.ts";
import { allowRings, type RowProductKind } from "../../worker/backend/cuda/products/row-products.ts";
import type { WeightInfo } from "../../worker/backend/cuda/weights/weights.ts";
import { rowBatch } from "../backend/cuda/row-batch.ts";
import { Random } from "../native/random.ts";
import { checkByteRows, e4m3Shapes } from "./kernel-e4m3.ts";
import { checkRingExperts, expertCases } from "./kernel-experts.ts";
import { checkFewRows, checkProducts, productShapes, ringProducts } from "./kernel-products.ts";
import { decodeMs, spanText } from "./model-speed.ts";
import { configOf, type ModelName, RandomReader, weightsOf } from "./models.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";
import { greatestDistance } from "./twin-backend.ts";

const options = gpuOptions();
const report = new Report();
const seed = freshSeed();
const random = new Random(seed);
console.log(`seed ${seed}`);
const isWanted = (part: string) => options.parts.length === 0 || options.parts.includes(part);
/** One for all: it gives the same weights twice. */
const reader = new RandomReader();

async function checkKernels(): Promise<void> {
  const device = await openTestDevice(128, options);
  allowRings(device);
  allowFewRows(device);
  // One pair a warp at most, and many.
  for (const blocks of [132, 7]) {
    const kernels = ringProducts(blocks);
    for (const [width, count] of productShapes) {
      const check = () => checkProducts(device, random, width, count, kernels);
      await report.check(`rings of ${blocks} blocks, ${width}, ${count}`, check);
    }
    for (const shape of e4m3Shapes) {
      const check = () => checkByteRows(device, random, shape, kernels);
      await report.check(`rings of ${blocks} blocks, ${shape}`, check);
    }
    for (const of of expertCases.filter(({ rows, isOpen }) => rows === 1 && isOpen)) {
      for (const perToken of [of.perToken, 1]) {
        const check = () => checkRingExperts(device, random, { ...of, perToken }, blocks);
        await report.check(`rings of ${blocks} blocks, ${perToken} experts in ${of.form}`, check);
      }
    }
  }
  for (const shape of productShapes) {
    for (const rows of [2, 8, 11, 16]) {
      await report.check(`${rows} rows, ${shape}`, () => checkFewRows(device, random, shape, rows));
    }
  }
  for (const [kind, ...shape] of e4m3Shapes) {
    for (const rows of [3, 13]) {
      await report.check(`${rows} rows, ${kind}, ${shape}`, () => checkFewRows(device, random, shape, rows, kind));
    }
  }
  device.close();
}

const models = {
  "8b-fp8": { name: "Qwen3-8B", e4m3: "blocks" },
  "8b": { name: "Qwen3-8B", e4m3: undefined },
  "30b": { name: "Qwen3-30B-A3B", e4m3: undefined },
  "30b-fp8": { name: "Qwen3-30B-A3B", e4m3: "blocks" },
  gemma: { name: "gemma-3-12b", e4m3: undefined },
  "gpt-oss": { name: "gpt-oss-20b", e4m3: undefined },
} as const satisfies Record<string, { readonly name: ModelName; readonly e4m3: MatmulScales | undefined }>;

type Part = keyof typeof models;

interface Way {
  readonly kind: RowProductKind;
  /** Do all kernels divide first-level memory the same way? */
  readonly shared: boolean;
}
const ways: readonly Way[] = [
  { kind: "plain", shared: false },
  { kind: "ring", shared: true },
  { kind: "ring", shared: false },
];

/** Logits of four rows, one after the other: recorded steps behind the first. */
async function rowLogits(backend: CudaBackend): Promise<Float32Array> {
  const { vocabSize } = backend.shape;
  const logits = new Float32Array(4 * vocabSize);
  for (const [position, id] of [7, 3, 11, 5].entries()) {
    logits.set(await backend.forward(rowBatch(id, position)), position * vocabSize);
  }
  return logits;
}

const norm = (values: Float32Array) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0));

/** Of bfloat16's roundings, which fall to other sides in other orders of sums, through all layers. */
const roundingError = 0.05;

/** A part's tensors, with the same random scales whenever they are asked for. */
function sameWeights(part: Part): WeightInfo {
  const { info } = weightsOf(configOf(models[part].name), models[part].e4m3);
  const known = new Map<string, ReturnType<typeof info>>();
  return {
    info(name) {
      const tensor = known.get(name) ?? info(name);
      known.set(name, tensor);
      return tensor;
    },
  };
}

/** Of each part, what the first way gave. */
const firstLogits = new Map<Part, Float32Array>();

async function measure(part: Part, weights: WeightInfo, { kind, shared }: Way, rows: readonly number[]) {
  const { name, e4m3 } = models[part];
  const config = configOf(name);
  const device = await openTestDevice(config.headDim, options);
  device.prefersSharedMemory = shared;
  const sizes = { kvBytes: 12e9, maxRows: 8_192, blockTokens: 16, maxLogitRows: 64 };
  const given = { ...sizes, reader, keepsE4m3: e4m3 !== undefined, rowProducts: kind };
  const backend = await CudaBackend.open(device, { config, weights }, given);
  const words: string[] = [];
  for (const count of rows) {
    const span = await decodeMs(backend, device, count);
    words.push(`${count}: ${spanText(span)}`);
    report.figure(`${part} by ${kind}${shared ? ", shared" : ""}, decode ${count} ms`, span.deviceMs);
  }
  const logits = await rowLogits(backend);
  for (let round = 0; round < 8; round++) {
    const distance = greatestDistance(logits, await rowLogits(backend));
    assertThat(distance === 0, `the same steps again give other logits, by ${distance}`);
  }
  await backend.dispose();
  const first = firstLogits.get(part) ?? logits;
  firstLogits.set(part, first);
  const difference = norm(logits.map((x, i) => x - first[i])) / norm(first);
  // Rounding sends rows of random routers to other experts: then logits are others, and prove nothing.
  if (config.experts === undefined) assertThat(difference < roundingError, `logits are off by ${difference}`);
  return `${words.join(", ")}; logits differ by ${difference.toFixed(4)}`;
}

if (isWanted("checks")) await checkKernels();
const rows = (process.env.ROWS ?? "1").split(" ").map(Number);
for (const part of Object.keys(models) as Part[]) {
  if (!isWanted(part)) continue;
  const weights = sameWeights(part);
  for (const way of part === "8b-fp8" ? ways : ways.slice(0, 2)) {
    await report.check(`${part}, ${way.kind}${way.shared ? ", shared" : ""}`, () => measure(part, weights, way, rows));
  }
}
process.exitCode = await report.end(resultPath(options, "launches.json"));
