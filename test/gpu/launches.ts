/**
 * What stands between the kernels of a decode step: `bun test/gpu/launches.ts [part]... [folder of NVIDIA's libraries]...`;
 * writes $OUT/launches.json. Each model decodes with products of one row by plain thread blocks and by rings, in turn.
 */
import { cpSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { MatmulScales } from "../../worker/backend/cuda/device/device.ts";
import { type CudaDevice, openDevice } from "../../worker/backend/cuda/open-device.ts";
import { allowFewRows } from "../../worker/backend/cuda/products/few-rows.ts";
import { allowRings, type RowProductKind, ringShape } from "../../worker/backend/cuda/products/row-products.ts";
import { Random } from "../native/random.ts";
import { checkByteRows, e4m3Shapes } from "./kernel-e4m3.ts";
import { checkRingExperts, expertCases } from "./kernel-experts.ts";
import { checkFewRows, checkProducts, productShapes, ringProducts } from "./kernel-products.ts";
import { decodeMs } from "./model-speed.ts";
import { configOf, type ModelName, RandomReader, weightsOf } from "./models.ts";
import { freshSeed, gpuOptions, resultPath } from "./options.ts";
import { Report } from "./report.ts";

const options = gpuOptions();
const report = new Report();
const random = new Random(freshSeed());
const isWanted = (part: string) => options.parts.length === 0 || options.parts.includes(part);
const reader = new RandomReader();

interface Variant {
  readonly kind: RowProductKind;
  readonly shared: boolean;
  readonly warps: number;
  readonly slots: number;
  readonly blocks: number;
}
const plain: Variant = { kind: "plain", shared: false, warps: 8, slots: 4, blocks: 1 };
const ring: Variant = { ...plain, kind: "ring", shared: true };
const variants: Record<string, Variant> = {
  plain,
  "plain, shared": { ...plain, shared: true },
  "ring 8x4, not shared": { ...ring, shared: false },
  "ring 8x4": ring,
  "ring 8x6": { ...ring, slots: 6 },
  "ring 16x2": { ...ring, warps: 16, slots: 2 },
  "ring 16x3": { ...ring, warps: 16, slots: 3 },
  "ring 4x6 x2": { ...ring, warps: 4, slots: 6, blocks: 2 },
  "ring 8x3 x2": { ...ring, slots: 3, blocks: 2 },
};

function kernelsOf({ warps, slots }: Variant): string {
  const folder = mkdtempSync(join(tmpdir(), "kernels-"));
  cpSync("kernels/cuda", folder, { recursive: true });
  const files = [
    "products/few_rows.cu",
    "products/few_rows_e4m3.cu",
    "products/matvec_ring.cu",
    "products/matvec_ring_e4m3.cu",
  ];
  for (const name of [...files, "experts/experts_ring_b16.cu", "experts/experts_ring_e4m3.cu"]) {
    const file = join(folder, name);
    const defines = `#define RING_WARPS ${warps}\n#define RING_SLOTS ${slots}\n`;
    writeFileSync(file, defines + readFileSync(file, "utf8"));
  }
  return folder;
}

async function open(headDim: number, variant: Variant): Promise<CudaDevice> {
  const { warps, slots, blocks } = variant;
  Object.assign(ringShape, { warps, slots, blocks });
  const { libraryFolders } = options;
  const kernelFolder = kernelsOf(variant);
  const device = await openDevice({ index: 0, headDim, libraryFolders, kernelFolder });
  device.prefersSharedMemory = variant.shared;
  return device;
}

async function speed(name: ModelName, e4m3: MatmulScales | undefined, variant: Variant, batches: readonly number[]) {
  const config = configOf(name);
  const device = await open(config.headDim, variant);
  const weights = weightsOf(config, e4m3);
  const shared = { kvBytes: 12e9, maxRows: 8_192, blockTokens: 16, maxLogitRows: 64, reader };
  const given = { ...shared, keepsE4m3: e4m3 !== undefined, rowProducts: variant.kind };
  const backend = await CudaBackend.open(device, { config, weights }, given);
  const words: string[] = [];
  for (const batch of batches) {
    const { deviceMs, wallMs } = await decodeMs(backend, device, batch);
    words.push(`${batch}: device ${deviceMs.toFixed(3)} ms, wall ${wallMs.toFixed(3)} ms`);
    report.figure(`${name} ${e4m3 ?? ""} ${JSON.stringify(variant)} decode ${batch} ms`, deviceMs);
  }
  await backend.dispose();
  return words.join(", ");
}

if (isWanted("checks")) {
  const device = await open(128, ring);
  allowRings(device);
  allowFewRows(device);
  for (const blocks of [132, 7]) {
    for (const [width, count] of productShapes) {
      const check = () => checkProducts(device, random, width, count, ringProducts(blocks));
      await report.check(`rings of ${blocks}, ${width}, ${count}`, check);
    }
    for (const shape of blocks === 7 ? productShapes : []) {
      for (const rows of [2, 8, 11, 16]) {
        await report.check(`${rows} rows, ${shape}`, () => checkFewRows(device, random, shape, rows));
      }
    }
    for (const [kind, ...shape] of blocks === 7 ? e4m3Shapes : []) {
      for (const rows of [3, 13]) {
        await report.check(`${rows} rows, ${kind}, ${shape}`, () => checkFewRows(device, random, shape, rows, kind));
      }
    }
    for (const shape of e4m3Shapes) {
      const check = () => checkByteRows(device, random, shape, ringProducts(blocks));
      await report.check(`rings of ${blocks}, ${shape}`, check);
    }
  }
  for (const of of expertCases.filter(({ rows, form, isOpen }) => rows === 1 && form !== "mx4" && isOpen)) {
    for (const blocks of [132, 7]) {
      for (const perToken of [of.perToken, 1]) {
        const name = `rings of ${blocks}, experts ${of.form}, ${perToken} a row`;
        await report.check(name, () => checkRingExperts(device, random, { ...of, perToken }, blocks));
      }
    }
  }
  device.close();
}
const tried: readonly [string, ModelName, MatmulScales | undefined][] = [
  ["8b-fp8", "Qwen3-8B", "blocks"],
  ["8b", "Qwen3-8B", undefined],
  ["gpt-oss", "gpt-oss-20b", undefined],
  ["gemma", "gemma-3-12b", undefined],
  ["30b", "Qwen3-30B-A3B", undefined],
  ["30b-fp8", "Qwen3-30B-A3B", "blocks"],
];
const chosen = (process.env.VARIANTS ?? "plain;ring 8x4").split(";");
const batches = (process.env.BATCHES ?? "1").split(" ").map(Number);
for (const [part, name, form] of tried) {
  if (!isWanted(part)) continue;
  for (const words of chosen) {
    await report.check(`${part}, ${words}`, () => speed(name, form, variants[words], batches));
  }
}
process.exitCode = await report.end(resultPath(options, "launches.json"));
