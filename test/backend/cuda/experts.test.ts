/** Experts through the backend on the emulated device: few rows and many, in each form of their weights. */
import { expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { CudaBackend } from "../../../worker/backend/cuda/cuda-backend.ts";
import { mostTiles } from "../../../worker/backend/cuda/products/expert-space.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { GoldenModel } from "../../golden/golden-model.ts";
import { temporaryFolder, writeModelFolder } from "../../model/folder.ts";
import { forms, quantised, writeQuantised } from "../../model/quantised-folder.ts";
import { Random } from "../../native/random.ts";
import { testSeed } from "../../support/seed.ts";
import { EmulatedDevice } from "./emulated-device.ts";
import { emulatedGroups } from "./emulated-experts.ts";
import { EmulatedMemory } from "./emulated-memory.ts";

// A step on the emulated device is computed in plain loops.
setDefaultTimeout(60_000);

const raw = {
  architectures: ["Qwen3MoeForCausalLM"],
  num_hidden_layers: 2,
  hidden_size: 128,
  num_attention_heads: 2,
  num_key_value_heads: 2,
  head_dim: 64,
  intermediate_size: 256,
  moe_intermediate_size: 128,
  num_experts: 3,
  num_experts_per_tok: 2,
  // Only the second layer has experts, and the first row of it is one that products of one row left.
  mlp_only_layers: [0],
  norm_topk_prob: true,
  vocab_size: 96,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 512,
  rope_theta: 100,
  tie_word_embeddings: true,
};
const mxfp4Folder = join(import.meta.dir, "../../golden/gpt-oss-mxfp4");
/** Rows that are many for three experts, and for those of the golden folder. */
const promptTokens = 128;

/** Logits of a prompt and of a few answers to it, and what was launched. */
async function run(folder: string, hasWarpgroups: boolean) {
  const model = loadModel(folder, "float32");
  const device = new EmulatedDevice(model.config.headDim, 192 << 20);
  device.hasWarpgroups = hasWarpgroups;
  const options = { kvBytes: 8 << 20, blockTokens: 16, maxRows: 512, maxLogitRows: 4, reserveBytes: 0 };
  const golden = new GoldenModel(await CudaBackend.open(device, model, options), model.digest);
  const ids = Array.from({ length: promptTokens }, (_, i) => 3 + ((i * 37) % 89));
  const { logits = new Float32Array(0) } = await golden.answer({ kind: "causal", ids }, 4);
  await golden.dispose();
  return { logits, kernels: new Set(device.log) };
}

const norm = (values: readonly number[]) => Math.hypot(...values);
const distance = (a: ArrayLike<number>, b: ArrayLike<number>) =>
  norm(Array.from(a, (x, i) => x - b[i])) / norm(Array.from(b));

/** Rounding to bfloat16, of activations and, where scales are any numbers, of widened weights. */
const roundingError = 0.01;
/** Inputs of the other layers are rounded to 8 bits: by 2^-4 at most, 0.026 on average, seven products in a row. */
const e4m3Error = 0.15;

const published = { ...forms["fp8 by blocks"], block: [128, 128] } as const;
const byBlocks = { ...published, config: { ...published.config, weight_block_size: [128, 128] } };
test.each([
  ["8-bit floats by rows", forms.fbgemm_fp8],
  ["8-bit floats by blocks", byBlocks],
])("%s: few rows and many give what the same weights give as floats", async (_, form) => {
  const { stored, plain } = quantised(raw, form);
  const folder = writeQuantised(raw, form, stored);
  const floats = await run(writeModelFolder(raw, plain), true);
  const [many, few] = [await run(folder, true), await run(folder, false)];
  expect(distance(many.logits, floats.logits)).toBeLessThan(e4m3Error);
  expect(distance(few.logits, many.logits)).toBeLessThan(roundingError);
  for (const name of ["widen_e4m3", "experts_gated_wgmma", "experts_down_wgmma", "experts_gated_e4m3"])
    expect([...many.kernels]).toContain(name);
  expect([...few.kernels].filter((name) => /widen|wgmma/.test(name) && name.startsWith("exp"))).toEqual([]);
  expect([...floats.kernels]).toContain("experts_gated_b16");
});

test("blocks of MXFP4 stay in 4 bits for few rows, and are widened for many", async () => {
  const [many, few] = [await run(mxfp4Folder, true), await run(mxfp4Folder, false)];
  expect(many.kernels).toContain("widen_mx4");
  expect(many.kernels).toContain("experts_down_wgmma");
  expect(few.kernels).toContain("experts_down_mx4");
  expect(few.kernels).not.toContain("widen_mx4");
  // Every weight is a bfloat16 number: both multiply the same.
  expect(distance(few.logits, many.logits)).toBeLessThan(roundingError);
});

test("a scale of MXFP4 that is no factor on a GPU is refused by name", async () => {
  const folder = temporaryFolder();
  cpSync(mxfp4Folder, folder, { recursive: true });
  const scales = loadModel(folder, "float32").weights.info("model.layers.0.mlp.experts.1.up_proj.weight").mxfp4Scales;
  if (scales === undefined) throw new Error("the folder has no blocks");
  writeSync(openSync(scales.file, "r+"), Uint8Array.of(129), 0, 1, scales.start + 5);
  await expect(run(folder, true)).rejects.toThrow("is 129, and on a GPU scales are at most 128");
});

test("every assignment is in one tile of its expert, and tiles find room whatever the router says", () => {
  const random = new Random(testSeed());
  for (let round = 0; round < 300; round++) {
    const [count, rows, size] = [random.integer(1, 20), random.integer(1, 30), random.pick([1, 3, 16])];
    const perToken = random.integer(1, count);
    const experts = { count, perToken } as Parameters<typeof mostTiles>[0];
    const most = random.integer(1, count) - 1;
    const chosen = Int32Array.from({ length: rows * perToken }, () => random.integer(0, most));
    const memory = new EmulatedMemory(1 << 16);
    const put = (values: Int32Array) => {
      const buffer = memory.allocate("list", values.byteLength);
      memory.int32(buffer).set(values);
      return buffer;
    };
    const tileCount = mostTiles(experts, rows, size);
    const [order, tiles] = [memory.allocate("order", chosen.byteLength), memory.allocate("tiles", tileCount * 16)];
    const given = [put(chosen), put(Int32Array.of(rows)), perToken, count, size, tileCount, order, tiles];
    emulatedGroups(memory, given, [count]);
    const seen: number[] = [];
    for (let tile = 0; tile < tileCount; tile++) {
      const [expert, first, own] = memory.int32(tiles).subarray(4 * tile);
      expect(own).toBeLessThanOrEqual(size);
      const assignments = memory.int32(order).subarray(first, first + own);
      for (const assignment of assignments) expect(chosen[assignment]).toBe(expert);
      seen.push(...assignments);
    }
    expect(seen.sort((a, b) => a - b)).toEqual(Array.from(chosen.keys()));
  }
});
