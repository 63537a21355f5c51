/** The arrays of a step, written out. */
import { expect, test } from "bun:test";
import { BlockPool } from "../../worker/cache/block-pool.ts";
import { KvEventLog } from "../../worker/cache/kv-events.ts";
import { PrefixCache } from "../../worker/cache/prefix-cache.ts";
import type { BlockId } from "../../worker/contract/units.ts";
import { BatchBuilder } from "../../worker/engine/batch.ts";
import { Request } from "../../worker/engine/request.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { countUp, makeRuns, submitRuns } from "./plans.ts";

function makeRequest(): Request {
  const runs = makeRuns({ system: countUp(1, 3), spans: [countUp(20, 10)], question: countUp(60, 6) }, true);
  // The question sees tokens 5..8 of the span only, where they stand at 3..6; so it begins at 7.
  const part = { run: 1, firstToken: 5, tokenCount: 4, offset: -2 };
  const question = { ...runs[2], position: 7, sees: [runs[2].sees[0], part] };
  const message = submitRuns("r", [runs[0], runs[1], question]);
  return new Request(message, new FakeBackend().shape, [], 0);
}

test("rows, segments that begin in mid-block, and the causal segment of the run itself", () => {
  const request = makeRequest();
  const [system, span, question] = request.runs;
  const cache = new PrefixCache(new BlockPool(8), 4, new KvEventLog());
  for (const [run, blocks] of [
    [system, [7]],
    [span, [2, 0, 5]],
    [question, [3, 1]],
  ] as const) {
    for (const blockId of blocks as readonly number[] as readonly BlockId[]) {
      cache.retain(blockId);
      run.blocks.push(blockId);
    }
  }
  system.advance(3, cache);
  span.advance(8, cache);
  const builder = new BatchBuilder(4);
  const pieceOfSpan = { request, run: span, firstToken: 8, rowCount: 2, wantsLogits: false };
  expect(builder.build([pieceOfSpan])).toEqual({
    tokenIds: Int32Array.of(28, 29),
    positions: Int32Array.of(8, 9),
    slots: Int32Array.of(20, 21),
    pieceRows: Int32Array.of(0, 2),
    pieceSegments: Int32Array.of(0, 1),
    pieceGenerated: Int32Array.of(0),
    segmentBlockStarts: Int32Array.of(0),
    segmentFirstTokens: Int32Array.of(0),
    segmentTokenCounts: Int32Array.of(10),
    segmentOffsets: Int32Array.of(0),
    segmentPositions: Int32Array.of(0),
    blockIds: Int32Array.of(2, 0, 5),
    logitRows: new Int32Array(0),
  });
  span.advance(2, cache);
  question.advance(3, cache);
  // Two stretches of one run, as of a blended one.
  const first = { request, run: question, firstToken: 3, rowCount: 2, wantsLogits: false };
  const last = { request, run: question, firstToken: 3, rowCount: 3, wantsLogits: true };
  const batch = builder.build([first, last]);
  expect(batch).toEqual({
    tokenIds: Int32Array.of(63, 64, 63, 64, 65),
    positions: Int32Array.of(10, 11, 10, 11, 12),
    slots: Int32Array.of(15, 4, 15, 4, 5),
    pieceRows: Int32Array.of(0, 2, 5),
    pieceSegments: Int32Array.of(0, 3, 6),
    pieceGenerated: Int32Array.of(0, 0),
    // blocks: 7 | 0 5 | 3 1, once for both pieces
    segmentBlockStarts: Int32Array.of(0, 1, 3, 0, 1, 3),
    segmentFirstTokens: Int32Array.of(0, 1, 0, 0, 1, 0),
    segmentTokenCounts: Int32Array.of(3, 4, 5, 3, 4, 6),
    segmentOffsets: Int32Array.of(0, -2, 0, 0, -2, 0),
    segmentPositions: Int32Array.of(0, 5, 7, 0, 5, 7),
    blockIds: Int32Array.of(7, 0, 5, 3, 1),
    logitRows: Int32Array.of(4),
  });
});

test("a piece of a prompt's last tokens and generated ones becomes two, of which the second has the logits", () => {
  const request = makeRequest();
  const question = request.runs[2];
  question.blocks.push(...([3, 1, 2] as BlockId[]));
  for (const tokenId of [70, 71]) question.append(tokenId);
  const build = (firstToken: number, rowCount: number) =>
    new BatchBuilder(4).build([{ request, run: question, firstToken, rowCount, wantsLogits: true }]);
  const prompt = question.promptTokens;
  const across = build(prompt - 2, 4);
  expect([...across.pieceRows]).toEqual([0, 2, 4]);
  expect([...(across.pieceGenerated ?? [])]).toEqual([0, 1]);
  expect([...across.logitRows]).toEqual([3]);
  // The first part sees the run up to its own last row.
  const own = [...across.pieceSegments.slice(1)].map((end) => across.segmentTokenCounts[end - 1]);
  expect(own).toEqual([prompt, prompt + 2]);
  expect([...(build(prompt, 2).pieceGenerated ?? [])]).toEqual([1]);
  expect([...(build(prompt - 2, 2).pieceGenerated ?? [])]).toEqual([0]);
});

test("the memory of one step is used again by the next", () => {
  const request = makeRequest();
  const [system] = request.runs;
  system.blocks.push(0 as BlockId);
  const builder = new BatchBuilder(4);
  const piece = { request, run: system, firstToken: 0, rowCount: 3, wantsLogits: false };
  const before = builder.build([piece]);
  const after = builder.build([piece, piece]);
  expect(after.tokenIds.buffer).toBe(before.tokenIds.buffer);
  expect(Array.from(after.tokenIds)).toEqual([1, 2, 3, 1, 2, 3]);
});
