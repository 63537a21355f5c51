/** Weights that stay in 8-bit floats on a device that multiplies those: what they give, and which of them do. */
import { afterAll, expect, setDefaultTimeout, test } from "bun:test";
import { CudaBackend } from "../../../worker/backend/cuda/cuda-backend.ts";
import { cutOf } from "../../../worker/backend/cuda/products/few-rows.ts";
import { FileReader } from "../../../worker/backend/cuda/weights/tensor-reader.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { writeModelFolder } from "../../model/folder.ts";
import { type Form, forms, fromE4m3, quantised, writeQuantised } from "../../model/quantised-folder.ts";
import { answersOf, difference, Texts } from "../relocate-answers.ts";
import { EmulatedDevice } from "./emulated-device.ts";
import { toE4m3 } from "./emulated-e4m3.ts";
import { rowBatch } from "./row-batch.ts";

// A step on the emulated device is computed in plain loops.
setDefaultTimeout(60_000);

const blockTokens = 8;
const raw = {
  architectures: ["LlamaForCausalLM"],
  num_hidden_layers: 2,
  hidden_size: 128,
  num_attention_heads: 2,
  num_key_value_heads: 2,
  head_dim: 64,
  intermediate_size: 256,
  vocab_size: 96,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 512,
  rope_theta: 100,
  tie_word_embeddings: true,
};
const options = { kvBytes: 4 << 20, blockTokens, maxRows: 256, maxLogitRows: 16, reserveBytes: 0 };
const texts = new Texts(raw.vocab_size, blockTokens);
const groups = [[texts.ask(0, [1, 3, 0]), texts.ask(1, [2, 0])], [texts.ask(2, [1])]];

const blocks = forms["fp8 by blocks"];
const published = {
  ...blocks,
  block: [128, 128],
  config: { ...blocks.config, weight_block_size: [128, 128] },
} as const;

async function run(folder: string, keepsE4m3: boolean, multipliesE4m3 = true) {
  const device = new EmulatedDevice(64);
  device.multipliesE4m3 = multipliesE4m3;
  // Parts that begin and end within a row.
  const reader = new FileReader({ partElements: 1_000, laneCount: 3 });
  const backend = await CudaBackend.open(device, loadModel(folder, "float32"), { ...options, reader, keepsE4m3 });
  afterAll(() => backend.dispose());
  const answers = await answersOf(backend, "deferred", groups);
  const rows: Float32Array[] = [];
  for (const [position, id] of [7, 3, 11, 5].entries()) {
    rows.push((await backend.forward(rowBatch(id, position))).slice());
  }
  return { answers, rows, kernels: new Set(device.log), bytes: backend.weightBytes };
}

/**
 * An input of 3 bits of fraction is off by a rounding of 2^-4 at most, 0.026 on average; eight products in a row add their
 * errors as squares, which moves logits of about 1.5 by 0.1, and the worst of many by thrice that.
 */
const e4m3Error = 0.3;

/** Of weights that bfloat16 has rounded and e4m3 has not. */
const bfloat16Error = 0.02;

const norm = (values: readonly number[]) => Math.hypot(...values);
function distance(rows: readonly Float32Array[], others: readonly Float32Array[]): number {
  const [own, wanted] = [rows, others].map((each) => each.flatMap((row) => [...row]));
  return norm(own.map((x, i) => x - wanted[i])) / norm(wanted);
}

test.each<[string, Form, string]>([
  ["blocks of 128 by 128", published, "few_rows_wgmma_8x2"],
  ["rows", forms.fbgemm_fp8, "quantize_rows"],
  ["one scale a matrix", forms["fp8, one scale"], "quantize_rows"],
])("scales for %s: nearly what the same weights give in bfloat16", async (_, form, own) => {
  const { stored, plain } = quantised(raw, form);
  const folder = writeQuantised(raw, form, stored);
  const [bytes, widened] = [await run(folder, true), await run(folder, false)];
  const floats = await run(writeModelFolder(raw, plain), false);
  for (const name of [own, "matvec_e4m3", "matvec_e4m3_gated", "matvec_e4m3_add"])
    expect([...bytes.kernels]).toContain(name);
  expect([...widened.kernels].filter((name) => /e4m3|quantize|few_rows/.test(name))).toEqual([]);
  expect(bytes.bytes).toBeLessThan(0.7 * widened.bytes);
  expect(widened.answers).toEqual(floats.answers);
  // A row that runs alone is not rounded: its products are nearly those of the same weights in bfloat16.
  expect(distance(bytes.rows, floats.rows)).toBeLessThan(bfloat16Error);
  const off = difference(bytes.answers, floats.answers);
  expect(off).toBeGreaterThan(0);
  expect(off).toBeLessThan(e4m3Error);
});

test("rows of a matrix that several projections share keep their own scales", async () => {
  const fused = { ...raw, architectures: ["Phi3ForCausalLM"], hidden_size: 256, num_attention_heads: 4 };
  const { stored, plain } = quantised(fused, published);
  const bytes = await run(writeQuantised(fused, published, stored), true);
  for (const name of ["matvec_e4m3_gated", "quantize_blocks"]) expect([...bytes.kernels]).toContain(name);
  const floats = await run(writeModelFolder(fused, plain), false);
  expect(distance(bytes.rows, floats.rows)).toBeLessThan(bfloat16Error);
});

test("elsewhere, and in blocks that kernels do not take, weights are widened", async () => {
  const { stored } = quantised(raw, published);
  const folder = writeQuantised(raw, published, stored);
  const elsewhere = await run(folder, true, false);
  expect([...elsewhere.kernels].filter((name) => /e4m3|quantize|few_rows/.test(name))).toEqual([]);
  const other = quantised(raw, blocks);
  const odd = await run(writeQuantised(raw, blocks, other.stored), true);
  expect([...odd.kernels].filter((name) => /e4m3|quantize|few_rows/.test(name))).toEqual([]);
});

test("a matrix is cut so that its thread blocks fill the multiprocessors once, whatever the rows", () => {
  const cut = (outWidth: number, inWidth: number) => Object.values(cutOf({ outWidth, inWidth }, 132)).join(" ");
  expect([cut(6_144, 4_096), cut(4_096, 4_096), cut(24_576, 4_096), cut(4_096, 12_288)]).toEqual([
    "2 2",
    "4 3",
    "1 3",
    "4 3",
  ]);
  expect([cut(28_672, 4_096), cut(16_384, 2_048), cut(1_024, 256)]).toEqual(["1 4", "1 2", "2 2"]);
});

test("numbers are rounded to the nearest of 8 bits", () => {
  const finite = Array.from({ length: 256 }, (_, byte) => byte).filter((byte) => !Number.isNaN(fromE4m3(byte)));
  for (const byte of finite) expect(toE4m3(fromE4m3(byte))).toBe(byte);
  for (let i = -1_000; i <= 1_000; i++) {
    const value = (i / 1_000) ** 3 * 500;
    const found = Math.abs(fromE4m3(toE4m3(value)) - value);
    expect(found).toBe(Math.min(...finite.map((byte) => Math.abs(fromE4m3(byte) - value))));
  }
  expect([17, 19, -17, 1e9, -1e9].map((value) => fromE4m3(toE4m3(value)))).toEqual([16, 20, -16, 448, -448]);
  expect(fromE4m3(toE4m3(Number.NaN))).toBeNaN();
});
