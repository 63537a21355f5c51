/** The backend that the configuration names, with the model it serves. */
import type { Backend } from "./backend/backend.ts";
import { assertHeadFits, assertSparseFits, sparseOptionsOf, type WorkerConfig, WorkerSettingError } from "./config.ts";
import { usualCpuKvBytes } from "./memory-plan.ts";
import { type LoadedModel, loadModel, readModelConfig } from "./model/load.ts";

export interface OpenBackend {
  readonly backend: Backend;
  readonly model: LoadedModel;
  readonly numericMode: string;
  /** Bytes of KV in memory now, where the backend can tell better than by counting blocks. */
  readonly residentKvBytes?: () => number;
}

/** K that stands at other positions is other KV: the mode has a name of its own. */
function modeOf(arithmetic: string, { kvPositions }: WorkerConfig): string {
  return kvPositions === "deferred" ? arithmetic : `${arithmetic}/kv-${kvPositions}`;
}

/** @throws ModelError, CudaUnavailable or what the backend says, each in one sentence */
export function openBackend(config: WorkerConfig): Promise<OpenBackend> {
  return config.cudaIndex === undefined ? openCpu(config) : openCuda(config, config.cudaIndex);
}

// Each backend is loaded when it is wanted: one needs the CPU's kernels, the other a driver.
async function openCpu(config: WorkerConfig): Promise<OpenBackend> {
  const { CpuBackend, numericMode, openArithmetic } = await import("./backend/cpu/cpu-backend.ts");
  // What multiplies is part of the model's digest, so it has to be known before the model is loaded.
  const { kernels, dense } = await openArithmetic(config);
  const mode = modeOf(numericMode({ ...config, dense }), config);
  const model = loadModel(config.modelFolder, mode);
  assertHeadFits(config, model.config.headDim);
  assertSparseFits(config, model.config);
  const kvBytes = config.kvBytes ?? usualCpuKvBytes({ ...config, dense }, model);
  const { stepTokens: maxRows, maxRunningRequests: maxLogitRows } = config;
  const sparse = sparseOptionsOf(config);
  const options = { ...config, dense, kvBytes, maxRows, maxLogitRows, kernels, sparse };
  const backend = await CpuBackend.open(model, options);
  if (sparse !== undefined && backend.shape.sparse === undefined) {
    throw new WorkerSettingError("SPANGATE_SPARSE", `${backend.name} reads all of a context; leave it out`);
  }
  return { backend, model, numericMode: mode, residentKvBytes: () => backend.residentKvBytes() };
}

async function openCuda(config: WorkerConfig, index: number): Promise<OpenBackend> {
  const { CudaBackend, numericModeOf } = await import("./backend/cuda/cuda-backend.ts");
  const { openDevice } = await import("./backend/cuda/open-device.ts");
  const isMx8 = config.kvType === "mx8";
  const kvElement = isMx8 ? ("mx8" as const) : ("bfloat16" as const);
  const isE4m3 = readModelConfig(config.modelFolder).quantization?.dtype === "F8_E4M3";
  const mode = modeOf(numericModeOf(isE4m3, isMx8), config);
  const model = loadModel(config.modelFolder, mode);
  assertHeadFits(config, model.config.headDim);
  assertSparseFits(config, model.config);
  const { headDim, scoreCap } = model.config;
  const device = await openDevice({ index, headDim, scoreCap, kvElement });
  const { kvBytes, hostKvBytes, blockTokens, stepTokens: maxRows, maxRunningRequests: maxLogitRows } = config;
  const sparse = sparseOptionsOf(config);
  const options = { kvBytes, hostKvBytes, blockTokens, kvElement, maxRows, maxLogitRows, sparse };
  const backend = await CudaBackend.open(device, model, options);
  // 0.2 s and 19 MB of device memory for an 8B model on an H200, that the first requests would wait for otherwise.
  await backend.captureDecodes();
  return { backend, model, numericMode: mode };
}
