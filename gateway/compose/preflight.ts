/** What a start needs, looked at before anything is made: no data folder, no key and no process stays of a start that cannot be. */
import { z } from "zod";
import { programPath } from "../../places/places.ts";
import {
  assertHeadFits,
  assertSparseFits,
  parseWorkerConfig,
  type WorkerConfig,
  WorkerSettingError,
} from "../../worker/config.ts";
import { machineBytes, memoryText, type PlannedModel, planMemory } from "../../worker/memory-plan.ts";
import { type ModelConfig, readModel } from "../../worker/model/load.ts";
import { modelFolderProblem } from "../../worker/model/model-folder.ts";
import { type Config, SettingError } from "../config.ts";
import { openEmbedding } from "../embedding/embedding-service.ts";
import { workerEnvironment } from "../process/child-environment.ts";
import { traceSettings } from "../telemetry/settings.ts";
import { openText } from "./text.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/** @returns what workers will take of memory, a line for each kind of device. @throws SettingError or Error in one sentence for the operator */
export async function checkStart(config: Config, env: Environment): Promise<readonly string[]> {
  checkSettings(config, env);
  const model = checkModels(config, env);
  const plans = await checkMemory(config, env, model, await checkDevices(config, env));
  return plans.map((plan) => `memory of ${plan}`);
}

/** @throws SettingError or Error in one sentence for the operator */
export function checkSettings(config: Config, env: Environment): void {
  traceSettings(env);
  lookAtWorkers(config, env, () => undefined);
}

type DeviceMemory = ReadonlyMap<string, number>;

/** @returns a line for each device. @throws SettingError naming the setting that would fit */
export async function checkMemory(
  config: Config,
  env: Environment,
  model: PlannedModel,
  gpus: DeviceMemory,
): Promise<readonly string[]> {
  const workers = config.devices.filter((name) => name === "cpu").length;
  const devices = [...new Set(config.devices)];
  const planned = devices.map(async (device) => {
    const worker = parseWorkerConfig(workerEnvironment(config, env, device));
    const plan = await planMemory(worker, model, gpus.get(device) ?? machineBytes(), Math.max(1, workers));
    return `${workers > 1 ? `each of ${workers} workers on the CPU` : device}: ${memoryText(plan)}`;
  });
  try {
    return await Promise.all(planned);
  } catch (error) {
    throw asSettingError(error);
  }
}

const asSettingError = (error: unknown): unknown =>
  error instanceof WorkerSettingError ? new SettingError(error.variable, error.problem) : error;

/** Looks at what each worker will be told. @throws SettingError for what is wrong with it */
function lookAtWorkers(config: Config, env: Environment, look: (worker: WorkerConfig) => void): void {
  for (const device of config.devices) {
    try {
      look(parseWorkerConfig(workerEnvironment(config, env, device)));
    } catch (error) {
      throw asSettingError(error);
    }
  }
}

/** @returns the language model, without its weights. @throws SettingError or ModelError in one sentence for the operator */
export function checkModels(config: Config, env: Environment): PlannedModel {
  const folders = [
    ["SPANGATE_MODEL", "language"],
    ["SPANGATE_EMBEDDING_MODEL", "embedding"],
    ["SPANGATE_RERANK_MODEL", "rerank"],
  ] as const;
  for (const [variable, kind] of folders) {
    const given = env[variable];
    const problem = given ? modelFolderProblem(given, kind) : undefined;
    if (problem !== undefined) throw new SettingError(variable, problem);
  }
  const model = readModel(config.modelDir);
  checkModelFits(config, env, model.config);
  return model;
}

/** Whether the workers can run such a model at all. @throws SettingError */
export function checkModelFits(config: Config, env: Environment, model: ModelConfig): void {
  lookAtWorkers(config, env, (worker) => {
    assertHeadFits(worker, model.headDim);
    assertSparseFits(worker, model);
  });
}

/**
 * Asks the driver for the devices that the workers will take.
 * @returns the bytes of memory of each GPU
 * @throws Error in one sentence for the operator
 */
export async function checkDevices(config: Config, env: Environment): Promise<DeviceMemory> {
  const [first, ...others] = config.devices.filter((name) => name !== "cpu");
  if (first === undefined) return new Map();
  const indices = [first, ...others].map((name) => name.slice("cuda:".length));
  const child = Bun.spawn([process.execPath, programPath("check-device"), ...indices], {
    env: workerEnvironment(config, env, first),
    stdio: ["ignore", "pipe", 2],
  });
  const [said, exitCode] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  if (exitCode === 0) {
    const bytes = z.array(z.number()).parse(JSON.parse(said));
    return new Map([first, ...others].map((name, i) => [name, bytes[i] ?? 0]));
  }
  const why = said || `asking the driver ended with exit code ${exitCode}`;
  throw new Error(`${why}; without an NVIDIA GPU, leave SPANGATE_DEVICES out: the CPU is the default`);
}

/** Opens the models that searches find and score with, and has them read a text. @returns their folders, for the operator */
export async function trySearchModels(config: Config, env: Environment): Promise<string> {
  const { embeddingModelDir, rerankModelDir } = config;
  if (embeddingModelDir === undefined && rerankModelDir === undefined) return "none is set";
  const embedding = openEmbedding(config, env, openText(config).tokenizer, () => undefined);
  try {
    if (embeddingModelDir !== undefined) await embedding.embed(["A text."], "document");
    if (rerankModelDir !== undefined) await embedding.rerank("A question?", ["A text."]);
    return [embeddingModelDir, rerankModelDir].filter((folder) => folder !== undefined).join(", ");
  } finally {
    await embedding.stop();
  }
}
