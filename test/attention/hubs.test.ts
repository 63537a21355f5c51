/** What many rows read in any order is read together, and in no more items than pay. */
import { describe, expect, test } from "bun:test";
import { PackPlanner } from "../../worker/attention/planner.ts";
import { Choices } from "../sim/random.ts";
import { checkPlan } from "./check.ts";
import { planCost } from "./cost.ts";
import { BlockSource, batchOf, h200, requestsOver } from "./world.ts";

test("documents in any order: what 20 rows each read is loaded once or twice", () => {
  const batch = batchOf(requestsOver(new Choices(5), { requests: 64, documents: 16, each: 5, blocks: 30 }));
  for (const hasWarpgroups of [true, false]) {
    const shape = { ...h200, hasWarpgroups };
    const plan = new PackPlanner(shape).plan(batch);
    checkPlan(batch, plan, shape);
    const cost = planCost(plan, batch, shape);
    expect(cost.loadedBytes).toBeLessThan(2 * cost.distinctBytes);
    const plain = { ...shape, packing: false };
    const unpacked = planCost(new PackPlanner(plain).plan(batch), batch, plain);
    expect(cost.loadedBytes).toBeLessThan(0.2 * unpacked.loadedBytes);
    expect(cost.microseconds).toBeLessThan(0.5 * unpacked.microseconds);
  }
});

test("with room for few partial results some of the documents are shared still", () => {
  const batch = batchOf(requestsOver(new Choices(6), { requests: 64, documents: 16, each: 5, blocks: 30 }));
  const cost = (maxPartialRows: number, packing = true) => {
    const shape = { ...h200, maxPartialRows, packing };
    const plan = new PackPlanner(shape).plan(batch);
    checkPlan(batch, plan, shape);
    expect(plan.partialCount).toBeLessThanOrEqual(maxPartialRows);
    return planCost(plan, batch, shape).loadedBytes;
  };
  const [unpacked, none, some, all] = [cost(0, false), cost(0), cost(250), cost(4_096)];
  expect(all).toBeLessThan(0.8 * some);
  expect(some).toBeLessThan(0.8 * none);
  expect(none).toBeLessThan(unpacked);
});

describe("hubs", () => {
  /** Rows 0 to 95; each hub is read by a stretch of them. */
  function hubBatch(hubs: readonly { from: number; to: number; blocks: number }[], choices: Choices) {
    const source = new BlockSource(choices);
    const shared = hubs.map((hub) => ({ ...hub, blockIds: source.take(hub.blocks) }));
    return batchOf(
      Array.from({ length: 96 }, (_, row) => {
        const own = shared.filter(({ from, to }) => from <= row && row < to);
        // Some read a hub twice.
        const seen = row % 9 === 8 ? [...own, own[own.length - 1]] : own;
        const segments = seen.map(({ blockIds }) => {
          return { blockIds, firstToken: 0, tokens: blockIds.length * 16, offset: choices.int(0, 999) };
        });
        return {
          rowCount: 1,
          segments: [...segments, { blockIds: source.take(2), firstToken: 0, tokens: 20, offset: 0 }],
        };
      }),
    );
  }

  test("within each other and across", () => {
    for (let seed = 0; seed < 8; seed++) {
      const choices = new Choices(seed);
      const shape = { ...h200, group: choices.pick([1, 4, 8]), multiprocessorCount: choices.pick([8, 132]) };
      const hubs = Array.from({ length: 5 }, () => {
        const from = choices.int(0, 80);
        return { from, to: choices.int(from + 2, 96), blocks: choices.int(10, 60) };
      });
      const batch = hubBatch([{ from: 0, to: 96, blocks: 60 }, ...hubs], choices);
      checkPlan(batch, new PackPlanner(shape).plan(batch), shape);
    }
  });

  test("a hub of whole items takes in the one above it: one partial result a row for both, one for the rest", () => {
    const thirds = [0, 32, 64].map((from) => ({ from, to: from + 32, blocks: 700 }));
    const batch = hubBatch([{ from: 0, to: 96, blocks: 700 }, ...thirds], new Choices(1));
    const shape = { ...h200, multiprocessorCount: 8, group: 8 };
    const plan = new PackPlanner(shape).plan(batch);
    checkPlan(batch, plan, shape);
    expect(plan.largeItems.length).toBeGreaterThan(0);
    const parts = Array.from({ length: plan.merges.length / 4 }, (_, i) => plan.merges[i * 4 + 2]);
    expect(Math.max(...parts)).toBe(2);
  });

  test("a long hub is not read again for hubs below it that fill their items badly", () => {
    const below = [0, 33, 66].map((from) => ({ from, to: Math.min(96, from + 33), blocks: 128 }));
    const batch = hubBatch([{ from: 0, to: 96, blocks: 2_000 }, ...below], new Choices(1));
    const plan = new PackPlanner(h200).plan(batch);
    const parts = Array.from({ length: plan.merges.length / 4 }, (_, i) => plan.merges[i * 4 + 2]);
    expect(Math.max(...parts)).toBeGreaterThan(2);
    const cost = planCost(plan, batch, h200);
    expect(cost.loadedBytes).toBeLessThan(3.3 * cost.distinctBytes);
  });

  test("a few rows over one long run share every part of it", () => {
    const source = new BlockSource(new Choices(1));
    const long = { blockIds: source.take(1_000), firstToken: 0, tokens: 16_000, offset: 0 };
    const rows = Array.from({ length: 4 }, () => {
      const own = { blockIds: source.take(1), firstToken: 0, tokens: 9, offset: 0 };
      return { rowCount: 1, segments: [long, own] };
    });
    const batch = batchOf(rows);
    const cost = planCost(new PackPlanner(h200).plan(batch), batch, h200);
    expect(cost.loadedBytes).toBeLessThan(1.05 * cost.distinctBytes);
  });
});
