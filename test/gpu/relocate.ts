/**
 * K moved on the device: the engine's answers with relocation against each request computed for itself, and how many
 * tokens of an 8B model move in a millisecond: `bun test/gpu/relocate.ts [folder of NVIDIA's libraries]...`.
 */
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { loadModel } from "../../worker/model/load.ts";
import { type BlockMove, launchCopies, planRelocation } from "../../worker/relocation/plan.ts";
import { maxMoves } from "../../worker/relocation/relocating-cache.ts";
import { answersOf, difference, recomputed, Texts } from "../backend/relocate-answers.ts";
import { Random } from "../native/random.ts";
import { checkHeads } from "./kernel-rows.ts";
import { fillRandom, KernelTimer, model, putInts } from "./kernel-timings.ts";
import { gpuOptions, openTestDevice, resultPath } from "./options.ts";
import { assertThat, Report } from "./report.ts";
import { logitTolerance } from "./twin-backend.ts";

const options = gpuOptions();
const report = new Report();
const blockTokens = 16;
const layers = 36;
const movedTokens = 10_000;
const launchTokens = 8_192;

async function openGolden(name: string): Promise<CudaBackend> {
  const loaded = loadModel(join("test/golden", name), numericMode);
  const device = await openTestDevice(loaded.config.headDim, options);
  const sizes = { kvBytes: 8 << 20, blockTokens, maxRows: 256, maxLogitRows: 16, reserveBytes: 0 };
  return CudaBackend.open(device, loaded, sizes);
}

async function checkAnswers(name: string): Promise<string> {
  const backend = await openGolden(name);
  const texts = new Texts(backend.shape.vocabSize, blockTokens);
  const together = [texts.askTogether()];
  const inTurn = Array.from({ length: maxMoves + 1 }, (_, i) => [texts.ask(i, [i % 2 === 0 ? 1 : 3, 0])]);
  const compare = async (groups: readonly (readonly SubmitMessage[])[]) => {
    const alone = await recomputed(backend, groups);
    return { alone, off: difference(alone, await answersOf(backend, "relocate", groups)) };
  };
  const concurrent = await compare(together);
  const often = await compare(inTurn);
  const elsewhere = difference(concurrent.alone, await recomputed(backend, [texts.askTogether(1)]));
  await backend.dispose();
  const words = `together ${concurrent.off.toPrecision(2)}, moved ${maxMoves} times ${often.off.toPrecision(2)}`;
  const all = `${words}, documents elsewhere ${elsewhere.toPrecision(2)}`;
  assertThat(concurrent.off <= logitTolerance && often.off <= 2 * logitTolerance, all);
  return all;
}

/**
 * Whole blocks anywhere in the pool, each rotated by its own number of positions; copies go to the pool's other half.
 */
function randomMoves(random: Random, blockCount: number, inPlace: boolean): BlockMove[] {
  const ids = random.shuffle(Array.from({ length: blockCount }, (_, id) => id as BlockId));
  return ids.slice(0, Math.ceil(movedTokens / blockTokens)).map((source, i) => {
    const target = inPlace ? source : ids[ids.length - 1 - i];
    return { source, target, tokenCount: blockTokens, delta: random.integer(-8_000, 8_000) };
  });
}

async function timeMoves(device: CudaDevice, random: Random): Promise<string> {
  const { kvHeads, headDim } = model;
  const blockCount = 2_048;
  const layerStride = blockCount * kvHeads * 2 * blockTokens * headDim;
  const pool = device.allocate("pool", layers * layerStride * 2);
  fillRandom(device, random, pool, "bfloat16");
  const positions = 16_384;
  const rotations = device.allocate("rotations", 2 * positions * (headDim / 2) * 8);
  const frequencies = Float32Array.from({ length: headDim / 2 }, (_, i) => 1e6 ** ((-2 * i) / headDim));
  const factor = new Uint8Array(Float64Array.of(1).buffer);
  const listed = putInts(device, new Int32Array(frequencies.buffer));
  device.prepare(
    "fill_rope_table",
    listed,
    headDim / 2,
    -positions,
    2 * positions,
    factor,
    rotations,
  )({
    grid: [264],
    blockThreads: 256,
  });
  const rowBytes = (headDim / 2) * 8;
  const origin = rotations.slice(positions * rowBytes, positions * rowBytes);
  const layerRotates = putInts(device, new Int32Array(layers).fill(1));
  const timer = new KernelTimer(device, { bytesPerSecond: 4.3e12, flopPerSecond: 1 });
  const words: string[] = [];
  for (const inPlace of [true, false]) {
    const startMs = performance.now();
    const launches = planRelocation(randomMoves(random, blockCount, inPlace), launchTokens);
    const planMs = performance.now() - startMs;
    const prepared = launches.map((launch) => {
      const { sourceSlots, targetSlots, deltas } = launchCopies(launch, blockTokens);
      const lists = [sourceSlots, targetSlots, deltas, Int32Array.of(deltas.length)].map((list) =>
        putInts(device, list),
      );
      const [sources, targets, rotated, count] = lists;
      const shape = [kvHeads, headDim, headDim, blockTokens, layerStride, pool] as const;
      const tables = [origin, 1, origin, 1] as const;
      const run = device.prepare("copy_tokens", sources, targets, rotated, count, layerRotates, ...tables, ...shape);
      return () => run({ grid: [Math.ceil(deltas.length / 16), layers], blockThreads: 256 });
    });
    const ms = await timer.milliseconds(1, () => {
      for (const run of prepared) run();
    });
    const tokens = Math.ceil(movedTokens / blockTokens) * blockTokens;
    const name = inPlace ? "turned" : "copied";
    const bytes = tokens * layers * kvHeads * headDim * 2 * (inPlace ? 2 : 4);
    const rate = report.figure(`${name}TokensPerMs`, tokens / ms);
    words.push(`${rate} (${(bytes / ms / 1e9).toFixed(2)} TB/s, planned in ${planMs.toFixed(2)} ms)`);
    assertThat(tokens / ms >= 10_000, `only ${rate}`);
  }
  return words.join(", ");
}

for (const headDim of [32, 64, 80, 96, 128]) {
  await report.check(`copies of heads of ${headDim}, whole and partly rotated`, async () => {
    const device = await openTestDevice(headDim, options);
    const whole = await checkHeads(device, new Random(headDim), headDim, true, false);
    const partly = await checkHeads(device, new Random(headDim + 1), headDim, false, true);
    device.close();
    return `${whole}; ${partly}`;
  });
}
for (const name of ["llama", "qwen3"]) await report.check(`${name}, answers`, () => checkAnswers(name));
await report.check("tokens of an 8B model per millisecond", async () => {
  const device = await openTestDevice(model.headDim, options);
  const words = await timeMoves(device, new Random(3));
  device.close();
  return words;
});
process.exit(await report.end(resultPath(options, "relocate.json")));
