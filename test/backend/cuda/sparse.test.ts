/** Rows that choose what they read, in a whole model on the emulated device: against the same rows that read all. */
import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { CudaBackend, numericMode } from "../../../worker/backend/cuda/cuda-backend.ts";
import type { CudaBackendOptions } from "../../../worker/backend/cuda/parts.ts";
import { assertChoosable } from "../../../worker/backend/cuda/sparse/sparse-memory.ts";
import type { Batch } from "../../../worker/contract/batch.ts";
import { type ChoiceMode, choiceFlags, choiceModes } from "../../../worker/contract/sparse.ts";
import type { BlockId } from "../../../worker/contract/units.ts";
import { loadModel } from "../../../worker/model/load.ts";
import { Random } from "../../native/random.ts";
import { testSeed } from "../../support/seed.ts";
import { chainPieces } from "../chain-pieces.ts";
import { EmulatedDevice } from "./emulated-device.ts";

const model = loadModel(join(import.meta.dir, "../../golden/qwen3"), numericMode);
const random = new Random(testSeed());
const tokens = Int32Array.from({ length: 80 }, () => random.integer(0, model.config.vocabSize - 1));
const piece = chainPieces(tokens);
const list = (...values: number[]) => Int32Array.from(values);

async function open(options: Partial<CudaBackendOptions> = {}, device = new EmulatedDevice(model.config.headDim)) {
  const shared = { kvBytes: 1 << 19, blockTokens: 16, maxRows: 64, maxLogitRows: 8, reserveBytes: 0 };
  const sparse = { seats: 4, listTokens: 48, shadowBits: 4, rings: false } as const;
  return { device, backend: await CudaBackend.open(device, model, { ...shared, sparse, ...options }) };
}

interface RowOptions {
  readonly chosen: number;
  readonly seat?: number;
  readonly mode?: ChoiceMode;
  readonly flags?: number;
  readonly firstBlock?: number;
  /** Candidates as these segments of the chain's first two blocks: how many tokens each has. */
  readonly parts?: readonly number[];
}

/** The row at `position` of the chain in blocks from `firstBlock` on, which chooses from its first two blocks. */
function sparseRow(position: number, options: RowOptions): Batch {
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

const greatest = (a: Float32Array, b: Float32Array) =>
  a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i])), 0);

/** Logits of the golden models are about 3; q is rounded to bfloat16 after its rotation where rows read everything. */
const rounding = 0.05;

describe.each([true, false])("with graphs: %p", (graphs) => {
  test("a row that chooses everything gives what it gives when it reads everything", async () => {
    const { backend, device } = await open({ graphs });
    await backend.forward(piece(0, 60, 0, []));
    const wanted = (await backend.forward(piece(60, 61, 0, [0]))).slice();
    for (const parts of [[32], [5, 27], [16, 9, 7]]) {
      device.log.length = 0;
      const logits = await backend.forward(sparseRow(60, { chosen: 28, parts }));
      expect(greatest(logits, wanted)).toBeLessThan(rounding);
      expect(device.log.filter((name) => name === "attend_chosen")).toHaveLength(model.config.layerCount);
    }
    await backend.dispose();
  });

  test("with fewer it gives something else, and is counted where it is chosen", async () => {
    const { backend } = await open({ graphs });
    await backend.forward(piece(0, 60, 0, []));
    const wanted = (await backend.forward(piece(60, 61, 0, [0]))).slice();
    const few = (await backend.forward(sparseRow(60, { chosen: 6 }))).slice();
    expect(greatest(few, wanted)).toBeGreaterThan(rounding);
    const lists = model.config.layerCount * model.config.kvHeadCount;
    expect(backend.choiceCounts(1)).toMatchObject({ lists, chosen: lists, chosenAgain: 0, changed: 0, measured: 0 });
    const again = await backend.forward(sparseRow(60, { chosen: 6, flags: 0, parts: [7, 25] }));
    expect(again).toEqual(few);
    expect(backend.choiceCounts(1).lists).toBe(2 * lists);
    await backend.forward(sparseRow(60, { chosen: 6 }));
    expect(backend.choiceCounts(1).lists).toBe(lists);
    expect(backend.choiceCounts(0).lists).toBe(0);
    await backend.dispose();
  });
});

test("rows that choose, rows that read all and a piece of a prompt in one step give what each gives alone", async () => {
  const { backend } = await open();
  await backend.forward(piece(0, 60, 0, []));
  await backend.forward(piece(0, 50, 5, []));
  const row = sparseRow(60, { chosen: 6 });
  const alone = (await backend.forward(row)).slice();
  const dense = piece(50, 52, 5, [1]);
  const wanted = (await backend.forward(dense)).slice();
  const join = (a: Int32Array, b: Int32Array) => list(...a, ...b);
  const shifted = (values: Int32Array, by: number) => values.subarray(1).map((value) => value + by);
  const both: Batch = {
    ...row,
    tokenIds: join(row.tokenIds, dense.tokenIds),
    positions: join(row.positions, dense.positions),
    slots: join(row.slots, dense.slots),
    pieceRows: join(row.pieceRows, shifted(dense.pieceRows, 1)),
    pieceSegments: join(row.pieceSegments, shifted(dense.pieceSegments, 2)),
    segmentBlockStarts: join(row.segmentBlockStarts, list(row.blockIds.length)),
    segmentFirstTokens: join(row.segmentFirstTokens, dense.segmentFirstTokens),
    segmentTokenCounts: join(row.segmentTokenCounts, dense.segmentTokenCounts),
    segmentOffsets: join(row.segmentOffsets, dense.segmentOffsets),
    blockIds: join(row.blockIds, dense.blockIds),
    logitRows: list(0, 2),
  };
  const logits = await backend.forward(both);
  const { vocabSize } = model.config;
  // A step of one row multiplies by other kernels, which round at other places.
  expect(greatest(logits.subarray(0, vocabSize), alone)).toBeLessThan(rounding);
  expect(greatest(logits.subarray(vocabSize), wanted)).toBeLessThan(rounding);
  await backend.dispose();
});

describe("shadows are those of the K that stands in the pool", () => {
  const wantedOf = async (backend: CudaBackend, firstBlock: number) =>
    (await backend.forward(sparseRow(60, { chosen: 6, firstBlock }))).slice();

  test("of blocks that were brought back from the host", async () => {
    const { backend } = await open({ hostKvBytes: 1 << 20 });
    await backend.forward(piece(0, 60, 0, []));
    const wanted = await wantedOf(backend, 0);
    const filled = [0, 1, 2, 3].map((blockId) => ({ blockId: blockId as BlockId, tokenCount: 16 }));
    await backend.hostBlocks?.store(filled, [0, 1, 2, 3]);
    const fetched = await backend.hostBlocks?.fetch([0, 1, 2, 3]);
    fetched?.place([10, 11, 12, 13].map((blockId) => blockId as BlockId));
    expect(await wantedOf(backend, 10)).toEqual(wanted);
    await backend.dispose();
  });

  test("of tokens that were copied", async () => {
    const { backend } = await open();
    await backend.forward(piece(0, 60, 0, []));
    const wanted = await wantedOf(backend, 0);
    const sourceSlots = Int32Array.from({ length: 60 }, (_, i) => i);
    const targetSlots = sourceSlots.map((slot) => slot + 160);
    await backend.copyTokens({ sourceSlots, targetSlots, deltas: new Int32Array(60) });
    expect(await wantedOf(backend, 10)).toEqual(wanted);
    await backend.dispose();
  });
});

describe("a backend without choices", () => {
  test("launches nothing of them, takes no memory for them, and gives the same bits", async () => {
    const { backend: plain, device } = await open({ sparse: undefined });
    const { backend } = await open();
    expect(plain.shape.sparse).toBeUndefined();
    const steps = [piece(0, 40, 0, [39]), piece(40, 41, 0, [0])];
    for (const step of steps) expect(await backend.forward(step)).toEqual(await plain.forward(step));
    expect(device.log.filter((name) => /shadow|chos/.test(name))).toEqual([]);
    expect(() => plain.choiceCounts(0)).toThrow("no row of this backend chooses");
  });
});

describe("refused before anything is launched", () => {
  test("another mode, a seat that there is not", async () => {
    const { backend, device } = await open();
    device.calls.length = 0;
    await expect(backend.forward(sparseRow(60, { chosen: 6, mode: "quest" }))).rejects.toThrow("chooses by");
    await expect(backend.forward(sparseRow(60, { chosen: 6, seat: 4 }))).rejects.toThrow("no seat 4");
    expect(device.calls).toEqual([]);
    await backend.dispose();
  });

  test("blocks of fewer tokens than a panel, when the backend is opened", async () => {
    await expect(open({ blockTokens: 8 })).rejects.toThrow("blocks have 8 tokens, and 16 are needed");
  });

  test.each([
    [{}, true, "KV is in mx8"],
    [{ headDim: 80 }, false, "heads have 80 dimensions"],
    [{ headCount: 34, kvHeadCount: 2 }, false, "more than 16 query heads"],
    [{ window: { tokens: 8, layers: [true] } }, false, "a sliding window"],
    [{ scoreCap: 50 }, false, "caps scores"],
  ])("a model or a pool that does not go with choices: %p", (change, isMx8, words) => {
    expect(() => assertChoosable({ ...model.config, ...change }, 16, isMx8)).toThrow(words);
  });
});
