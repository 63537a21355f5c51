/** A hub and an empty cache for each test, and a pull that does not wait. */
import { afterEach, beforeEach } from "bun:test";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { parseHubModel } from "../../gateway/hub/hub-model.ts";
import { hubSettings } from "../../gateway/hub/hub-settings.ts";
import { type PullOptions, pullModel } from "../../gateway/hub/pull.ts";
import { modelId, openHub, type StubHub } from "../support/hub.ts";
import { folderMaker } from "../support/new-folder.ts";

export const newFolder = folderMaker("spangate hub ");
export const pace = { stallMs: 2_000, retryMs: 1 };
export const weights = (letter: string, bytes = 3_000) => new TextEncoder().encode(letter.repeat(bytes));
export const indexOf = (...shards: string[]) =>
  JSON.stringify({ weight_map: Object.fromEntries(shards.map((shard, i) => [`tensor.${i}`, shard])) });
export const bytesOf = (content: string | Uint8Array = "") => Buffer.from(content);

/** A model in two files, and one in a single file. */
export const sharded = {
  "config.json": '{"architectures": ["LlamaForCausalLM"]}',
  "tokenizer.json": '{"model": {}}',
  "tokenizer_config.json": "{}",
  "generation_config.json": '{"temperature": 0.6}',
  "chat_template.jinja": "{{ messages }}",
  "additional_chat_templates/tool_use.jinja": "{{ tools }}",
  "model.safetensors.index.json": indexOf("model-1.safetensors", "model-2.safetensors"),
  "model-1.safetensors": weights("a"),
  "model-2.safetensors": weights("b", 70_000),
};
export const single = { "config.json": "{}", "tokenizer.json": "{}", "model.safetensors": weights("c", 200_000) };

export function modelOf(name = modelId) {
  const model = parseHubModel(name);
  if (model === undefined) throw new Error(`${name} is no model`);
  return model;
}

class Rig {
  cacheDir = "";
  #hub: StubHub | undefined;

  get hub(): StubHub {
    if (this.#hub === undefined) throw new Error("the hub opens before each test");
    return this.#hub;
  }

  /** A hub with the model in two files. */
  async open(): Promise<void> {
    this.#hub = await openHub(sharded);
    this.cacheDir = join(newFolder(), "hub");
  }

  settingsOf(env: Record<string, string> = {}) {
    return hubSettings({ HOME: "/nowhere", HF_ENDPOINT: this.hub.endpoint, HF_HUB_CACHE: this.cacheDir, ...env });
  }

  pull(name = modelId, env: Record<string, string> = {}, options: PullOptions = {}) {
    return pullModel(modelOf(name), this.settingsOf(env), { pace, ...options });
  }

  get modelFolder(): string {
    return join(this.cacheDir, "models--tiny-org--tiny-model");
  }

  blob(name: string): string {
    return join(this.modelFolder, "blobs", name);
  }

  blobs(): string[] {
    const folder = join(this.modelFolder, "blobs");
    return existsSync(folder) ? readdirSync(folder) : [];
  }
}

export function openRig(): Rig {
  const rig = new Rig();
  beforeEach(() => rig.open());
  afterEach(() => rig.hub.stop());
  return rig;
}
