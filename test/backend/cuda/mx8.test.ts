/** KV in mx8 on an emulated device: what a step answers, what a pool holds, and where it is refused. */
import { expect, test } from "bun:test";
import { CudaBackend } from "../../../worker/backend/cuda/cuda-backend.ts";
import { blockFormatOf } from "../../../worker/backend/cuda/host-blocks.ts";
import { type KvElement, kvBytesPerBlock } from "../../../worker/backend/cuda/pool.ts";
import { roundToBfloat16 } from "../../../worker/backend/cuda/weights/tensor-reader.ts";
import type { TensorReader } from "../../../worker/backend/cuda/weights/weights.ts";
import type { Batch } from "../../../worker/contract/batch.ts";
import { parseModelConfig } from "../../../worker/model/config.ts";
import { weightsOf } from "../../gpu/models.ts";
import { Random } from "../../native/random.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const raw = {
  architectures: ["Qwen3ForCausalLM"],
  num_hidden_layers: 2,
  hidden_size: 64,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  head_dim: 64,
  intermediate_size: 64,
  vocab_size: 97,
  rms_norm_eps: 1e-6,
  rope_theta: 10_000,
  max_position_embeddings: 256,
};
const config = parseModelConfig(raw, "tiny");
const blockTokens = 16;
const ids = [7, 3, 11, 5, 90, 2, 41, 8, 19, 33, 60, 1, 77, 20, 9, 54, 13, 28, 66, 31];

/** One piece that sees itself, in blocks 2 and 0. */
function promptBatch(): Batch {
  const list = (of: (i: number) => number) => Int32Array.from(ids, (_, i) => of(i));
  const blocks = [2, 0];
  return {
    tokenIds: Int32Array.from(ids),
    positions: list((i) => i),
    slots: list((i) => blocks[Math.floor(i / blockTokens)] * blockTokens + (i % blockTokens)),
    pieceRows: Int32Array.of(0, ids.length),
    pieceSegments: Int32Array.of(0, 1),
    segmentBlockStarts: Int32Array.of(0),
    segmentFirstTokens: Int32Array.of(0),
    segmentTokenCounts: Int32Array.of(ids.length),
    segmentOffsets: Int32Array.of(0),
    blockIds: Int32Array.from(blocks),
    logitRows: Int32Array.of(ids.length - 1),
  };
}

/** The tensors of a model that lies nowhere: norms of 1, and the same small numbers each time. */
const reader: TensorReader = {
  async upload(device, uploads) {
    const random = new Random(1);
    for (const { tensor, target } of uploads) {
      const count = target.byteLength / 2;
      const isNorm = tensor.file.endsWith("norm.weight");
      const words = new Uint16Array(count);
      roundToBfloat16(isNorm ? new Float32Array(count).fill(1) : random.normals(count), isNorm ? 1 : 0.1, words);
      device.copyIn(target, words);
    }
    await device.settled();
  },
};

async function open(kvElement: KvElement, choices: { device?: EmulatedDevice; of?: typeof config } = {}) {
  const { of = config, device = new EmulatedDevice(of.headDim, 64 << 20, kvElement) } = choices;
  const kvBytes = 64 * kvBytesPerBlock(config, { blockTokens });
  const options = { blockTokens, kvBytes, kvElement, maxRows: 64, maxLogitRows: 8, reserveBytes: 0, reader };
  return { device, backend: await CudaBackend.open(device, { config: of, weights: weightsOf(of) }, options) };
}

test("a prompt's logits lie near those over bfloat16, and a pool holds 1.9 times the tokens", async () => {
  const wide = await open("bfloat16");
  const narrow = await open("mx8");
  const [wanted, got] = [await wide.backend.forward(promptBatch()), await narrow.backend.forward(promptBatch())];
  const error = Math.sqrt(wanted.reduce((sum, x, i) => sum + (x - got[i]) ** 2, 0));
  const size = Math.sqrt(wanted.reduce((sum, x) => sum + x * x, 0));
  expect(error).toBeGreaterThan(0);
  expect(error / size).toBeLessThan(0.05);
  expect(narrow.backend.shape.blockCount / wide.backend.shape.blockCount).toBeGreaterThan(1.9);
  expect([wide.backend.shape.blends, narrow.backend.shape.blends]).toEqual([undefined, false]);
  await expect(narrow.backend.deviations(promptBatch())).rejects.toThrow("KV in mx8 stays where it is");
  const none = new Int32Array(0);
  const copies = { sourceSlots: none, targetSlots: none, deltas: none };
  await expect(narrow.backend.copyTokens(copies)).rejects.toThrow("KV in mx8 stays where it is");
});

test("a packed block in mx8 names another format than one in bfloat16", () => {
  const device = new EmulatedDevice(64, 1 << 20);
  const [wide, narrow] = (["bfloat16", "mx8"] as const).map((kv) => blockFormatOf(device, config, blockTokens, kv));
  expect(narrow).toMatchObject({ name: "cuda/emulated/mx8/2x1x64x16", layout: 3, element: 3, codec: 1 });
  expect(wide).toMatchObject({ name: "cuda/emulated/bfloat16/2x1x64x16", layout: 2, element: 4, codec: 0 });
  // A scale for each 32 values.
  expect(narrow.bytes / wide.bytes).toBe(33 / 64);
});

test("other GPUs and other heads are refused in a sentence", async () => {
  const old = new EmulatedDevice(64, 64 << 20, "mx8");
  old.hasWarpgroups = false;
  const takes = "SPANGATE_KV_CODEC mx8 on a GPU takes";
  await expect(open("mx8", { device: old })).rejects.toThrow(`${takes} one of compute capability 9.0, and emulated is`);
  const of = parseModelConfig({ ...raw, head_dim: 32 }, "narrow");
  await expect(open("mx8", { of })).rejects.toThrow(`${takes} heads of 64 or 128 dimensions`);
});
