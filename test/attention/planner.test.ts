/** Every token that a batch shows to a row is read for it once, whatever is shared. */
import { describe, expect, test } from "bun:test";
import { type AttentionPlan, mostPieceWords, planItemWords, planRowWords } from "../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../worker/attention/planner.ts";
import type { PackShape } from "../../worker/attention/shape.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { Choices } from "../sim/random.ts";
import { attentionTrees, treeBatch, treeName } from "../support/attention-trees.ts";
import { checkPlan } from "./check.ts";
import { planCost } from "./cost.ts";
import { BlockSource, batchOf, h200, type PieceSpec, randomPieces } from "./world.ts";

function randomShape(choices: Choices): PackShape {
  return {
    ...h200,
    group: choices.pick([1, 2, 3, 4, 6, 8, 16, 32]),
    kvHeads: choices.pick([1, 2, 8]),
    blockTokens: choices.pick([4, 16]),
    multiprocessorCount: choices.pick([1, 8, 132]),
    packing: choices.chance(0.8),
    maxPartialRows: choices.pick([0, 20, 1 << 20]),
  };
}

/** Rows of an item are of one piece. */
function expectOnePiece({ pieceRows }: Batch, { rows, smallItems, largeItems }: AttentionPlan): void {
  const pieceOf = (row: number) => pieceRows.findLastIndex((first) => first <= row);
  for (const items of [smallItems, largeItems]) {
    for (let at = 0; at < items.length; at += planItemWords) {
      const own = Array.from({ length: items[at + 1] }, (_, i) => pieceOf(rows[(items[at] + i) * planRowWords]));
      expect(new Set(own).size).toBe(1);
    }
  }
}

test("random fragments: each row reads each token that it sees once, packed or not", () => {
  for (let seed = 0; seed < 60; seed++) {
    const choices = new Choices(seed);
    const shape = randomShape(choices);
    const pieces = randomPieces(choices, {
      blockTokens: shape.blockTokens,
      documents: choices.int(1, 6),
      pieces: choices.int(1, 24),
      maxBlocks: choices.pick([3, 30]),
      maxRows: choices.pick([3, 200]),
      maxSegments: 4,
    });
    const batch = batchOf(pieces);
    const plan = new PackPlanner(shape).plan(batch);
    try {
      checkPlan(batch, plan, shape);
      if (!shape.packing) expectOnePiece(batch, plan);
      expect(plan.partialCount).toBeLessThanOrEqual(shape.maxPartialRows);
    } catch (error) {
      throw new Error(`seed ${seed}: ${String(error)}`, { cause: error });
    }
  }
});

test("trees of shared prefixes, as segments and as one chain, with offsets of each row's own", () => {
  for (const [index, tree] of attentionTrees.entries()) {
    // An eighth of the tokens, and at most 128 queries.
    const scale = Math.max(1, (tree.nodes.at(-1) ?? 1) / 128);
    const small = {
      nodes: tree.nodes.map((count) => Math.max(1, Math.floor(count / scale))),
      tokens: tree.tokens.map((count) => Math.max(4, count / 32)),
    };
    const options = { blockTokens: 4, seed: index, oneSegment: index % 2 === 0 };
    const { batch } = treeBatch(small, index % 4 === 1 ? { ...options, offsetLimit: 90 } : options);
    const shape = { ...h200, blockTokens: 4, multiprocessorCount: index % 3 === 0 ? 4 : 132 };
    checkPlan(batch, new PackPlanner(shape).plan(batch), shape);
  }
});

test("a tree is loaded few times, and far less often than row by row", () => {
  for (const [index, tree] of attentionTrees.entries()) {
    const { batch } = treeBatch(tree, { blockTokens: 16, seed: index, offsetLimit: 1_000 });
    const packed = planCost(new PackPlanner(h200).plan(batch), batch, h200);
    const plain = { ...h200, packing: false };
    const unpacked = planCost(new PackPlanner(plain).plan(batch), batch, plain);
    expect([treeName(tree), packed.distinctBytes]).toEqual([treeName(tree), unpacked.distinctBytes]);
    // Once more out of the second-level cache is cheaper than a partial result for each row.
    expect(packed.loadedBytes).toBeLessThanOrEqual(4.8 * packed.distinctBytes);
    expect(packed.microseconds).toBeLessThanOrEqual(1.01 * unpacked.microseconds);
  }
});

test("by estimate trees take little longer than reading each node once", () => {
  for (const [group, bound] of [
    [4, 1.8],
    [8, 2.5],
  ]) {
    const shape = { ...h200, group };
    const logs = attentionTrees.map((tree, index) => {
      const { batch } = treeBatch(tree, { blockTokens: 16, seed: index });
      const { microseconds, distinctBytes } = planCost(new PackPlanner(shape).plan(batch), batch, shape);
      return Math.log(microseconds / (distinctBytes / 4.3e6));
    });
    const mean = Math.exp(logs.reduce((sum, log) => sum + log, 0) / logs.length);
    expect(mean).toBeLessThan(bound);
  }
});

test("a chain whose prefixes are shared is loaded as if its parts were segments", () => {
  for (const tree of attentionTrees.slice(0, 10)) {
    const costs = [false, true].map((oneSegment) => {
      const { batch } = treeBatch(tree, { blockTokens: 16, seed: 3, oneSegment });
      return planCost(new PackPlanner(h200).plan(batch), batch, h200).loadedBytes;
    });
    expect(costs[0]).toBe(costs[1]);
  }
});

test("where the first rows of a segment stand in a request makes no difference to what is loaded", () => {
  for (const tree of attentionTrees.slice(0, 10)) {
    const costs = [undefined, 4_096].map((offsetLimit) => {
      const { batch } = treeBatch(tree, { blockTokens: 16, seed: 3, offsetLimit });
      return planCost(new PackPlanner(h200).plan(batch), batch, h200).loadedBytes;
    });
    expect(costs[0]).toBe(costs[1]);
  }
});

test("chains that part at every block have no more words than if they shared nothing", () => {
  const source = new BlockSource(new Choices(4));
  const chain = source.take(60);
  const pieces = Array.from({ length: 60 }, (_, i): PieceSpec => {
    const seen = { blockIds: chain.slice(0, i + 1), firstToken: 0, tokens: 16 * (i + 1), offset: i % 7 };
    return { rowCount: 1, segments: [seen, { blockIds: source.take(1), firstToken: 0, tokens: 3, offset: 0 }] };
  });
  const batch = batchOf(pieces);
  const wordsOf = ({ slices, offsets }: AttentionPlan) => slices.length + offsets.length;
  const mostWords = 60 * mostPieceWords(2, 1);
  const free = new PackPlanner(h200).plan(batch);
  expect(wordsOf(free)).toBeGreaterThan(1.5 * mostWords);
  const bound = new PackPlanner(h200, 1).plan(batch);
  expect(wordsOf(bound)).toBeLessThanOrEqual(mostWords);
  for (const plan of [free, bound]) checkPlan(batch, plan, h200);
});

describe("long contexts", () => {
  const lone = (blocks: number, count: number): PieceSpec[] => {
    const source = new BlockSource(new Choices(1));
    return Array.from({ length: count }, () => {
      const own = { blockIds: source.take(blocks), firstToken: 0, tokens: blocks * 16 - 3, offset: 0 };
      return { rowCount: 1, segments: [own] };
    });
  };

  test("one row fills the chip", () => {
    const batch = batchOf(lone(512, 1));
    const plan = new PackPlanner(h200).plan(batch);
    checkPlan(batch, plan, h200);
    expect(plan.smallItems.length / 8).toBeGreaterThanOrEqual(16);
    expect(plan.smallItems.length / 8).toBeLessThanOrEqual(64);
  });

  test("split anywhere, no part is empty", () => {
    const [piece] = lone(200, 1);
    for (let tokens = 1_100; tokens < 1_300; tokens++) {
      const firstToken = tokens % 13;
      const blockIds = piece.segments[0].blockIds.slice(0, Math.ceil((firstToken + tokens) / 16));
      const batch = batchOf([{ rowCount: 1, segments: [{ ...piece.segments[0], blockIds, firstToken, tokens }] }]);
      checkPlan(batch, new PackPlanner(h200).plan(batch), h200);
    }
  });

  test("a short one is not split, and a full chip is not split for nothing", () => {
    expect(new PackPlanner(h200).plan(batchOf(lone(6, 1))).partialCount).toBe(0);
    expect(new PackPlanner(h200).plan(batchOf(lone(64, 264))).partialCount).toBe(0);
  });
});

describe("prefill", () => {
  const question = (rows: number, before: number): PieceSpec[] => {
    const source = new BlockSource(new Choices(2));
    const fragments = [37, 64, 5].map((tokens) => ({
      blockIds: source.take(Math.ceil(tokens / 16)),
      firstToken: 0,
      tokens,
      offset: 100,
    }));
    const tokens = before + rows;
    const own = { blockIds: source.take(Math.ceil(tokens / 16)), firstToken: 0, tokens, offset: 0 };
    return [{ rowCount: rows, segments: [...fragments, own] }];
  };

  test("more rows than a small item has stand in large ones", () => {
    const batch = batchOf(question(100, 50));
    const plan = new PackPlanner(h200).plan(batch);
    checkPlan(batch, plan, h200);
    expect(plan.smallItems.length).toBe(0);
    expect(plan.largeItems.length / 8).toBe(4);
  });

  test("offsets are written once for all items of a piece, and once for neighbours that have the same", () => {
    const batch = batchOf(question(300, 50));
    const { offsets, largeItems } = new PackPlanner(h200).plan(batch);
    expect(largeItems.length / 8).toBe(10);
    // Three fragments at one offset, then the piece's own run: for 32 rows of an item each.
    expect([...offsets]).toEqual([...new Array(32).fill(100), ...new Array(32).fill(0)]);
  });

  test("a few rows see each other as they should, and so do rows of a split tile", () => {
    for (const [rows, before] of [
      [2, 0],
      [5, 11],
      [16, 3],
      [9, 6_000],
      [17, 700],
      [300, 5_000],
    ]) {
      const batch = batchOf(question(rows, before));
      checkPlan(batch, new PackPlanner(h200).plan(batch), h200);
    }
  });
});
