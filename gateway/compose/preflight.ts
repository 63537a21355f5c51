/** What a start needs, looked at before anything is made: no data folder, no key and no process stays of a start that cannot be. */
import { programPath } from "../../places/places.ts";
import {
  assertHeadFits,
  assertLayersRun,
  parseWorkerConfig,
  type WorkerConfig,
  WorkerSettingError,
} from "../../worker/config.ts";
import { cpuOnlyPart, type ModelConfig, readModel } from "../../worker/model/load.ts";
import { modelFolderProblem } from "../../worker/model/model-folder.ts";
import { type Config, SettingError } from "../config.ts";
import { openEmbedding } from "../embedding/embedding-service.ts";
import { workerEnvironment } from "../process/child-environment.ts";
import { traceSettings } from "../telemetry/settings.ts";
import { openText } from "./text.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/** @throws SettingError or Error in one sentence for the operator */
export async function checkStart(config: Config, env: Environment): Promise<void> {
  checkSettings(config, env);
  checkModels(config, env);
  await checkDevices(config, env);
}

/** @throws SettingError or Error in one sentence for the operator */
export function checkSettings(config: Config, env: Environment): void {
  traceSettings(env);
  lookAtWorkers(config, env, () => undefined);
}

/** Looks at what each worker will be told. @throws SettingError for what is wrong with it */
function lookAtWorkers(config: Config, env: Environment, look: (worker: WorkerConfig) => void): void {
  for (const device of config.devices) {
    try {
      look(parseWorkerConfig(workerEnvironment(config, env, device)));
    } catch (error) {
      if (error instanceof WorkerSettingError) throw new SettingError(error.variable, error.problem);
      throw error;
    }
  }
}

/** @throws SettingError or ModelError in one sentence for the operator */
export function checkModels(config: Config, env: Environment): void {
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
  checkModelFits(config, env, readModel(config.modelDir).config);
}

/** Whether the workers can run such a model at all. @throws SettingError */
export function checkModelFits(config: Config, env: Environment, model: ModelConfig): void {
  lookAtWorkers(config, env, (worker) => {
    assertHeadFits(worker, model.headDim);
    assertLayersRun(worker, cpuOnlyPart(model));
  });
}

/** Asks the driver for the devices that the workers will take. @throws Error in one sentence for the operator */
export async function checkDevices(config: Config, env: Environment): Promise<void> {
  const [first, ...others] = config.devices.filter((name) => name !== "cpu");
  if (first === undefined) return;
  const indices = [first, ...others].map((name) => name.slice("cuda:".length));
  const child = Bun.spawn([process.execPath, programPath("check-device"), ...indices], {
    env: workerEnvironment(config, env, first),
    stdio: ["ignore", "pipe", 2],
  });
  const [said, exitCode] = await Promise.all([new Response(child.stdout).text(), child.exited]);
  if (exitCode === 0) return;
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
