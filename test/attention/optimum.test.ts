/** Plans of small steps against the best of all plans, found by trying them all. */
import { expect, test } from "bun:test";
import { itemCost, kernelTime, mergeTime } from "../../worker/attention/estimate.ts";
import { PackPlanner } from "../../worker/attention/planner.ts";
import { type PackShape, packCosts } from "../../worker/attention/shape.ts";
import { Choices } from "../sim/random.ts";
import { planCost } from "./cost.ts";
import { BlockSource, batchOf } from "./world.ts";

/** Groups of 16 heads: each row is an m-tile, so an item has 4 or 8 rows; the chip is full with one item. */
const shape: PackShape = {
  group: 16,
  kvHeads: 8,
  headDim: 128,
  blockTokens: 16,
  multiprocessorCount: 1,
  hasWarpgroups: true,
  packing: true,
  maxPartialRows: 1 << 20,
};
const costs = packCosts(shape);

/** Fragments and which of `rowCount` rows read each; every row has tokens of its own too. */
interface Problem {
  readonly rowCount: number;
  readonly fragments: readonly { readonly tokens: number; readonly readers: readonly number[] }[];
  readonly own: readonly number[];
}

function randomProblem(choices: Choices): Problem {
  const rowCount = choices.int(2, 6);
  const rows = Array.from({ length: rowCount }, (_, row) => row);
  const isTree = choices.chance(0.5);
  const tokens = () => 16 * choices.int(1, choices.pick([4, 40, 160]));
  const fragments = isTree
    ? [rows, rows.slice(0, choices.int(1, rowCount)), rows.slice(choices.int(1, rowCount - 1))]
    : Array.from({ length: choices.int(1, 4) }, () => rows.filter(() => choices.chance(0.6)));
  return {
    rowCount,
    fragments: fragments.map((readers) => ({ tokens: tokens(), readers })),
    own: rows.map(() => 16 * choices.int(1, 6)),
  };
}

function batchOfProblem({ fragments, own }: Problem, choices: Choices) {
  const source = new BlockSource(choices);
  const shared = fragments.map(({ tokens, readers }) => ({ blockIds: source.take(tokens / 16), tokens, readers }));
  return batchOf(
    own.map((tokens, row) => ({
      rowCount: 1,
      segments: [
        ...shared.flatMap(({ blockIds, tokens, readers }) =>
          readers.includes(row) ? [{ blockIds, firstToken: 0, tokens, offset: choices.int(0, 900) }] : [],
        ),
        { blockIds: source.take(tokens / 16), firstToken: 0, tokens, offset: 0 },
      ],
    })),
  );
}

/** All ways to part rows into sets. */
function partitions(rows: readonly number[]): number[][][] {
  if (rows.length === 0) return [[]];
  const [first, ...rest] = rows;
  return partitions(rest).flatMap((sets) => [
    [[first], ...sets],
    ...sets.map((set, i) => [...sets.slice(0, i), [first, ...set], ...sets.slice(i + 1)]),
  ]);
}

/** Every choice of hubs, of the kernel that serves them, and of rows that share a leaf item. */
function bestTime(problem: Problem): number {
  const rows = Array.from({ length: problem.rowCount }, (_, row) => row);
  const sets = partitions(rows).filter((all) => all.every((set) => set.length <= 4));
  let best = Number.POSITIVE_INFINITY;
  for (let hubs = 0; hubs < 2 ** problem.fragments.length; hubs++) {
    const isHub = problem.fragments.map((_, i) => (hubs >> i) % 2 === 1);
    for (const itemRows of [4, 8]) {
      for (const leaves of sets) best = Math.min(best, timeOf(problem, isHub, itemRows, leaves));
    }
  }
  return best * costs.seconds * 1e6;
}

function timeOf({ fragments, own }: Problem, isHub: boolean[], itemRows: number, leaves: number[][]): number {
  const small: number[] = [];
  const large: number[] = [];
  let mergedTiles = 0;
  let [smallTokens, largeTokens] = [own.reduce((sum, tokens) => sum + tokens, 0), 0];
  const isInHub = (row: number) => fragments.some(({ readers }, i) => isHub[i] && readers.includes(row));
  for (const [i, { tokens, readers }] of fragments.entries()) {
    if (readers.length === 0) continue;
    const isLarge = isHub[i] && itemRows === 8;
    if (isLarge) largeTokens += tokens;
    else smallTokens += tokens;
    for (let at = 0; isHub[i] && at < readers.length; at += itemRows) {
      const count = Math.min(itemRows, readers.length - at);
      if (!isLarge) mergedTiles = Math.max(mergedTiles, count);
      (isLarge ? large : small).push(
        itemCost(tokens, tokens * count, count, isLarge ? costs.large : costs.small, costs),
      );
    }
  }
  for (const set of leaves) {
    let loads = set.reduce((sum, row) => sum + own[row], 0);
    let tileTokens = loads;
    for (const [i, { tokens, readers }] of fragments.entries()) {
      const inSet = isHub[i] ? 0 : set.filter((row) => readers.includes(row)).length;
      loads += inSet === set.length ? tokens : inSet * tokens;
      tileTokens += inSet * tokens;
    }
    if (set.some(isInHub)) mergedTiles = Math.max(mergedTiles, set.length);
    small.push(itemCost(loads, tileTokens, set.filter(isInHub).length, costs.small, costs));
  }
  const smallTime = kernelTime(Int32Array.from(small), smallTokens, costs.small, costs);
  const largeTime = kernelTime(Int32Array.from(large), largeTokens, costs.large, costs);
  return smallTime + largeTime + mergeTime(mergedTiles, costs) + (large.length > 0 ? costs.launch : 0);
}

test("plans of up to six rows take at most half longer than the best, and a twentieth on average", () => {
  let [sum, worst] = [0, 0];
  const rounds = 60;
  for (let seed = 0; seed < rounds; seed++) {
    const choices = new Choices(seed);
    const problem = randomProblem(choices);
    const batch = batchOfProblem(problem, choices);
    const { microseconds } = planCost(new PackPlanner(shape).plan(batch), batch, shape);
    const ratio = microseconds / bestTime(problem);
    sum += ratio;
    worst = Math.max(worst, ratio);
  }
  expect(worst).toBeLessThan(1.5);
  expect(sum / rounds).toBeLessThan(1.05);
}, 60_000);
