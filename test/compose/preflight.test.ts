/** A start that cannot be is told of in one sentence with a remedy, before anything is made. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { tinyConfig, writeModelFolder } from "../model/folder.ts";
import { hollowModel } from "../model/hollow-folder.ts";
import { repositoryRoot } from "../support/import-graph.ts";
import { writeTinyCrossEncoder } from "../support/tiny-onnx.ts";

const root = mkdtempSync(join(tmpdir(), "spangate preflight "));
const demo = join(repositoryRoot, "worker", "model", "demo");
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** A folder with the demo model, whose configuration has these fields as well. */
function modelFolder(name: string, fields: object): string {
  const folder = join(root, name);
  mkdirSync(folder, { recursive: true });
  for (const file of ["tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"])
    symlinkSync(join(demo, file), join(folder, file));
  for (const part of ["1", "2"]) {
    const file = `model-0000${part}-of-00002.safetensors`;
    symlinkSync(join(demo, file), join(folder, file));
  }
  const config = JSON.parse(readFileSync(join(demo, "config.json"), "utf8"));
  writeFileSync(join(folder, "config.json"), JSON.stringify({ ...config, ...fields }));
  return folder;
}

/** Starts the server as its program, as a stranger would; ends it once it listens. */
async function start(env: Readonly<Record<string, string>>, cwd = root) {
  const dataDir = join(root, `data-${crypto.randomUUID()}`);
  const child = Bun.spawn([process.execPath, join(repositoryRoot, "gateway", "main.ts")], {
    cwd,
    env: { PATH: process.env.PATH ?? "", SPANGATE_PORT: "0", SPANGATE_LOG: "warn", SPANGATE_DATA: dataDir, ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const timer = setTimeout(() => child.kill("SIGKILL"), 20_000);
  const [output, errors, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  clearTimeout(timer);
  return { output, errors, code, isDataMade: existsSync(dataDir) };
}

describe("nothing is made when the start cannot be", () => {
  beforeAll(() => {
    writeFileSync(join(root, "qwen.Q4.gguf"), "GGUF");
    mkdirSync(join(root, "only-gguf"));
    writeFileSync(join(root, "only-gguf", "a.gguf"), "GGUF");
    mkdirSync(join(root, "models--Qwen--Qwen3-8B", "snapshots", "9c92"), { recursive: true });
    modelFolder("gptq", { quantization_config: { quant_method: "gptq", bits: 4, group_size: 128 } });
    modelFolder("mlx", { quantization: { bits: 4 } });
    writeTinyCrossEncoder(join(root, "two-labels"), { whale: [1] }, { columns: 2 });
    cpSync(writeModelFolder(tinyConfig), join(root, "narrow"), { recursive: true });
    modelFolder("strange", { architectures: ["MambaForCausalLM"] });
    const wide = { hidden_size: 16_384, num_attention_heads: 128, num_key_value_heads: 128, head_dim: 128 };
    symlinkSync(
      hollowModel({ ...wide, num_hidden_layers: 512, intermediate_size: 65_536 }),
      join(root, "four-terabytes"),
    );
  });

  test.each([
    [{ SPANGATE_MODEL: "qwen.Q4.gguf" }, /^spangate: SPANGATE_MODEL names a GGUF file \(qwen\.Q4\.gguf\).*safetensors/],
    [{ SPANGATE_MODEL: "no/such/file.gguf" }, /^spangate: SPANGATE_MODEL names a GGUF file/],
    [{ SPANGATE_MODEL: "only-gguf" }, /^spangate: SPANGATE_MODEL names a GGUF file \(.*a\.gguf\)/],
    [
      { SPANGATE_MODEL: "./nowhere" },
      /^spangate: SPANGATE_MODEL names a folder that does not exist \(.*nowhere\): it takes/,
    ],
    [
      { SPANGATE_MODEL: "Qwen/Qwen3-8B" },
      /^spangate: SPANGATE_MODEL is "Qwen\/Qwen3-8B": there is no such folder.*"spangate pull Qwen\/Qwen3-8B" loads it/,
    ],
    [{ SPANGATE_MODEL: "models--Qwen--Qwen3-8B" }, /one level deeper: .*snapshots\/9c92$/m],
    [{ SPANGATE_EMBEDDING_MODEL: "BAAI/bge-m3" }, /^spangate: SPANGATE_EMBEDDING_MODEL is "BAAI\/bge-m3"/],
    [
      { SPANGATE_RERANK_MODEL: "nowhere" },
      /^spangate: SPANGATE_RERANK_MODEL names a folder that does not exist \(.*nowhere\): it takes a folder with a cross-encoder/,
    ],
    [{ SPANGATE_RERANK_MODEL: "two-labels" }, /^spangate: .*model\.onnx: its output has the shape \[2, 2\].*one logit/],
    [
      { SPANGATE_MODEL: "gptq" },
      /^spangate: .*config\.json: this quantisation is not supported \("quantization_config": gptq, 4 bits\); .*take the model's own folder/,
    ],
    [{ SPANGATE_MODEL: "mlx" }, /this quantisation is not supported \("quantization": 4 bits\)/],
    [{ SPANGATE_MODEL: "strange" }, /architecture "MambaForCausalLM" is not supported/],
    [
      { SPANGATE_DEVICES: "cuda:0", SPANGATE_WEIGHTS: "int8" },
      /^spangate: SPANGATE_WEIGHTS int8 is for the CPU: cuda:0 takes weights in bfloat16/,
    ],
    [
      { SPANGATE_DEVICES: "cuda:0", SPANGATE_KV_TYPE: "float16" },
      /^spangate: SPANGATE_KV_TYPE float16 is for the CPU: cuda:0 holds KV in bfloat16/,
    ],
    [
      { SPANGATE_DEVICES: "cuda:0", SPANGATE_SPARSE: "ahead" },
      /^spangate: SPANGATE_SPARSE ahead is for the CPU: on cuda:0 a row chooses by its own query alone; take now/,
    ],
    [{ SPANGATE_DEVICES: "cuda:77" }, /leave SPANGATE_DEVICES out: the CPU is the default/],
    [{ SPANGATE_KV_TYPE: "int4" }, /^spangate: SPANGATE_KV_TYPE must be "float32" or "float16"/],
    [
      { SPANGATE_KV_CODEC: "mx8", SPANGATE_MODEL: "narrow" },
      /^spangate: SPANGATE_KV_CODEC mx8 takes heads of a multiple of 32 dimensions, and the model's have 16; leave it out/,
    ],
    [{ SPANGATE_STEP_TOKENS: "32" }, /^spangate: SPANGATE_STEP_TOKENS 32 is below SPANGATE_MAX_RUNNING/],
    [
      { SPANGATE_MODEL: "four-terabytes" },
      /^spangate: SPANGATE_MODEL is a model that takes \d+\.\d GiB \(4096\.\d GiB for weights\), and the machine has .*; no setting makes it fit/,
    ],
    [
      { SPANGATE_KV_BYTES: "4TB" },
      /^spangate: SPANGATE_KV_BYTES is 3725\.3 GiB beside a model that takes .*; SPANGATE_KV_BYTES=\d+MiB would fit/,
    ],
    [{ SPANGATE_PORT: "http" }, /^spangate: SPANGATE_PORT must be a whole number/],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: "nowhere" }, /^spangate: OTEL_EXPORTER_OTLP_ENDPOINT must be/],
  ])("%j", async (env, sentence) => {
    const { output, errors, code, isDataMade } = await start(env);
    expect(errors).toMatch(sentence);
    expect(errors.trim().split("\n")).toHaveLength(1);
    expect({ output, code, isDataMade }).toEqual({ output: "", code: 1, isDataMade: false });
  });
});
