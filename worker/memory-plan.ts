/**
 * What a worker will hold in memory, told from config.json and the headers of the weights' files before any is loaded, so
 * that a start that cannot be says which setting would fit, and is not killed halfway.
 *
 * On the CPU these are sums. For a GPU a backend is made on a device that only counts what is allocated, so that whatever
 * the backend allocates is in the plan.
 */
import { readFileSync, statSync } from "node:fs";
import { totalmem } from "node:os";
import { packedForm, paddedOutputs } from "./backend/cpu/packer.ts";
import { type ComputeDevice, DeviceBuffer } from "./backend/cuda/device/device.ts";
import type { CudaBackendOptions } from "./backend/cuda/parts.ts";
import { sparseOptionsOf, type WorkerConfig, WorkerSettingError } from "./config.ts";
import type { ModelConfig } from "./model/config.ts";
import type { LoadedModel } from "./model/load.ts";
import type { StoredTensor } from "./model/stored-form.ts";
import { tensorLayout } from "./model/tensor-layout.ts";
import { shadowBytesOf } from "./native/choices.ts";
import { kvBytesOf } from "./native/kv-pool.ts";

const [mib, gib] = [2 ** 20, 2 ** 30];

export type PlannedModel = Pick<LoadedModel, "config" | "weights">;

export interface MemoryPlan {
  /** The weights' files, and the weights as they are held. */
  readonly storedBytes: number;
  readonly weightBytes: number;
  /** Activations, the process, what loading takes for a while. */
  readonly workBytes: number;
  /** The most that the pool takes; on the CPU page by page as it is used. */
  readonly kvBytes: number;
  /** The most that shadows of its K take beside it; 0: none are kept. */
  readonly shadowBytes: number;
  /** What the device has for this worker. */
  readonly memoryBytes: number;
}

/** A pool that a CPU takes unless told otherwise. */
const usualKvBytes = gib;
/** With less room for KV than for these tokens nothing is served. */
const leastKvTokens = 2_048;
/** The gateway, and the programs that it starts. */
const gatewayBytes = 256 * mib;

/** What the machine has for processes: its memory, or the limit of the container. */
export function machineBytes(): number {
  return Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY);
}

/**
 * @param memoryBytes what the device has: a GPU's memory, or the machine's, which `workerCount` workers share
 * @throws WorkerSettingError naming the setting that would fit
 */
export async function planMemory(
  worker: WorkerConfig,
  model: PlannedModel,
  memoryBytes: number,
  workerCount = 1,
): Promise<MemoryPlan> {
  return worker.cudaIndex === undefined
    ? planCpu(worker, model, memoryBytes, workerCount)
    : await planGpu(worker, model, memoryBytes, worker.cudaIndex);
}

/** One line for the operator. */
export function memoryText(plan: MemoryPlan): string {
  const { storedBytes, weightBytes, workBytes, kvBytes, shadowBytes, memoryBytes } = plan;
  const weights = `${sizeText(weightBytes)} for weights (${sizeText(storedBytes)} in files)`;
  const kv = `up to ${sizeText(kvBytes)} for KV${shadowBytes > 0 ? ` and ${sizeText(shadowBytes)} for shadows of K` : ""}`;
  return `${weights}, ${sizeText(workBytes)} to work with, ${kv}, of ${sizeText(memoryBytes)}`;
}

const sizeText = (bytes: number): string =>
  bytes < 0.1 * gib ? `${Math.ceil(bytes / mib)} MiB` : `${(bytes / gib).toFixed(1)} GiB`;

/** The pool of a worker that has the machine to itself and was told no size. */
export function usualCpuKvBytes(worker: WorkerConfig, model: PlannedModel): number {
  const { weightBytes, workBytes } = cpuNeeds(worker, model);
  const room = machineBytes() - gatewayBytes - weightBytes - workBytes;
  return clampedKv(kvPartOf(room, worker, model.config), worker, model.config);
}

function clampedKv(roomBytes: number, worker: WorkerConfig, config: ModelConfig): number {
  return Math.min(usualKvBytes, Math.max(leastKvBytes(worker, config), Math.floor(roomBytes / mib) * mib));
}

/** The bytes of the room that are for KV: sparse decoding keeps shadows of K in the rest. */
function kvPartOf(roomBytes: number, worker: WorkerConfig, config: ModelConfig): number {
  return roomBytes / (1 + shadowPart(worker, config));
}

/** Bytes of shadows for each byte of KV. */
function shadowPart(
  { sparse, kvType }: WorkerConfig,
  { layerCount, kvHeadCount: kvHeads, headDim }: ModelConfig,
): number {
  if (sparse === undefined) return 0;
  const tokenBytes = kvBytesOf(kvType, 2 * layerCount * kvHeads * headDim);
  return shadowBytesOf({ layerCount, kvHeads, headDim }, 1) / tokenBytes;
}

function planCpu(worker: WorkerConfig, model: PlannedModel, machine: number, workerCount: number): MemoryPlan {
  const needs = cpuNeeds(worker, model);
  const least = leastKvBytes(worker, model.config);
  const share = (count: number): number => Math.max(0, (machine - gatewayBytes) / count);
  const memoryBytes = share(workerCount);
  const room = kvPartOf(memoryBytes - needs.weightBytes - needs.workBytes, worker, model.config);
  const kvBytes = worker.kvBytes ?? clampedKv(room, worker, model.config);
  const shadowBytes = kvBytes * shadowPart(worker, model.config);
  if (kvBytes <= room) return { ...needs, kvBytes, shadowBytes, memoryBytes };
  const ways: readonly Way[] = [worker.weightMode, "int8" as const].flatMap((weightMode) => {
    const mode = weightMode === worker.weightMode ? [] : ["SPANGATE_WEIGHTS=int8"];
    const { weightBytes, workBytes } = cpuNeeds({ ...worker, weightMode }, model);
    const roomOf = (count: number) => kvPartOf(share(count) - weightBytes - workBytes, worker, model.config);
    return [
      { settings: mode, room: roomOf(workerCount) },
      { settings: ["SPANGATE_DEVICES=cpu", ...mode], room: roomOf(1) },
    ];
  });
  const fits = fittingSettings(ways, worker.kvBytes, least);
  const workers = workerCount === 1 ? "" : ` for each of ${workerCount} workers`;
  const has = `the machine has ${sizeText(memoryBytes)}${workers}`;
  const taken = `${sizeText(needs.weightBytes + needs.workBytes)} (${sizeText(needs.weightBytes)} for weights)`;
  if (room >= least) {
    const what = `is ${sizeText(kvBytes)} beside a model that takes ${taken}`;
    throw new WorkerSettingError("SPANGATE_KV_BYTES", `${what}, and ${has}; ${remedy(fits)}`);
  }
  throw new WorkerSettingError("SPANGATE_MODEL", `is a model that takes ${taken}, and ${has}; ${remedy(fits)}`);
}

/** Settings, and the room that they leave for KV. */
interface Way {
  readonly settings: readonly string[];
  readonly room: number;
}

/** The first way that has room for KV; a pool that is too large for it is made smaller. */
function fittingSettings(ways: readonly Way[], kvBytes: number | undefined, least: number): string | undefined {
  const way = ways.find(({ room }) => room >= least);
  if (way === undefined) return undefined;
  const pool =
    kvBytes === undefined || kvBytes <= way.room ? [] : [`SPANGATE_KV_BYTES=${Math.floor(way.room / mib)}MiB`];
  return [...way.settings, ...pool].join(" with ");
}

const remedy = (settings: string | undefined): string =>
  settings === undefined ? "no setting makes it fit: take a smaller model, or more memory" : `${settings} would fit`;

type Needs = Pick<MemoryPlan, "storedBytes" | "weightBytes" | "workBytes">;

/** A worker without a model, with its libraries; measured at 60 MiB. */
const processBytes = 64 * mib;

function cpuNeeds(worker: WorkerConfig, { config, weights }: PlannedModel): Needs {
  const isOwn = ownProducts(worker);
  const storedBytes = weights.files.reduce((sum, file) => sum + statSync(file).size, 0);
  let [weightBytes, largest] = [0, 0];
  for (const name of tensorLayout(config).keys()) {
    const tensor = weights.info(name);
    const numbers = tensor.shape.reduce((product, extent) => product * extent);
    largest = Math.max(largest, numbers);
    const isTable = name === "model.embed_tokens.weight";
    // Rows of the table are read as they are stored; a tied head is another copy, packed for products.
    if (isTable) weightBytes += numbers * (tensor.dtype === "F32" || tensor.scales !== undefined ? 4 : 2);
    if (isTable && !config.tiedEmbeddings) continue;
    const isPacked = isOwn || /\.mlp\.(?:experts|router)\b/.test(name);
    weightBytes += isPacked ? packedBytes(tensor, worker.weightMode) : numbers * onnxBytes[worker.weightMode];
  }
  const { maxRows, maxLogitRows } = { maxRows: worker.stepTokens, maxLogitRows: worker.maxRunningRequests };
  const stepBytes = 4 * (maxRows * rowNumbers(config) + maxLogitRows * config.vocabSize);
  // The largest tensor is widened to float32 while it is packed, and the one before it may still be garbage.
  return { storedBytes, weightBytes, workBytes: processBytes + stepBytes + 2 * 4 * largest };
}

/** Bytes of a number in a graph of onnxruntime's, with what it packs anew: 1.31 GiB and 0.31 GiB more than the numbers of a 0.6B. */
const onnxBytes = { float32: 5.6, int8: 1.75 } as const;

/** As kernels/cpu/products.h packs a matrix: inputs in tiles of 32 numbers, in mx4 and e4m3 with a scale, or of 64 with scales and sums. */
function packedBytes(tensor: StoredTensor, mode: WorkerConfig["weightMode"]): number {
  const [outputs, inputs] = tensor.shape;
  if (inputs === undefined) return 4 * outputs;
  const { form, parts = 1 } = packedForm([tensor], mode);
  const tiles = Math.ceil(inputs / (form === "int8" ? 64 : 32));
  const outputBytes = {
    b16: tiles * 64 * parts,
    int8: tiles * 64 + Math.ceil(tiles / 4) * 8,
    mx4: tiles * (16 + 1),
    e4m3: tiles * (32 + 4),
  };
  return paddedOutputs(outputs) * outputBytes[form];
}

/** Numbers that a row of a step has in buffers. */
function rowNumbers({ hiddenSize, headCount, kvHeadCount, headDim, ffnSize, experts }: ModelConfig): number {
  const attention = (2 * headCount + 2 * kvHeadCount) * headDim;
  return 3 * hiddenSize + attention + Math.max(ffnSize, (experts?.perToken ?? 0) * (experts?.ffnSize ?? 0));
}

/** Whether our own products multiply; the worker chooses by the instruction set that its kernels find. */
function ownProducts({ dense, isa }: WorkerConfig): boolean {
  if (dense !== undefined) return dense === "native";
  if (isa !== undefined) return isa === "amx" || isa === "avx512";
  try {
    return /\bavx512bw\b/.test(readFileSync("/proc/cpuinfo", "utf8"));
  } catch {
    return false;
  }
}

function leastKvBytes({ kvType, blockTokens }: WorkerConfig, config: ModelConfig): number {
  const tokens = Math.max(blockTokens, Math.min(leastKvTokens, config.contextTokens));
  return kvBytesOf(kvType, tokens * 2 * config.layerCount * config.kvHeadCount * config.headDim);
}

/** What a GPU keeps for its driver and for graphs (cuda/parts.ts). */
const gpuReserveBytes = gib;
/** Rows of a step that are tried where the usual ones do not fit. */
const smallerSteps = [4_096, 2_048, 1_024, 512];

async function planGpu(worker: WorkerConfig, model: PlannedModel, memoryBytes: number, index: number) {
  const { storedBytes } = cpuNeeds(worker, model);
  const { weightBytes, workBytes } = await countGpu(worker, model);
  const inBfloat16 = { ...worker, kvType: "float16" as const };
  const least = leastKvBytes(inBfloat16, model.config);
  const shadows = shadowPart(inBfloat16, model.config);
  const room = kvPartOf(memoryBytes - weightBytes - workBytes, inBfloat16, model.config);
  if (room >= least) {
    const kvBytes = Math.min(worker.kvBytes ?? room, room);
    return { storedBytes, weightBytes, workBytes, kvBytes, shadowBytes: kvBytes * shadows, memoryBytes };
  }
  const leastBytes = least * (1 + shadows);
  const fits = await fittingOnGpu(worker, model, least, memoryBytes);
  const needed = `takes ${sizeText(weightBytes + workBytes + leastBytes)} (${sizeText(weightBytes)} for weights)`;
  const what = `is a model that ${needed}, and cuda:${index} has ${sizeText(memoryBytes)}`;
  throw new WorkerSettingError("SPANGATE_MODEL", `${what}; ${remedy(fits)}`);
}

/** The first setting with which the model and so much KV have room. */
async function fittingOnGpu(worker: WorkerConfig, model: PlannedModel, least: number, memoryBytes: number) {
  const steps = smallerSteps.filter((count) => count < worker.stepTokens && count >= worker.maxRunningRequests);
  const ways = steps.map((stepTokens) => [`SPANGATE_STEP_TOKENS=${stepTokens}`, { ...worker, stepTokens }] as const);
  const dense = ["SPANGATE_SPARSE=off", { ...worker, sparse: undefined }] as const;
  for (const [setting, changed] of worker.sparse ? [...ways, dense] : ways) {
    const { weightBytes, workBytes } = await countGpu(changed, model);
    const kvBytes = least * (1 + shadowPart({ ...changed, kvType: "float16" }, model.config));
    if (weightBytes + workBytes + kvBytes <= memoryBytes) return setting;
  }
  return undefined;
}

/** What the backend allocates on a device beside its pool and the pool's shadows. */
async function countGpu(worker: WorkerConfig, model: PlannedModel): Promise<Omit<Needs, "storedBytes">> {
  // Loaded for GPUs alone.
  const { makeParts } = await import("./backend/cuda/parts.ts");
  const { device, counted } = countingDevice();
  const { blockTokens, stepTokens: maxRows, maxRunningRequests: maxLogitRows } = worker;
  const reader: CudaBackendOptions["reader"] = { upload: () => Promise.resolve() };
  const kvElement = worker.kvType === "mx8" ? ("mx8" as const) : ("bfloat16" as const);
  const { weights, pool, sparse } = await makeParts(device, model, {
    ...{ kvBytes: leastKvBytes(worker, model.config), blockTokens, kvElement, maxRows, maxLogitRows, reader },
    sparse: sparseOptionsOf(worker),
  });
  const weightBytes = weights.byteLength;
  const blockBytes = pool.memory.byteLength + (sparse?.shadows.memory.byteLength ?? 0);
  return { weightBytes, workBytes: counted() - weightBytes - blockBytes + gpuReserveBytes };
}

/** A device of the largest kind that has as much memory as is asked for, and does nothing. */
function countingDevice(): { readonly device: ComputeDevice; readonly counted: () => number } {
  let bytes = 0;
  const allocate = (name: string, byteLength: number): DeviceBuffer => {
    bytes += byteLength;
    return new DeviceBuffer(name, 0, byteLength);
  };
  const nothing = (): void => undefined;
  const parts = {
    ...{ hardware: "any", multiprocessorCount: 160, maxSharedBytesPerBlock: 227 * 1024, hasWarpgroups: true },
    multipliesE4m3: true,
    ...{ allocate, freeBytes: () => 2 ** 50, allocateHost: (_: string, count: number) => new Uint8Array(count) },
    ...{
      prepare: () => nothing,
      allowSharedBytes: nothing,
      packClusters: nothing,
      copyIn: nothing,
      copyOut: nothing,
      fill: nothing,
    },
    putTensorMap: () => allocate("tensor map", 128),
  };
  // Making the parts of a backend calls nothing else of a device: what did would fail here at every start.
  return { device: parts as Partial<ComputeDevice> as ComputeDevice, counted: () => bytes };
}
