/** Environments of the processes that the gateway starts. */
import { type Config, settingNames } from "../config.ts";
import { adminKeyFile } from "./secret-settings.ts";

/** Settings of the worker that the gateway passes on when they are set, without reading them. */
const passedOn = [
  "PATH",
  "HOME",
  "TMPDIR",
  "LD_LIBRARY_PATH",
  "CUDA_VISIBLE_DEVICES",
  "SPANGATE_BLOCK_TOKENS",
  "SPANGATE_DEBUG",
  "SPANGATE_ISA",
  "SPANGATE_KV_POSITIONS",
  "SPANGATE_KV_TYPE",
  "SPANGATE_MAX_PREFILL_BESIDE_DECODE",
  "SPANGATE_MAX_RUNNING",
  "SPANGATE_MAX_WAITING",
  "SPANGATE_STEP_TOKENS",
];
/** Settings of the command line client. */
const clientSettings = ["SPANGATE_URL", "SPANGATE_API_KEY"];

/**
 * Names in the environment that begin with SPANGATE_ and are no setting. A misspelled setting would otherwise be
 * ignored silently.
 */
export function unknownSettings(env: Readonly<Record<string, string | undefined>>): readonly string[] {
  const known = new Set([...settingNames, ...passedOn, ...clientSettings, adminKeyFile]);
  return Object.keys(env).filter((name) => name.startsWith("SPANGATE_") && !known.has(name));
}

/** The whole environment of the embedder process. */
export function embedderEnvironment(
  config: Config,
  env: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const result = workerEnvironment(config, env, "cpu");
  if (config.embeddingModelDir !== undefined) result.SPANGATE_EMBEDDING_MODEL = config.embeddingModelDir;
  return result;
}

/** The whole environment of a worker process: only what the worker needs, and above all no credential. */
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
    if (passedOn.includes(name)) result[name] = value;
  }
  return result;
}
