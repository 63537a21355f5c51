/** Environments of the processes that the gateway starts. */
import type { Config } from "../config.ts";
import { workerSettings } from "../settings/passed-settings.ts";
import { settings } from "../settings/table.ts";

/** What the gateway passes on to workers when it is set, without reading it. */
const passedOn = [
  "PATH",
  "HOME",
  "XDG_CACHE_HOME",
  // How this Bun was told not to read the settings of the folder that it was started in.
  "BUN_OPTIONS",
  "TMPDIR",
  "LD_LIBRARY_PATH",
  "CUDA_VISIBLE_DEVICES",
  "SPANGATE_MAX_RUNNING",
  ...Object.keys(workerSettings),
];

/**
 * Names in the environment that begin with SPANGATE_ and are no setting. A misspelled setting would otherwise be
 * ignored silently.
 */
export function unknownSettings(env: Readonly<Record<string, string | undefined>>): readonly string[] {
  const known = new Set(settings.map(([name]) => name));
  return Object.keys(env).filter((name) => name.startsWith("SPANGATE_") && !known.has(name));
}

/** The whole environment of the embedder process. */
export function embedderEnvironment(
  config: Config,
  env: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const result = workerEnvironment(config, env, "cpu");
  if (config.embeddingModelDir !== undefined) result.SPANGATE_EMBEDDING_MODEL = config.embeddingModelDir;
  if (config.rerankModelDir !== undefined) result.SPANGATE_RERANK_MODEL = config.rerankModelDir;
  return result;
}

/** What programs that speak TLS are told of certificates and proxies. */
const forConnections = [
  ...["NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR"],
  ...["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"],
];

/** The whole environment of the process that speaks to the bucket: it gets its keys otherwise. */
export function moverEnvironment(env: Readonly<Record<string, string | undefined>>): Record<string, string> {
  return Object.fromEntries(forConnections.flatMap((name) => (env[name] ? [[name, env[name]]] : [])));
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
    // Released builds of onnxruntime send usage data to their maker unless this is set before they are loaded.
    ORT_DISABLE_TELEMETRY: "1",
  };
  if (config.modelName !== undefined) result.SPANGATE_MODEL_NAME = config.modelName;
  if (config.kvBytes !== undefined) result.SPANGATE_KV_BYTES = String(config.kvBytes);
  if (config.kvHostBytes > 0) result.SPANGATE_KV_HOST_BYTES = String(config.kvHostBytes);
  for (const [name, value] of Object.entries(env)) {
    if (value === undefined || value === "") continue;
    if (passedOn.includes(name)) result[name] = value;
  }
  return result;
}
