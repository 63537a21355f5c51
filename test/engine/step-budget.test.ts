/** Steps over very many fragments: no more rows than there is room for in what a backend is told of them. */
import { describe, expect, test } from "bun:test";
import { mostPieceWords } from "../../worker/attention/plan-format.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { limits as planLimits } from "../../worker/contract/limits.ts";
import { blockCountForTokens } from "../../worker/contract/units.ts";
import { defaultEngineLimits } from "../../worker/engine/limits.ts";
import { Run } from "../../worker/engine/run.ts";
import { ListBudget } from "../../worker/engine/step-budget.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, makeRuns, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const shape = { blockCount: 600, contextTokens: 1_024 };
const contextBlocks = 256;
const fragments = Array.from({ length: 120 }, (_, i) => Int32Array.of(i % 90, (7 * i) % 90));
const manyFragments = { spans: fragments, question: countUp(1, 300) };

function listWords({ pieceRows, pieceSegments, blockIds }: Batch): number {
  let sum = blockIds.length;
  for (let p = 0; p + 1 < pieceRows.length; p++) {
    sum += mostPieceWords(pieceSegments[p + 1] - pieceSegments[p], pieceRows[p + 1] - pieceRows[p]);
  }
  return sum;
}

/** Words of each step's lists, and its rows. */
async function stepsOf(stepListWords: number | undefined) {
  const steps: { words: number; rows: number }[] = [];
  const onForward = (batch: Batch): void => {
    steps.push({ words: listWords(batch), rows: batch.tokenIds.length });
  };
  const limits = { stepTokens: 512, prefillTokensBesideDecodes: 512, maxRunningRequests: 4 };
  const world = new TinyWorld({
    shape,
    onForward,
    limits: stepListWords === undefined ? limits : { ...limits, stepListWords },
  });
  world.engine.submit(submitPlan("r", manyFragments));
  world.engine.submit(submitPlan("other", { question: countUp(40, 9) }));
  await world.settle();
  return { steps, world };
}

test("a long run over many fragments goes on in pieces, with the same answer", async () => {
  const { steps, world } = await stepsOf(40_000);
  expect(Math.max(...steps.map(({ words }) => words))).toBeLessThanOrEqual(40_000 + 4 * contextBlocks);
  expect(Math.max(...steps.map(({ words }) => words))).toBeGreaterThan(35_000);
  const { tokenIds } = referenceAnswer(submitPlan("r", manyFragments), world.backend.shape, eosTokenIds);
  expect(world.tokensOf("r")).toEqual([...tokenIds]);
  expect(world.finishedOf("other").reason).toBeDefined();
});

test("by default all rows of such a prompt are one step's", async () => {
  const { steps } = await stepsOf(undefined);
  expect(Math.max(...steps.map(({ rows }) => rows))).toBe(300 + 1);
});

describe("by default", () => {
  test("prompts have room for a row of any run, whatever decodes", () => {
    const segments = planLimits.maxSegmentsPerRun + 1;
    const blocks = segments + blockCountForTokens(planLimits.maxRequestTokens, 16);
    expect(defaultEngineLimits.stepListWords / 4).toBeGreaterThan(mostPieceWords(segments, 1) + blocks);
  });

  test("a step has room for rows as many as they are where texts are as usual", () => {
    // 1,024 requests over 32 fragments of 512 tokens; 8,192 rows of a prompt over 219 fragments.
    const decodes = 1_024 * (mostPieceWords(33, 1) + 32 * 32);
    expect(decodes).toBeLessThan(0.75 * (defaultEngineLimits.stepListWords + (1_024 * 32_768) / 16));
    expect(mostPieceWords(220, 8_192)).toBeLessThan(defaultEngineLimits.stepListWords);
  });
});

describe("ListBudget", () => {
  const runOver = (spanCount: number): Run => {
    const spans = fragments.slice(0, spanCount);
    const plans = makeRuns({ spans, question: countUp(1, 300) }, true);
    return new Run(plans[plans.length - 1], true, true, 4);
  };

  test("has room for whole rows, a piece's blocks and what its rows read", () => {
    const run = runOver(9);
    const blocks = 9 + 75;
    const room = new ListBudget(blocks + 10 * 120 + 119);
    expect(room.rowsFor(run, 100)).toBe(10);
    expect(room.rowsFor(run, 100, 0, "scattered")).toBe(10);
    expect(room.rowsFor(run, 100, 0, "together", 120)).toBe(9);
    room.take(run, 4);
    expect(room.rowsFor(run, 100, 4)).toBe(6);
    expect(room.rowsFor(runOver(9), 100)).toBe(6);
    room.giveBack(run, 4);
    expect(room.rowsFor(run, 100)).toBe(10);
  });

  test("rows of a long piece cost less than single ones", () => {
    const run = runOver(9);
    const room = new ListBudget(84 + 10 * (136 + 150));
    expect(room.rowsFor(run, 300)).toBe(150);
    expect(room.rowsFor(run, 300, 0, "scattered")).toBe(23);
  });

  test("has room for one row in any case, and for no second one", () => {
    const run = runOver(9);
    const room = new ListBudget(1);
    expect(room.rowsFor(run, 5)).toBe(1);
    expect(room.rowsFor(run, 0)).toBe(0);
    room.take(run, 1);
    expect(room.rowsFor(runOver(0), 5)).toBe(0);
  });
});
