/** Prompts of very many fragments: a step has no more rows than it can say of which segments they read. */
import { expect, test } from "bun:test";
import type { Batch } from "../../worker/backend/backend.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const shape = { blockCount: 600, contextTokens: 1_024 };
const fragments = Array.from({ length: 120 }, (_, i) => Int32Array.of(i % 90, (7 * i) % 90));
const manyFragments = { spans: fragments, question: countUp(1, 300) };

/** Rows times segments of each step's pieces of many rows. */
async function readsOf(stepReads: number | undefined): Promise<{ reads: number[]; world: TinyWorld }> {
  const reads: number[] = [];
  const onForward = ({ pieceRows, pieceSegments }: Batch): void => {
    let sum = 0;
    for (let p = 0; p + 1 < pieceRows.length; p++) {
      sum += (pieceRows[p + 1] - pieceRows[p]) * (pieceSegments[p + 1] - pieceSegments[p]);
    }
    reads.push(sum);
  };
  const limits = { stepTokens: 512, prefillTokensBesideDecodes: 512, stepReads };
  const world = new TinyWorld({ shape, onForward, limits: stepReads === undefined ? { stepTokens: 512 } : limits });
  world.engine.submit(submitPlan("r", manyFragments));
  world.engine.submit(submitPlan("other", { question: countUp(40, 9) }));
  await world.settle();
  return { reads, world };
}

test("a long run over many fragments goes on in pieces, with the same answer", async () => {
  const { reads, world } = await readsOf(5_000);
  expect(Math.max(...reads)).toBeLessThanOrEqual(5_000);
  expect(Math.max(...reads)).toBeGreaterThan(4_500);
  const { tokenIds } = referenceAnswer(submitPlan("r", manyFragments), world.backend.shape, eosTokenIds);
  expect(world.tokensOf("r")).toEqual([...tokenIds]);
  expect(world.finishedOf("other").reason).toBeDefined();
});

test("by default such a prompt is a step of its own tokens", async () => {
  const { reads } = await readsOf(undefined);
  expect(Math.max(...reads)).toBeGreaterThan(5_000);
});

test("there is room for a row of any run", () => {
  expect(() => new TinyWorld({ limits: { stepReads: 4_096 } })).toThrow("stepReads is 4096");
});
