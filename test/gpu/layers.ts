/**
 * Layers of other kinds than a Llama's, and weights in 8-bit floats, on the device:
 * `bun test/gpu/layers.ts [kernels|windows|bytes|speed]... [folder of NVIDIA's libraries]...`; writes $OUT/layers.json.
 *   kernels  heads of 256 dimensions, caps, sinks and windows against loops
 *   windows  a model of 128 dimensions a head whose layers slide, by the warpgroups' kernels and by the others
 *   bytes    products of weights in 8-bit floats against loops
 *   speed    the 8B shape in 8-bit floats and in bfloat16: decoding, prefill
 */
import { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { KvElement } from "../../worker/backend/cuda/pool.ts";
import { type ModelConfig, parseModelConfig } from "../../worker/model/config.ts";
import { type Answer, GoldenModel, type GoldenPrompt, type SpanPrompt } from "../golden/golden-model.ts";
import { Random } from "../native/random.ts";
import { attentionCases, checkAttention } from "./kernel-attention.ts";
import {
  checkByteProducts,
  checkByteRows,
  checkBytesLeft,
  checkFewRows,
  e4m3Shapes,
  fewRowShapes,
} from "./kernel-e4m3.ts";
import { checkHeads } from "./kernel-rows.ts";
import { decodeMs, prefillMs, prefillTokens, spanText } from "./model-speed.ts";
import { configOf, openRandomModel, RandomReader, weightsOf } from "./models.ts";
import { freshSeed, gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";

const options = gpuOptions();
const report = new Report();
const seed = freshSeed();
const random = new Random(seed);
console.log(`seed ${seed}`);
const isWanted = (part: string) => options.parts.length === 0 || options.parts.includes(part);

async function checkKernels(): Promise<void> {
  for (const [headDim, scoreCap] of [
    [256, undefined],
    [256, 50],
    [128, 20],
    [64, undefined],
  ] as const) {
    const device = await openTestDevice(headDim, options, "bfloat16", scoreCap);
    for (const shape of attentionCases(headDim)) {
      for (const windowTokens of [undefined, 1, 24, 70]) {
        const given = { ...shape, scoreCap, hasSinks: windowTokens !== 1, ...(windowTokens && { windowTokens }) };
        await report.check(`attention ${JSON.stringify(given)}`, () => checkAttention(device, random, given));
      }
    }
    if (scoreCap === undefined) {
      for (const [hasBias, hasNorm] of [
        [true, false],
        [false, true],
      ] as const) {
        await report.check(`heads of ${headDim}`, () => checkHeads(device, random, headDim, hasBias, hasNorm));
      }
    }
    device.close();
  }
}

const windowTokens = 100;
const windowed = (perFull: number): ModelConfig =>
  parseModelConfig(
    {
      architectures: ["Olmo3ForCausalLM"],
      num_hidden_layers: 4,
      hidden_size: 512,
      num_attention_heads: 8,
      num_key_value_heads: 2,
      head_dim: 128,
      intermediate_size: 1_024,
      vocab_size: 2_048,
      rms_norm_eps: 1e-6,
      rope_theta: 10_000,
      max_position_embeddings: 4_096,
      tie_word_embeddings: false,
      sliding_window: windowTokens,
      layer_types: Array.from({ length: 4 }, (_, i) =>
        (i + 1) % perFull === 0 ? "full_attention" : "sliding_attention",
      ),
    },
    "windows",
  );

/** Heads with sinks, and of experts one alone: no rounding sends a row elsewhere. */
const sinking: ModelConfig = parseModelConfig(
  {
    architectures: ["GptOssForCausalLM"],
    num_hidden_layers: 4,
    hidden_size: 512,
    num_attention_heads: 16,
    num_key_value_heads: 2,
    head_dim: 64,
    intermediate_size: 512,
    num_local_experts: 1,
    num_experts_per_tok: 1,
    vocab_size: 2_048,
    rms_norm_eps: 1e-6,
    max_position_embeddings: 4_096,
    tie_word_embeddings: false,
    sliding_window: windowTokens,
  },
  "sinks",
);

/** Backends of the same random weights: by the warpgroups' kernels, by the others, and the first with KV in mx8. */
async function openModels(config: ModelConfig) {
  const reader = new RandomReader();
  const open = async (hasWarpgroups: boolean, kvElement: KvElement) => {
    const device = await openTestDevice(config.headDim, options, kvElement);
    Object.defineProperty(device, "hasWarpgroups", { value: hasWarpgroups });
    const shared = { kvBytes: 256 << 20, blockTokens: 16, maxRows: 512, maxLogitRows: 16, kvElement, reader };
    const weights = weightsOf(config);
    return new GoldenModel(await CudaBackend.open(device, { config, weights }, shared), "windows");
  };
  return [await open(true, "bfloat16"), await open(false, "bfloat16"), await open(true, "mx8")] as const;
}

/** Fragments and questions of W - 1, W and W + 1 tokens: logits of both, cold and prepared, plain and span. */
async function checkWindows(config: ModelConfig): Promise<string> {
  const models = await openModels(config);
  const draw = (count: number) => Array.from({ length: count }, () => random.integer(3, 2_047));
  const sizes = [windowTokens - 1, windowTokens, windowTokens + 1];
  let [worst, worstMx8, prompts, scale] = [0, 0, 0, 0];
  const distance = (a: Answer, b: Answer) => Math.max(...differences(a, b));
  for (const system of [[5], sizes].flat()) {
    for (const user of [1, 40, 200, ...sizes]) {
      const fragments = random.shuffle([...sizes]).map(draw);
      const prompt: SpanPrompt = { kind: "span", system: draw(system), fragments, user: draw(user) };
      const [first, again] = [await models[0].answer(prompt, 6), await models[0].answer(prompt, 6)];
      const other = await models[1].answer(prompt, 6);
      const plain: GoldenPrompt = { kind: "causal", ids: [...prompt.system, ...fragments.flat(), ...prompt.user] };
      const [own, twin] = [await models[0].answer(plain, 6), await models[1].answer(plain, 6)];
      const inMx8 = await models[2].answer(prompt, 6);
      scale = Math.max(scale, ...(first.logits ?? []).map(Math.abs));
      worst = Math.max(worst, distance(first, other), distance(again, other), distance(own, twin));
      worstMx8 = Math.max(worstMx8, distance(first, inMx8));
      prompts += 1;
    }
  }
  // Both round to bfloat16 at the same places, and add in other orders.
  assertThat(worst <= 0.03 * scale, `logits differ by ${worst}, of ${scale} at most`);
  // Numbers of 7 bits and a sign are rounded by 2^-8 of their group's greatest.
  assertThat(worstMx8 <= 0.06 * scale, `with KV in mx8 logits differ by ${worstMx8}, of ${scale} at most`);
  for (const model of models) await model.dispose();
  const words = `${prompts} prompts, logits differ by ${worst.toFixed(4)}, with KV in mx8 by ${worstMx8.toFixed(4)}`;
  return `${words} of ${scale.toFixed(2)}`;
}

/** NaN where a logit is missing. */
const differences = (a: Answer, b: Answer): number[] =>
  Array.from(b.logits ?? [Number.NaN], (x, i) => Math.abs(x - (a.logits?.[i] ?? Number.NaN)));

async function checkBytes(): Promise<void> {
  const device = await openTestDevice(128, options);
  for (const shape of e4m3Shapes) {
    await report.check(`products of a row, ${shape}`, () => checkByteRows(device, random, shape));
    for (const rows of [4, 8, 64, 320]) {
      await report.check(`products of ${rows} rows, ${shape}`, () => checkByteProducts(device, random, shape, rows));
    }
  }
  for (const shape of fewRowShapes) {
    for (const rows of [4, 16, 24, 64]) {
      await report.check(`our products of ${rows} rows, ${shape}`, () => checkFewRows(device, random, shape, rows));
    }
  }
  for (const width of [128, 4_096, 12_288]) {
    await report.check(`rows left in 8 bits, ${width}`, () => checkBytesLeft(device, random, width));
  }
  device.close();
}

async function measureSpeed(form: "bfloat16" | MatmulForm, batches: readonly number[]): Promise<string> {
  const config = configOf("Qwen3-8B");
  const device = await openTestDevice(config.headDim, options);
  const e4m3 = form === "bfloat16" ? undefined : form;
  const backend = await openRandomModel(device, config, { kvBytes: 24e9, maxRows: prefillTokens, e4m3 });
  const words = [`${(backend.weightBytes / 1e9).toFixed(2)} GB of weights`];
  for (const batch of batches) words.push(`decode ${batch}: ${spanText(await decodeMs(backend, device, batch))}`);
  if (batches.length > 1) words.push(`prefill ${prefillTokens}: ${(await prefillMs(backend, device)).toFixed(1)} ms`);
  await backend.dispose();
  return words.join(", ");
}
type MatmulForm = "blocks" | "rows";

if (isWanted("kernels")) await checkKernels();
if (isWanted("windows")) {
  await report.check("windows in three of four layers", () => checkWindows(windowed(4)));
  await report.check("windows in every layer", () => checkWindows(windowed(9)));
  await report.check("windows in every other layer, sinks, one expert", () => checkWindows(sinking));
}
if (isWanted("bytes")) await checkBytes();
for (const form of isWanted("speed") ? (["bfloat16", "blocks", "rows"] as const) : []) {
  await report.check(`speed of ${form}`, () => measureSpeed(form, [1, 4, 16, 64]));
}
process.exitCode = await report.end(resultPath(options, "layers.json"));
