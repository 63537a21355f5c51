/** Blocks between an emulated device's pool and the host's memory. */
import { expect, test } from "bun:test";
import { blockFormatOf, CudaHostBlocks } from "../../../worker/backend/cuda/host-blocks.ts";
import { DevicePool } from "../../../worker/backend/cuda/pool.ts";
import { parseModelConfig } from "../../../worker/model/config.ts";
import { movesBlocks } from "../../gpu/moved-blocks.ts";
import { testSeed } from "../../support/seed.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const config = parseModelConfig(
  {
    architectures: ["Qwen3ForCausalLM"],
    num_hidden_layers: 3,
    hidden_size: 64,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 16,
    intermediate_size: 64,
    vocab_size: 97,
    rms_norm_eps: 1e-6,
    rope_theta: 10_000,
    max_position_embeddings: 256,
  },
  "tiny",
);

test.each(["bfloat16", "mx8"] as const)(
  "blocks in %s go down and come up into other blocks, bit for bit, with zeros behind the last token",
  async (kvElement) => {
    const headDim = kvElement === "mx8" ? 64 : 16;
    const device = new EmulatedDevice(headDim, 96 << 20, kvElement);
    const moved = await movesBlocks(device, { ...config, headDim }, { seed: testSeed(), rounds: 12, kvElement });
    expect(moved).toMatch(/^[1-9]\d+ blocks moved$/);
  },
);

test("host memory that holds no block is refused in one sentence", () => {
  const device = new EmulatedDevice(16);
  const pool = new DevicePool(device, config, { blockTokens: 16, kvBytes: 1 << 20, reserveBytes: 1 << 20 });
  const format = blockFormatOf(device, config, 16);
  expect(() => new CudaHostBlocks({ device, pool, format, blockTokens: 16, hostBytes: 100 })).toThrow(
    `100 bytes of host memory do not hold one block of ${format.bytes} bytes`,
  );
});
