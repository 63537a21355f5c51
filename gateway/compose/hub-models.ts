/**
 * A model that is named as the hub names it, and not by its folder. The server itself takes what the hub's cache has, so
 * that a restart serves what it served before and needs no network; the command line loads it first.
 */
import { existsSync } from "node:fs";
import { readModelConfig } from "../../worker/model/load.ts";
import { parseConfig, SettingError } from "../config.ts";
import { HubError, type HubModel, hubModelText, parseHubModel } from "../hub/hub-model.ts";
import { hubSettings } from "../hub/hub-settings.ts";
import { cachedModel, type Pulled, type PullOptions, pullModel } from "../hub/pull.ts";
import { checkModelFits } from "./preflight.ts";
import { openText } from "./text.ts";

type Environment = Readonly<Record<string, string | undefined>>;

/** The model that SPANGATE_MODEL names, where there is no such folder; else undefined. */
export function namedModel({ SPANGATE_MODEL: given }: Environment): HubModel | undefined {
  return given === undefined || given === "" || existsSync(given) ? undefined : parseHubModel(given);
}

/**
 * The environment with the folder in place of the name.
 * @throws SettingError when the cache does not have the model
 */
export function withCachedModel(env: Environment): Environment {
  const model = namedModel(env);
  if (model === undefined) return env;
  const settings = hubSettings(env);
  const folder = cachedModel(model, settings);
  if (folder !== undefined) return { ...env, SPANGATE_MODEL: folder };
  const name = hubModelText(model);
  const missing = `is "${name}": there is no such folder, and no whole copy of that model in ${settings.cacheDir}`;
  throw new SettingError("SPANGATE_MODEL", `${missing}; "spangate pull ${name}" loads it`);
}

/** The folder of a named model, which is loaded if the cache does not have it. @throws HubError, SettingError, ModelError */
export async function loadNamedModel(model: HubModel, env: Environment, options: PullOptions): Promise<string> {
  const settings = hubSettings(env);
  const folder = cachedModel(model, settings);
  if (folder !== undefined) return folder;
  // What cannot be served here is told of before its weights are loaded.
  const beforeWeights = (there: string): void => {
    const config = parseConfig({ ...env, SPANGATE_MODEL: there });
    checkModelFits(config, env, readModelConfig(there));
    openText(config);
  };
  try {
    return (await pullModel(model, settings, { ...options, beforeWeights })).folder;
  } catch (error) {
    if (!(error instanceof HubError)) throw error;
    throw new HubError(`"${hubModelText(model)}" is no folder here, and as a model of the hub: ${error.message}`);
  }
}

/** Loads what is missing of a model, at the newest commit of its revision. @throws HubError, ModelError */
export function pullNewest(model: HubModel, env: Environment, options: PullOptions): Promise<Pulled> {
  // For any machine: only what no settings would change is looked at.
  return pullModel(model, hubSettings(env), { ...options, beforeWeights: readModelConfig });
}
