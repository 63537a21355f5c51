/** Rows that choose what they read, in a whole model on the CPU: against the same rows that read all. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { CpuBackend, type CpuBackendOptions, numericMode } from "../../worker/backend/cpu/cpu-backend.ts";
import type { Batch, Choices } from "../../worker/contract/batch.ts";
import { type ChoiceMode, choiceFlags, choiceModes } from "../../worker/contract/sparse.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { loadModel } from "../../worker/model/load.ts";
import { ModelError } from "../../worker/model/model-error.ts";
import { tinyConfig, writeModelFolder } from "../model/folder.ts";
import { Random } from "../native/random.ts";
import { testSeed } from "../support/seed.ts";
import { beside, chainPieces } from "./chain-pieces.ts";

const options: CpuBackendOptions = {
  weightMode: "float32",
  kvType: "float32",
  kvBytes: 1 << 20,
  blockTokens: 16,
  threadCount: 2,
  maxRows: 64,
  maxLogitRows: 64,
  sparse: { seats: 2, listTokens: 48, shadowBits: 4, rings: true },
};
const random = new Random(testSeed());
const tokens = Int32Array.from({ length: 80 }, () => random.integer(0, tinyConfig.vocab_size - 1));
const bufferBlocks = [20, 21, 22];
const segmentOf = (values: readonly number[]) => Int32Array.from(values);

const piece = chainPieces(tokens);

interface Sparse {
  readonly chosen: number;
  readonly mode?: ChoiceMode;
  readonly flags?: number;
  readonly blocks?: readonly number[];
}

/** The row at `position` of the chain in `blocks`, which chooses from its first two blocks. */
function sparseRow(position: number, { chosen, mode = "now", flags = 0, blocks = [0, 1, 2, 3, 4] }: Sparse): Batch {
  const choices: Choices = {
    pieces: segmentOf([0]),
    seats: segmentOf([1]),
    flags: segmentOf([flags]),
    modes: segmentOf([choiceModes.indexOf(mode)]),
    tokens: segmentOf([chosen]),
    refreshSteps: segmentOf([4]),
    leastCosines: Float32Array.of(0.6),
    segments: segmentOf([0, 1]),
    segmentBlockStarts: segmentOf([0]),
    segmentFirstTokens: segmentOf([0]),
    segmentTokenCounts: segmentOf([32]),
    segmentOffsets: segmentOf([0]),
    segmentForced: segmentOf([4]),
    blockIds: segmentOf(blocks.slice(0, 2)),
  };
  return {
    tokenIds: tokens.slice(position, position + 1),
    positions: segmentOf([position]),
    slots: segmentOf([blocks[Math.floor(position / 16)] * 16 + (position % 16)]),
    pieceRows: segmentOf([0, 1]),
    pieceSegments: segmentOf([0, 2]),
    segmentBlockStarts: segmentOf([0, 3]),
    segmentFirstTokens: segmentOf([0, 0]),
    segmentTokenCounts: segmentOf([4 + Math.min(chosen, 28), position - 31]),
    segmentOffsets: segmentOf([0, 0]),
    segmentPositions: segmentOf([0, 32]),
    blockIds: segmentOf([...bufferBlocks, ...blocks.slice(2)]),
    logitRows: segmentOf([0]),
    choices,
  };
}

const greatest = (a: Float32Array, b: Float32Array) =>
  a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i])), 0);

// Attention over a copy sums in another order; see cpu-backend.test.ts for the size of it.
const rounding = 1e-4;

describe.each(["onnx", "native"] as const)("products by %s", (dense) => {
  const folder = writeModelFolder(tinyConfig);
  const chosen = { ...options, dense };
  let backend: CpuBackend;
  beforeAll(async () => {
    backend = await CpuBackend.open(loadModel(folder, numericMode(chosen)), chosen);
  });
  afterAll(() => backend.dispose());
  const prefill = (count: number, firstBlock: number) => backend.forward(piece(0, count, firstBlock, []));

  test("a row that chooses everything gives what it gives when it reads everything, in every mode", async () => {
    await prefill(60, 0);
    const wanted = (await backend.forward(piece(60, 61, 0, [0]))).slice();
    for (const mode of choiceModes) {
      const row = sparseRow(60, { chosen: 28, mode, flags: choiceFlags.fresh });
      expect(greatest(await backend.forward(row), wanted)).toBeLessThan(rounding);
    }
  });

  test("with fewer it gives something else, and what stands beside it changes nothing", async () => {
    await prefill(60, 0);
    const wanted = (await backend.forward(piece(60, 61, 0, [0]))).slice();
    const row = sparseRow(60, { chosen: 6, flags: choiceFlags.fresh });
    const alone = (await backend.forward(row)).slice();
    expect(greatest(alone, wanted)).toBeGreaterThan(rounding);
    const counts = backend.choiceCounts(1);
    expect(counts).toMatchObject({ chosenAgain: 0, measured: 1 });
    expect(counts.changed).toBe(6 * counts.lists);
    const joined = await backend.forward(beside(row, piece(0, 20, 10, [])));
    expect(greatest(joined, alone)).toBeLessThan(dense === "native" ? Number.MIN_VALUE : rounding);
    expect(backend.choiceCounts(1)).toEqual(counts);
  });

  test("counts of a step in which rows are left out are those of all its layers", async () => {
    await prefill(62, 0);
    for (const position of [60, 61]) {
      const flags = position === 60 ? choiceFlags.fresh : 0;
      await backend.forward(beside(sparseRow(position, { chosen: 6, flags }), piece(0, 20, 10, [])));
    }
    const lists = tinyConfig.num_hidden_layers * tinyConfig.num_key_value_heads;
    expect(backend.choiceCounts(1).lists).toBe(2 * lists);
  });

  test("blocks that are brought back have shadows", async () => {
    await prefill(60, 0);
    const row = (blocks?: readonly number[]) => sparseRow(60, { chosen: 6, flags: choiceFlags.fresh, blocks });
    const wanted = (await backend.forward(row())).slice();
    const packed = new Uint8Array(backend.mover.format.bytes);
    for (const block of [0, 1, 2, 3]) {
      backend.mover.pack(block as BlockId, 16, packed);
      backend.mover.unpack((block + 12) as BlockId, packed);
    }
    expect(greatest(await backend.forward(row([12, 13, 14, 15, 16])), wanted)).toBe(0);
  });
});

describe("what cannot choose is refused by name", () => {
  const open = async (change: Partial<CpuBackendOptions>, config = {}): Promise<void> => {
    const chosen = { ...options, ...change };
    const model = loadModel(writeModelFolder({ ...tinyConfig, ...config }), numericMode(chosen));
    await (await CpuBackend.open(model, chosen)).dispose();
  };
  const sparse = { seats: 2, listTokens: 48, shadowBits: 4, rings: true } as const;

  test.each([
    ["2 bits", { sparse: { ...sparse, shadowBits: 2 as const } }, {}, /shadows of 2 bits/],
    ["small blocks", { blockTokens: 8 }, {}, /blocks of 8 tokens/],
    ["no seats", { sparse: { ...sparse, seats: 0 } }, {}, /seats must be an integer/],
    ["no room in lists", { sparse: { ...sparse, listTokens: 0 } }, {}, /listTokens must be an integer/],
  ])("%s", async (_name, change, config, message) => {
    await expect(open(change, config)).rejects.toThrow(message);
  });

  test("modes that need a ring are not offered without one", async () => {
    const chosen = { ...options, sparse: { ...sparse, rings: false } };
    const backend = await CpuBackend.open(loadModel(writeModelFolder(tinyConfig), numericMode(chosen)), chosen);
    expect(backend.shape.sparse?.modes).toEqual(["now", "exact", "quest", "tova"]);
    await backend.forward(piece(0, 60, 0, []));
    const row = sparseRow(60, { chosen: 6, mode: "ahead", flags: choiceFlags.fresh });
    await expect(backend.forward(row)).rejects.toThrow(/choices do not fit/);
    await backend.dispose();
  });

  test("a backend without seats holds nothing, and takes no choices", async () => {
    const chosen = { ...options, sparse: undefined };
    const backend = await CpuBackend.open(loadModel(writeModelFolder(tinyConfig), numericMode(chosen)), chosen);
    expect(backend.shape.sparse).toBeUndefined();
    await backend.forward(piece(0, 60, 0, []));
    await expect(backend.forward(sparseRow(60, { chosen: 6 }))).rejects.toThrow(/no seats/);
    expect(() => backend.choiceCounts(0)).toThrow(/no seats/);
    await backend.dispose();
  });

  test("more memory than there is for K's shadows", async () => {
    await expect(open({ kvBytes: 2 ** 50 })).rejects.toBeInstanceOf(ModelError);
  });
});
