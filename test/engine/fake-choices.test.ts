/** The oracle of sparse decoding itself: what the fake backend chooses, keeps and refuses. */
import { expect, test } from "bun:test";
import type { SparseShape } from "../../worker/backend/backend.ts";
import type { Batch, Choices } from "../../worker/contract/batch.ts";
import { choiceFlags, choiceModes } from "../../worker/contract/sparse.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { fakeScore, greatestScores } from "../support/fake-choices.ts";
import { countUp } from "./plans.ts";

const sparse: SparseShape = { seats: 2, listTokens: 64, shadowBytesPerBlock: 4, modes: choiceModes };
const shape = { blockCount: 24, sparse };

/** Computes 8 tokens of a span in blocks 0 and 1, and then 16 of a chain that sees it 3 later, in blocks 2 to 5. */
async function withPrompt(): Promise<FakeBackend> {
  const backend = new FakeBackend(shape);
  const rows = (count: number, from: number) => Int32Array.from({ length: count }, (_, i) => from + i);
  const parts = { segmentPositions: Int32Array.of(0), logitRows: Int32Array.of() };
  await backend.forward({
    ...parts,
    ...{ tokenIds: countUp(20, 8), positions: rows(8, 0), slots: rows(8, 0) },
    ...{ pieceRows: Int32Array.of(0, 8), pieceSegments: Int32Array.of(0, 1), segmentBlockStarts: Int32Array.of(0) },
    ...{ segmentFirstTokens: Int32Array.of(0), segmentTokenCounts: Int32Array.of(8), segmentOffsets: Int32Array.of(0) },
    blockIds: Int32Array.of(0, 1),
  });
  await backend.forward({
    ...parts,
    ...{ tokenIds: countUp(50, 16), positions: rows(16, 11), slots: rows(16, 8) },
    ...{ pieceRows: Int32Array.of(0, 16), pieceSegments: Int32Array.of(0, 2), segmentBlockStarts: Int32Array.of(0, 2) },
    ...{ segmentFirstTokens: Int32Array.of(0, 0), segmentTokenCounts: Int32Array.of(8, 16) },
    ...{ segmentOffsets: Int32Array.of(3, 0), blockIds: Int32Array.of(0, 1, 2, 3, 4, 5) },
  });
  return backend;
}

/** The row at position 27 + `step`, in block 6, with a tail from block 4 on and its buffer in blocks 10 to 14. */
function sparseRow(step: number, tokens: number, changes: Partial<Choices> = {}): Batch {
  const bufferTokens = 2 + Math.min(tokens, 8 + 8 - 2);
  const choices: Choices = {
    ...{ pieces: Int32Array.of(0), seats: Int32Array.of(1), modes: Int32Array.of(0), tokens: Int32Array.of(tokens) },
    ...{ flags: Int32Array.of(step === 0 ? choiceFlags.fresh : 0), refreshSteps: Int32Array.of(4) },
    ...{ leastCosines: Float32Array.of(0.6), segments: Int32Array.of(0, 2), segmentBlockStarts: Int32Array.of(0, 2) },
    ...{ segmentFirstTokens: Int32Array.of(0, 0), segmentTokenCounts: Int32Array.of(8, 8) },
    ...{ segmentOffsets: Int32Array.of(3, 0), segmentForced: Int32Array.of(2, 0) },
    blockIds: Int32Array.of(0, 1, 2, 3),
    ...changes,
  };
  return {
    ...{ tokenIds: Int32Array.of(70 + step), positions: Int32Array.of(27 + step), slots: Int32Array.of(24 + step) },
    ...{ pieceRows: Int32Array.of(0, 1), pieceSegments: Int32Array.of(0, 2), segmentBlockStarts: Int32Array.of(0, 5) },
    ...{ segmentFirstTokens: Int32Array.of(0, 0), segmentTokenCounts: Int32Array.of(bufferTokens, 9 + step) },
    ...{ segmentOffsets: Int32Array.of(0, 0), segmentPositions: Int32Array.of(0, 19) },
    ...{ blockIds: Int32Array.of(10, 11, 12, 13, 14, 4, 5, 6), logitRows: Int32Array.of(0) },
    choices,
  };
}

function denseRow(step: number): Batch {
  const { choices: _, ...row } = sparseRow(step, 1);
  return {
    ...row,
    ...{ segmentBlockStarts: Int32Array.of(0, 2), segmentTokenCounts: Int32Array.of(8, 17 + step) },
    ...{ segmentOffsets: Int32Array.of(3, 0), blockIds: Int32Array.of(0, 1, 2, 3, 4, 5, 6) },
  };
}

test("with room for all candidates a row computes what a dense one does", async () => {
  const [one, other] = [await withPrompt(), await withPrompt()];
  for (let step = 0; step < 3; step++) {
    expect(await one.forward(sparseRow(step, 100))).toEqual(await other.forward(denseRow(step)));
  }
  expect(one.choiceCounts(1)).toMatchObject({ lists: 3, chosen: 3, changed: 14 });
});

test("the greatest scores are in the buffer, of equal ones the earlier, at their places in the row's chain", async () => {
  const backend = await withPrompt();
  const tokens = [0, 1].flatMap((block) =>
    backend.contentOf(block).states.map((state, i) => ({ state, at: 3 + 4 * block + i })),
  );
  const own = [2, 3].flatMap((block) =>
    backend.contentOf(block).states.map((state, i) => ({ state, at: 11 + 4 * (block - 2) + i })),
  );
  const candidates = [...tokens.slice(2), ...own];
  const scores = candidates.map(({ state, at }) => fakeScore(70, 27, state, 27 - at));
  expect(new Set(scores).size).toBeLessThan(scores.length);
  await backend.forward(sparseRow(0, 4));
  const expected = [tokens[0], tokens[1], ...greatestScores(scores, 4).map((index) => candidates[index])];
  const buffer = [10, 11].map((block) => backend.contentOf(block));
  expect(buffer.flatMap(({ states }) => states).slice(0, 6)).toEqual(expected.map(({ state }) => state));
  expect(buffer.flatMap(({ positions }) => positions).slice(0, 6)).toEqual(expected.map(({ at }) => at));
});

test("of equal scores the lower number is greater", () => {
  expect(greatestScores([3, 7, 7, 1, 7], 2)).toEqual([1, 2]);
  expect(greatestScores([3, 7], 5)).toEqual([0, 1]);
});

test("what a backend could not do is refused", async () => {
  const cases: [name: string, changes: Partial<Choices>, step?: number][] = [
    ["never fresh", { flags: Int32Array.of(0) }],
    ["a seat is out of range", { seats: Int32Array.of(2) }],
    ["differ in length", { tokens: Int32Array.of() }],
    ["nothing is to be chosen", { tokens: Int32Array.of(0) }],
    ["the buffer has another length", { segmentForced: Int32Array.of(3, 0) }],
    ["before it is written", { blockIds: Int32Array.of(0, 1, 2, 20) }],
    ["what is watched chooses", { flags: Int32Array.of(choiceFlags.fresh | choiceFlags.watch) }],
  ];
  for (const [message, changes, step = 0] of cases) {
    const backend = await withPrompt();
    await expect(backend.forward(sparseRow(step, 4, changes))).rejects.toThrow(message);
  }
});

test("a token that was computed anew must be chosen anew", async () => {
  const backend = await withPrompt();
  await backend.forward(sparseRow(0, 100));
  const again = { ...denseRow(0), tokenIds: Int32Array.of(5), positions: Int32Array.of(11), slots: Int32Array.of(8) };
  const first = {
    pieceSegments: Int32Array.of(0, 1),
    segmentBlockStarts: Int32Array.of(2),
    segmentFirstTokens: Int32Array.of(0),
  };
  const one = {
    segmentTokenCounts: Int32Array.of(1),
    segmentOffsets: Int32Array.of(0),
    segmentPositions: Int32Array.of(11),
  };
  await backend.forward({ ...again, ...first, ...one });
  await expect(backend.forward(sparseRow(1, 100))).rejects.toThrow("computed anew since");
  await backend.forward(sparseRow(1, 100, { flags: Int32Array.of(choiceFlags.stale) }));
});

test("a mode that looks at earlier queries has to have seen them", async () => {
  const backend = await withPrompt();
  const ahead = { modes: Int32Array.of(choiceModes.indexOf("ahead")) };
  await backend.forward(sparseRow(0, 4, ahead));
  await backend.forward(denseRow(1));
  await expect(backend.forward(sparseRow(2, 4, ahead))).rejects.toThrow("missed the query");
});
