/** Environments of the processes that the gateway starts. */
import type { Config } from "./config.ts";

/** Settings of the worker that the gateway passes on when they are set, without reading them. */
const passedOn = [
  "PATH",
  "HOME",
  "TMPDIR",
  "LD_LIBRARY_PATH",
  "CUDA_VISIBLE_DEVICES",
  "SPANGATE_BLOCK_TOKENS",
  "SPANGATE_STEP_TOKENS",
  "SPANGATE_KV_POSITIONS",
];
const passedOnPrefixes = ["SPANGATE_KV_TYPE", "SPANGATE_MAX_", "SPANGATE_ISA", "SPANGATE_KERNEL"];

/** The whole environment of the embedder process. */
export function embedderEnvironment(
  config: Config,
  env: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const result = workerEnvironment(config, env, "cpu");
  if (config.embeddingModelDir !== undefined) result.SPANGATE_EMBEDDING_MODEL = config.embeddingModelDir;
  return result;
}

/** The whole environment of a worker process: nothing of ours that it does not need, no credential above all. */
export function workerEnvironment(
  config: Config,
  env: Readonly<Record<string, string | undefined>>,
  deviceName: string,
): Record<string, string> {
  const result: Record<string, string> = {
    SPANGATE_MODEL: config.modelDir,
    SPANGATE_DEVICE: deviceName,
    SPANGATE_WEIGHTS: config.weights,
    SPANGATE_THREADS: String(config.threadCount),
  };
  if (config.modelName !== undefined) result.SPANGATE_MODEL_NAME = config.modelName;
  if (config.kvBytes !== undefined) result.SPANGATE_KV_BYTES = String(config.kvBytes);
  for (const [name, value] of Object.entries(env)) {
    if (value === undefined || value === "") continue;
    if (passedOn.includes(name) || passedOnPrefixes.some((prefix) => name.startsWith(prefix))) result[name] = value;
  }
  return result;
}
