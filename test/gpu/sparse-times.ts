/**
 * What rows that choose take of a device: the kernels of one layer beside the bytes that they move, and whole decode steps
 * of the 8B shape beside dense ones. Weights are random, and so is the prompt: tokens of a few computed chunks are copied
 * over each row's context, rotated to where they stand.
 */
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaDevice } from "../../worker/backend/cuda/open-device.ts";
import { choiceSizes, putChoices } from "../../worker/backend/cuda/sparse/choice-words.ts";
import { makeChoiceWorkspace, shadowBytesPerBlock } from "../../worker/backend/cuda/sparse/sparse-memory.ts";
import {
  allowChoices,
  choiceLaunches,
  choosingKernels,
  type ListBlocks,
  scoringKernel,
  shadowLaunch,
} from "../../worker/backend/cuda/sparse/sparse-ops.ts";
import type { Batch, Choices } from "../../worker/contract/batch.ts";
import { greedySampling } from "../../worker/contract/greedy-sampling.ts";
import { choiceFlags, forcedTokens } from "../../worker/contract/sparse.ts";
import type { Random } from "../native/random.ts";
import { median } from "./bench-engine.ts";
import { fillRandom, KernelTimer, putInts } from "./kernel-timings.ts";
import { configOf, openRandomModel } from "./models.ts";
import type { GpuOptions } from "./options.ts";
import { openTestDevice } from "./options.ts";
import { assertThat, type Report } from "./report.ts";
import { allListBlocks } from "./sparse-kernels.ts";

export interface StepShape {
  readonly rows: number;
  readonly context: number;
  readonly chosen: number;
}

export const stepShapes: readonly StepShape[] = [
  { rows: 8, context: 32_768, chosen: 2_048 },
  { rows: 16, context: 16_384, chosen: 1_024 },
];

const config = configOf("Qwen3-8B");
const blockTokens = 16;
const tailTokens = 72;
const ints = (count: number, numberOf: (index: number) => number) =>
  Int32Array.from({ length: count }, (_, i) => numberOf(i));

/** Rows at the end of contexts of their own; those that choose read a tail of 72 tokens beside what they choose. */
export function stepOf({ rows, context, chosen }: StepShape, isSparse: boolean): Batch {
  const blocks = context / blockTokens;
  const tailBlocks = Math.ceil(tailTokens / blockTokens);
  const own = (row: number, block: number): number => row * blocks + block;
  const candidates = (blocks - tailBlocks) * blockTokens;
  const take = Math.ceil((chosen + forcedTokens.prompt) / blockTokens);
  // What a buffer is made of is not read where rows read the pool itself.
  const bufferIds = (row: number) => ints(take, (i) => rows * blocks + row * take + i);
  const tailIds = (row: number) => ints(tailBlocks, (i) => own(row, blocks - tailBlocks + i));
  const lists = isSparse
    ? Array.from({ length: rows }, (_, row) => [...bufferIds(row), ...tailIds(row)])
    : Array.from({ length: rows }, (_, row) => [...ints(blocks, (block) => own(row, block))]);
  const [perRow, segments] = [lists[0]?.length ?? 0, isSparse ? 2 : 1];
  const choices: Choices = {
    ...{ pieces: ints(rows, (row) => row), seats: ints(rows, (row) => row), modes: new Int32Array(rows) },
    ...{
      flags: ints(rows, () => choiceFlags.fresh),
      tokens: ints(rows, () => chosen),
      refreshSteps: ints(rows, () => 1),
    },
    ...{ leastCosines: new Float32Array(rows), segments: ints(rows + 1, (row) => row) },
    ...{
      segmentBlockStarts: ints(rows, (row) => row * (blocks - tailBlocks)),
      segmentFirstTokens: new Int32Array(rows),
    },
    ...{ segmentTokenCounts: ints(rows, () => candidates), segmentOffsets: new Int32Array(rows) },
    segmentForced: ints(rows, () => forcedTokens.prompt),
    blockIds: ints(rows * (blocks - tailBlocks), (i) =>
      own(Math.floor(i / (blocks - tailBlocks)), i % (blocks - tailBlocks)),
    ),
  };
  const isBuffer = (segment: number): boolean => isSparse && segment % 2 === 0;
  return {
    ...{ tokenIds: ints(rows, (row) => 5 + row), positions: ints(rows, () => context - 1) },
    ...{ slots: ints(rows, (row) => (row + 1) * context - 1), logitRows: ints(rows, (row) => row) },
    ...{ pieceRows: ints(rows + 1, (row) => row), pieceSegments: ints(rows + 1, (row) => row * segments) },
    segmentBlockStarts: ints(
      rows * segments,
      (s) => Math.floor(s / segments) * perRow + (isSparse && s % 2 === 1 ? take : 0),
    ),
    segmentFirstTokens: new Int32Array(rows * segments),
    segmentTokenCounts: ints(rows * segments, (s) =>
      isBuffer(s) ? chosen + forcedTokens.prompt : isSparse ? tailBlocks * blockTokens : context,
    ),
    ...{ segmentOffsets: new Int32Array(rows * segments), blockIds: Int32Array.from(lists.flat()) },
    ...(isSparse && { choices }),
  };
}

/** Half as many thread blocks of a list, and twice as many. */
const others = (listBlocks: ListBlocks): ListBlocks[] =>
  allListBlocks.filter((count) => 2 * count === listBlocks || count === 2 * listBlocks);

const sparseOptions = { seats: 16, listTokens: 2_048 + 512, shadowBits: 4, rings: false } as const;

/** The kernels of one layer, each alone and one after the other; floors by the bytes that each has to move. */
export async function timeKernels(device: CudaDevice, random: Random, bytesPerSecond: number, shape: StepShape) {
  const { headCount: queryHeads, kvHeadCount: kvHeads, headDim, softmaxScale } = config;
  const batch = stepOf(shape, true);
  const { choices } = batch;
  if (choices === undefined) throw new Error("nothing is chosen");
  const blockCount = (shape.rows * shape.context) / blockTokens;
  const sizes = choiceSizes(choices);
  const words = new Int32Array(16 + Math.ceil(batch.blockIds.length / 8) * 8 + sizes.words);
  const place = words.length - sizes.words;
  words[1] = place;
  words.set(batch.blockIds, 16);
  putChoices(words, batch, choices, place, 16);
  const step = putInts(device, words);
  const choicePlace = step.slice(4, 4);
  const workspace = makeChoiceWorkspace(device, { ...config, contextTokens: shape.context }, sparseOptions);
  const pool = device.allocate("pool", blockCount * kvHeads * 2 * blockTokens * headDim * 2);
  const shadows = device.allocate(
    "shadows",
    (blockCount * shadowBytesPerBlock(config, blockTokens)) / config.layerCount,
  );
  const qkv = device.allocate("qkv", shape.rows * (queryHeads + 2 * kvHeads) * headDim * 2);
  const out = device.allocate("out", shape.rows * queryHeads * headDim * 2);
  const rotations = device.allocate("rotations", shape.context * headDim * 4);
  for (const target of [pool, qkv]) fillRandom(device, random, target, "bfloat16");
  fillRandom(device, random, rotations, "float32");
  const slots = putInts(
    device,
    ints(blockCount * blockTokens, (slot) => slot),
  );
  const slotCount = putInts(device, Int32Array.of(blockCount * blockTokens));
  const timer = new KernelTimer(device, { bytesPerSecond, flopPerSecond: 1e15 });
  const plan = [step, choicePlace] as const;
  const heads = [queryHeads, kvHeads] as const;
  const scale = softmaxScale * Math.LOG2E;
  const shadow = device.prepare("shadow_slots", slots, slotCount, kvHeads, blockTokens, 0, 0, pool, shadows);
  const score = device.prepare(
    scoringKernel(queryHeads / kvHeads),
    ...([qkv, ...plan, rotations, shadows, ...heads, headDim, Math.log2(blockTokens), scale] as const),
    ...([workspace.scores, workspace.unitSums, workspace.counts] as const),
  );
  const { listTokens } = sparseOptions;
  const choosing = [
    ...([qkv, ...plan, rotations, pool, ...heads, headDim, blockTokens, listTokens, scale] as const),
    ...([workspace.unitSums, workspace.scores, workspace.lists, workspace.counts, out] as const),
  ] as const;
  allowChoices(device, headDim);
  const launches = choiceLaunches(headDim, device.multiprocessorCount);
  const lists = shape.rows * kvHeads;
  const listBlocks = launches.listBlocks(lists, shape.context);
  const chooseBy = (count: ListBlocks) => {
    const choose = device.prepare(choosingKernels[count], ...choosing);
    return () => choose(launches.choose(lists, count));
  };
  const put = {
    shadow: () => shadow(shadowLaunch(blockCount * blockTokens, kvHeads, 1)),
    score: () => score(launches.score),
  };
  put.shadow();
  const tokens = shape.rows * shape.context;
  const scoreBytes = tokens * kvHeads * (headDim / 2 + 2);
  const readBytes = shape.rows * kvHeads * (shape.chosen + forcedTokens.prompt + 80) * 4 * headDim;
  await timer.time("shadows of the whole context", { bytes: tokens * kvHeads * headDim * 3, flop: 0 }, 2, put.shadow);
  await timer.time("score", { bytes: scoreBytes, flop: 0 }, 8, put.score);
  for (const count of [listBlocks, ...others(listBlocks)]) {
    const choose = chooseBy(count);
    const of = count === listBlocks ? "" : ` by ${count} thread blocks`;
    await timer.time(`score, choose and attend${of}`, { bytes: scoreBytes + readBytes, flop: 0 }, 8, () => {
      put.score();
      choose();
    });
    await timer.time(`choose and attend${of}`, { bytes: readBytes, flop: 0 }, 8, choose);
  }
  const label = `${shape.rows} x ${shape.context}`;
  return timer.timings.map(
    ({ name, microseconds, floorMicroseconds }) => [`${label} ${name}`, microseconds, floorMicroseconds] as const,
  );
}

/** A few chunks are computed and their tokens copied over all contexts. */
async function fillContexts(backend: CudaBackend, { rows, context }: StepShape, random: Random): Promise<void> {
  const chunk = 4_096;
  const chunks = context / chunk;
  const base = rows * context;
  for (let n = 0; n < chunks; n++) {
    const first = base + n * chunk;
    await backend.forward({
      ...{ tokenIds: ints(chunk, () => random.integer(0, config.vocabSize - 1)), positions: ints(chunk, (i) => i) },
      ...{
        slots: ints(chunk, (i) => first + i),
        pieceRows: Int32Array.of(0, chunk),
        pieceSegments: Int32Array.of(0, 1),
      },
      ...{ segmentBlockStarts: Int32Array.of(0), segmentFirstTokens: Int32Array.of(0) },
      ...{ segmentTokenCounts: Int32Array.of(chunk), segmentOffsets: Int32Array.of(0), logitRows: new Int32Array(0) },
      blockIds: ints(chunk / blockTokens, (i) => first / blockTokens + i),
    });
  }
  for (let row = 0; row < rows; row++) {
    for (let n = 0; n < chunks; n++) {
      const source = base + ((row + n) % chunks) * chunk;
      await backend.copyTokens({
        sourceSlots: ints(chunk, (i) => source + i),
        targetSlots: ints(chunk, (i) => row * context + n * chunk + i),
        deltas: ints(chunk, () => n * chunk),
      });
    }
  }
}

/** Milliseconds of a step, two of which are in flight: the median over windows of twenty. */
async function stepMs(backend: CudaBackend, batch: Batch): Promise<number> {
  const request = { params: greedySampling, history: undefined, bannedTokenIds: [], index: 0 };
  const requests = Array.from(batch.logitRows, () => request);
  const windows: number[] = [];
  for (let window = 0; window < 7; window++) {
    const startMs = performance.now();
    let before = backend.beginStep(batch, requests);
    for (let i = 1; i < 20; i++) {
      const next = backend.beginStep(batch, requests);
      await before.tokens();
      before = next;
    }
    await before.tokens();
    windows.push((performance.now() - startMs) / 20);
  }
  return median(windows.slice(2));
}

export async function timeSteps(
  options: GpuOptions,
  random: Random,
  bytesPerSecond: number,
  shape: StepShape,
  report: Report,
) {
  const device = await openTestDevice(config.headDim, options);
  const slots = shape.rows * shape.context + shape.context + shape.rows * (shape.chosen + 64);
  const kvBytes = slots * 4 * config.layerCount * config.kvHeadCount * config.headDim;
  const backend = await openRandomModel(device, config, { kvBytes, maxRows: 4_096, sparse: sparseOptions });
  await fillContexts(backend, shape, random);
  const [dense, sparse] = [stepOf(shape, false), stepOf(shape, true)];
  const denseMs = await stepMs(backend, dense);
  const sparseMs = await stepMs(backend, sparse);
  const againMs = await stepMs(backend, dense);
  const lists = config.layerCount * config.kvHeadCount;
  assertThat(backend.choiceCounts(0).lists === lists, `${backend.choiceCounts(0).lists} lists, not ${lists}`);
  const tokenBytes = 4 * config.layerCount * config.kvHeadCount * config.headDim;
  const weights = backend.weightBytes - 2 * config.vocabSize * config.hiddenSize;
  const shadowed = (shape.rows * shape.context * shadowBytesPerBlock(config, blockTokens)) / blockTokens;
  const read = shape.rows * (shape.chosen + forcedTokens.prompt + 80) * tokenBytes;
  const floors = [weights + shape.rows * shape.context * tokenBytes, weights + shadowed + read].map(
    (bytes) => (1_000 * bytes) / bytesPerSecond,
  );
  await backend.dispose();
  const label = `${shape.rows} x ${shape.context}, C = ${shape.chosen}`;
  report.figure(`${label} dense ms`, denseMs);
  report.figure(`${label} now ms`, sparseMs);
  const ratio = (Math.min(denseMs, againMs) / sparseMs).toFixed(2);
  const denseText = `dense ${denseMs.toFixed(3)} and ${againMs.toFixed(3)} ms (floor ${floors[0].toFixed(2)})`;
  return `${denseText}, now ${sparseMs.toFixed(3)} ms (floor ${floors[1].toFixed(2)}): ${ratio} x`;
}
