/** Folders of models: what is wrong with a path that is none, and what a model is called by its folder. */
import { existsSync, readdirSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";

/** What has to lie in the folder, by what the model is for. */
const layouts = {
  language: "a folder in the Hugging Face layout (config.json, *.safetensors, tokenizer.json)",
  embedding: "a folder with a sentence-embedding model (model.onnx, config.json, tokenizer.json)",
  rerank: "a folder with a cross-encoder (model.onnx, config.json, tokenizer.json)",
} as const;
/** `Qwen/Qwen3-8B`: an organisation and a name, as the Hugging Face hub has them. */
const hubName = /^[\w-][\w.-]*\/[\w-][\w.-]*$/;

/**
 * What is wrong with a path that should be a model's folder, with a remedy, as it stands after the setting's name.
 * @param given the path as the operator wrote it
 * @param kind what the model is for
 * @returns undefined: it is a folder, and may hold a model
 */
export function modelFolderProblem(given: string, kind: keyof typeof layouts): string | undefined {
  const path = resolve(given);
  const layout = layouts[kind];
  if (!existsSync(path)) {
    if (/\.gguf$/i.test(given)) return ggufProblem(given, layout);
    if (hubName.test(given)) {
      const local = `models/${basename(given)}`;
      return `is "${given}", and there is no such folder here; a model of the Hugging Face hub is loaded first, with "hf download ${given} --local-dir ${local}", and then named by its folder, ${local}`;
    }
    return `names a folder that does not exist (${path}): it takes ${layout}`;
  }
  if (statSync(path).isDirectory()) return cacheRootProblem(path) ?? onlyGgufProblem(path, layout);
  return /\.gguf$/i.test(path) ? ggufProblem(given, layout) : `names a file (${path}): it takes ${layout}`;
}

const ggufProblem = (path: string, layout: string): string =>
  `names a GGUF file (${path}), which is not supported: it takes ${layout}, such as the one that the GGUF file was made from`;

/** The hub's cache keeps a model's files below its folder, one folder for each version. */
function cacheRootProblem(path: string): string | undefined {
  const snapshots = join(path, "snapshots");
  if (!basename(path).startsWith("models--") || !existsSync(snapshots)) return undefined;
  const [version] = readdirSync(snapshots).sort();
  return `names a folder of the hub's cache (${path}), which has the model one level deeper: ${join(snapshots, version ?? "…")}`;
}

function onlyGgufProblem(path: string, layout: string): string | undefined {
  if (existsSync(join(path, "config.json"))) return undefined;
  const gguf = readdirSync(path).find((name) => /\.gguf$/i.test(name));
  return gguf === undefined ? undefined : ggufProblem(join(path, gguf), layout);
}

/** A snapshot of the hub's cache lies in `models--org--name/snapshots/HASH` (huggingface_hub, "Understand caching"). */
const snapshotPath = /(?:^|[\\/])models--([^\\/]+)[\\/]snapshots[\\/][^\\/]+[\\/]*$/;

/** `org/name` for a snapshot of the hub's cache, whose own name is a hash; else the folder's name. */
export function modelNameOf(folder: string): string {
  const path = resolve(folder);
  const [, hubFolder] = snapshotPath.exec(path) ?? [];
  return hubFolder === undefined ? basename(path) : hubFolder.replace("--", "/");
}
