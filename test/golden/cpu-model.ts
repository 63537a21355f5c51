/** A golden folder on the CPU backend. */
import { CpuBackend, type CpuBackendOptions, numericMode } from "../../worker/backend/cpu/cpu-backend.ts";
import type { EngineOptions } from "../../worker/engine/limits.ts";
import { loadModel } from "../../worker/model/load.ts";
import { GoldenModel } from "./golden-model.ts";

/** @param products what multiplies, how much KV there is and where K stands, where it is not the default */
export async function openOnCpu(
  folder: string,
  weightMode: "float32" | "int8",
  {
    positions,
    ...products
  }: Partial<Pick<CpuBackendOptions, "dense" | "isa" | "kernels" | "kvBytes"> & Pick<EngineOptions, "positions">> = {},
): Promise<GoldenModel> {
  const fixed = { weightMode, kvType: "float32", kvBytes: 64 << 20, blockTokens: 16, threadCount: 2 } as const;
  const options = { ...fixed, ...products };
  const model = loadModel(folder, numericMode(options));
  const backend = await CpuBackend.open(model, { ...options, maxRows: 512, maxLogitRows: 64 });
  return new GoldenModel(backend, model.digest, positions);
}
