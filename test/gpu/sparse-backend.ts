/** Rows that choose what they read, in a whole small model, against the same rows that read all: on any CUDA device. */
import type { CudaBackend } from "../../worker/backend/cuda/cuda-backend.ts";
import type { CudaBackendOptions } from "../../worker/backend/cuda/parts.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { type ChoiceMode, choiceFlags, choiceModes } from "../../worker/contract/sparse.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import type { ModelConfig } from "../../worker/model/config.ts";
import { beside, chainPieces } from "../backend/chain-pieces.ts";
import type { Random } from "../native/random.ts";
import { assertThat } from "./report.ts";

export const sparseModelOptions = {
  ...{ kvBytes: 1 << 19, blockTokens: 16, maxRows: 64, maxLogitRows: 8, reserveBytes: 0, hostKvBytes: 1 << 20 },
  sparse: { seats: 4, listTokens: 48, shadowBits: 4, rings: false },
} as const satisfies CudaBackendOptions;

const list = (...values: number[]) => Int32Array.from(values);

export interface RowOptions {
  readonly chosen: number;
  readonly seat?: number;
  readonly mode?: ChoiceMode;
  readonly flags?: number;
  readonly firstBlock?: number;
  /** Candidates as these segments of the chain's first two blocks: how many tokens each has. */
  readonly parts?: readonly number[];
}

/** The row at `position` of a chain in blocks from `firstBlock` on, which chooses from its first two blocks. */
export function sparseRow(tokens: Int32Array, position: number, options: RowOptions): Batch {
  const { chosen, mode = "now", seat = 1, flags = choiceFlags.fresh, firstBlock = 0, parts = [32] } = options;
  const starts = parts.map((_, index) => parts.slice(0, index).reduce((sum, count) => sum + count, 0));
  return {
    tokenIds: tokens.slice(position, position + 1),
    positions: list(position),
    slots: list(firstBlock * 16 + position),
    pieceRows: list(0, 1),
    pieceSegments: list(0, 2),
    segmentBlockStarts: list(0, 3),
    segmentFirstTokens: list(0, 0),
    segmentTokenCounts: list(4 + Math.min(chosen, 28), position - 31),
    segmentOffsets: list(0, 0),
    blockIds: list(20, 21, 22, firstBlock + 2, firstBlock + 3, firstBlock + 4),
    logitRows: list(0),
    choices: {
      pieces: list(0),
      seats: list(seat),
      flags: list(flags),
      modes: list(choiceModes.indexOf(mode)),
      tokens: list(chosen),
      refreshSteps: list(4),
      leastCosines: Float32Array.of(0.6),
      segments: list(0, parts.length),
      segmentBlockStarts: Int32Array.from(starts, (start) => Math.floor(start / 16)),
      segmentFirstTokens: Int32Array.from(starts, (start) => start % 16),
      segmentTokenCounts: Int32Array.from(parts),
      segmentOffsets: Int32Array.from(parts, () => 0),
      segmentForced: Int32Array.from(parts, (_, index) => (index === 0 ? 4 : 0)),
      blockIds: list(firstBlock, firstBlock + 1),
    },
  };
}

export const greatest = (a: Float32Array, b: Float32Array) =>
  a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i])), 0);

/** Logits of the golden models are about 3; q is rounded to bfloat16 after its rotation where rows read everything. */
export const logitRounding = 0.05;

type Check = (
  open: () => Promise<CudaBackend>,
  config: Pick<ModelConfig, "vocabSize" | "layerCount" | "kvHeadCount">,
  random: Random,
) => Promise<string>;

const drawTokens = (random: Random, vocabSize: number) =>
  Int32Array.from({ length: 80 }, () => random.integer(0, vocabSize - 1));

/** A row that chooses all it sees, in one segment or in several, gives what it gives when it reads all. */
const everything: Check = async (open, { vocabSize }, random) => {
  const tokens = drawTokens(random, vocabSize);
  const piece = chainPieces(tokens);
  const backend = await open();
  await backend.forward(piece(0, 60, 0, []));
  const wanted = (await backend.forward(piece(60, 61, 0, [0]))).slice();
  let worst = 0;
  for (const parts of [[32], [5, 27], [16, 9, 7]]) {
    const logits = await backend.forward(sparseRow(tokens, 60, { chosen: 28, parts }));
    worst = Math.max(worst, greatest(logits, wanted));
  }
  await backend.dispose();
  assertThat(worst < logitRounding, `a logit is off by ${worst}`);
  return `logits off by ${worst.toFixed(4)}`;
};

/** With fewer it gives something else, the same for any cut into segments, and its lists are counted. */
const fewer: Check = async (open, { vocabSize, layerCount, kvHeadCount }, random) => {
  const tokens = drawTokens(random, vocabSize);
  const piece = chainPieces(tokens);
  const backend = await open();
  await backend.forward(piece(0, 60, 0, []));
  const wanted = (await backend.forward(piece(60, 61, 0, [0]))).slice();
  const few = (await backend.forward(sparseRow(tokens, 60, { chosen: 6 }))).slice();
  const distance = greatest(few, wanted);
  assertThat(distance > logitRounding, `six tokens give what all give, but for ${distance}`);
  const lists = layerCount * kvHeadCount;
  const counted = () => backend.choiceCounts(1).lists;
  assertThat(counted() === lists, `${counted()} lists, not ${lists}`);
  const again = await backend.forward(sparseRow(tokens, 60, { chosen: 6, flags: 0, parts: [7, 25] }));
  const moved = greatest(again, few);
  // Sums over units are in another order, which may turn a rank, and with it a token of the least weight.
  assertThat(moved < logitRounding, `a logit is off by ${moved} with other segments`);
  assertThat(counted() === 2 * lists, `${counted()} lists, not ${2 * lists}`);
  await backend.forward(sparseRow(tokens, 60, { chosen: 6 }));
  assertThat(counted() === lists, `${counted()} lists of a fresh seat, not ${lists}`);
  assertThat(backend.choiceCounts(0).lists === 0, "another seat's lists are counted");
  await backend.dispose();
  return `logits off by ${distance.toFixed(3)}, and by ${moved.toFixed(4)} with other segments`;
};

/** Shadows of tokens that were copied, and of blocks that were brought back, are those of the K that stands there. */
const writers: Check = async (open, { vocabSize }, random) => {
  const tokens = drawTokens(random, vocabSize);
  const backend = await open();
  const rowAt = async (firstBlock: number) =>
    (await backend.forward(sparseRow(tokens, 60, { chosen: 6, firstBlock }))).slice();
  await backend.forward(chainPieces(tokens)(0, 60, 0, []));
  const wanted = await rowAt(0);
  const sourceSlots = Int32Array.from({ length: 60 }, (_, i) => i);
  const targetSlots = sourceSlots.map((slot) => slot + 160);
  await backend.copyTokens({ sourceSlots, targetSlots, deltas: new Int32Array(60) });
  const copied = greatest(await rowAt(10), wanted);
  assertThat(copied === 0, `over copied tokens a logit is off by ${copied}`);
  const filled = [0, 1, 2, 3].map((blockId) => ({ blockId: blockId as BlockId, tokenCount: 16 }));
  await backend.hostBlocks?.store(filled, [0, 1, 2, 3]);
  const fetched = await backend.hostBlocks?.fetch([0, 1, 2, 3]);
  fetched?.place([14, 15, 16, 17].map((blockId) => blockId as BlockId));
  const fetchedBy = greatest(await rowAt(14), wanted);
  assertThat(fetchedBy === 0, `over blocks from the host a logit is off by ${fetchedBy}`);
  await backend.dispose();
  return "the same bits";
};

/**
 * Rows that choose, rows that read all and a piece of a prompt in one step give what each gives alone. Products of other
 * numbers of rows round at other places, which may turn what is chosen, and with it any logit: so a row that chooses few
 * is compared, bit for bit, with itself beside other neighbours in a step of as many rows, and with itself alone where it
 * chooses everything.
 */
const mixed: Check = async (open, { vocabSize }, random) => {
  const [tokens, others] = [drawTokens(random, vocabSize), drawTokens(random, vocabSize)];
  const [piece, otherPiece] = [chainPieces(tokens), chainPieces(others)];
  const backend = await open();
  await backend.forward(piece(0, 60, 0, []));
  await backend.forward(piece(0, 50, 5, []));
  await backend.forward(otherPiece(0, 30, 10, []));
  const dense = piece(50, 52, 5, [1]);
  const wanted = (await backend.forward(dense)).slice();
  // The logits lie in memory that the backend frees.
  const stepOf = async (row: Batch, neighbours: Batch) => {
    const logits = (await backend.forward(beside(row, neighbours, list(0, 2)))).slice();
    return { own: logits.subarray(0, vocabSize), other: logits.subarray(vocabSize) };
  };
  const few = sparseRow(tokens, 60, { chosen: 6 });
  const step = await stepOf(few, dense);
  const beforeOthers = await stepOf(few, otherPiece(30, 32, 10, [1]));
  const moved = greatest(step.own, beforeOthers.own);
  assertThat(moved === 0, `beside other rows a logit of the row that chooses is off by ${moved}`);
  const all = sparseRow(tokens, 60, { chosen: 28 });
  const alone = (await backend.forward(all)).slice();
  const besideOthers = await stepOf(all, dense);
  await backend.dispose();
  const off = [greatest(besideOthers.own, alone), greatest(step.other, wanted), greatest(besideOthers.other, wanted)];
  assertThat(Math.max(...off) < logitRounding, `logits are off by ${off.join(", ")}`);
  return `logits off by ${off.map((one) => one.toFixed(4)).join(", ")}`;
};

export const sparseBackendChecks = {
  "a row that chooses everything": everything,
  "a row that chooses few": fewer,
  "whoever writes K writes its shadow": writers,
  "rows of both kinds and a prompt": mixed,
} as const;
