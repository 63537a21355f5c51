/** The pack scheduler: what its plans load, what they would take by its own estimate, and what planning costs. */

import { planItemWords } from "../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../worker/attention/planner.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { planCost } from "../attention/cost.ts";
import { batchOf, type RequestSizes, requestsOver, h200 as shape } from "../attention/world.ts";
import { Choices } from "../sim/random.ts";
import { attentionTrees, treeBatch, treeName } from "../support/attention-trees.ts";
import { atMost, type Bar, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { figure } from "./support/stats.ts";

const crowds: readonly RequestSizes[] = [
  { requests: 64, documents: 16, each: 5, blocks: 256 },
  { requests: 64, documents: 32, each: 32, blocks: 180 },
  { requests: 64, documents: 512, each: 32, blocks: 180 },
];

const warmUpRounds = 20;

/** Qwen3-8B on an H200: layers, parameters, and bytes and multiply-adds a second, each as measured. */
const layerCount = 36;
const parameterCount = 8.2e9;
const bytesPerSecond = 4.27e12;
const flopPerSecond = 8.07e14;

/** A step of so many rows takes at least so long: its attention by estimate, its dense algebra at full rate. */
function stepMs(rows: number, attentionUs: number): number {
  const dense = Math.max((2 * parameterCount) / bytesPerSecond, (2 * parameterCount * rows) / flopPerSecond);
  return (layerCount * attentionUs) / 1e3 + dense * 1e3;
}

interface Case {
  readonly name: string;
  readonly rows: number;
  /** Two steps of one kind: planned in turn, each is planned anew. */
  readonly batches: readonly [Batch, Batch];
}

function cases(): Case[] {
  const offsetLimit = 4_096;
  const trees = attentionTrees.map((tree): Case => {
    const of = (seed: number) => treeBatch(tree, { blockTokens: 16, seed, offsetLimit }).batch;
    return { name: treeName(tree), rows: tree.nodes[tree.nodes.length - 1], batches: [of(1), of(2)] };
  });
  const requests = crowds.map((sizes): Case => {
    const name = `${sizes.requests} over ${sizes.each} of ${sizes.documents} x ${sizes.blocks * 16}`;
    const of = (seed: number) => batchOf(requestsOver(new Choices(seed), sizes));
    return { name, rows: sizes.requests, batches: [of(1), of(2)] };
  });
  return [...trees, ...requests];
}

function fastestMs(run: () => void): number {
  let fastest = Number.POSITIVE_INFINITY;
  for (let round = 0; round < 40; round++) {
    const startMs = performance.now();
    run();
    fastest = Math.min(fastest, performance.now() - startMs);
  }
  return fastest;
}

async function runBench({ say }: BenchContext): Promise<BenchReport> {
  const bars: Bar[] = [];
  const all = cases();
  say("warm-up");
  // A server plans thousands of steps a minute: the code is compiled when it counts.
  const warmUp = new PackPlanner(shape);
  for (let round = 0; round < warmUpRounds; round++) {
    for (const { batches } of all) warmUp.plan(batches[round % 2]);
  }
  const rows = all.map(({ name, rows, batches }) => {
    say(name);
    const planner = new PackPlanner(shape);
    let turn = 0;
    const freshMs = fastestMs(() => planner.plan(batches[turn++ % 2]));
    const patchedMs = fastestMs(() => planner.plan(batches[(turn + 1) % 2]));
    const plan = new PackPlanner(shape).plan(batches[0]);
    const packed = planCost(plan, batches[0], shape);
    const plain = { ...shape, packing: false };
    const alone = planCost(new PackPlanner(plain).plan(batches[0]), batches[0], plain);
    const step = stepMs(rows, packed.microseconds);
    if (rows === 256) bars.push(atMost(`${name}: planned anew, of a step`, freshMs / step, 0.05));
    if (rows <= 256) bars.push(atMost(`${name}: patched, of a step`, patchedMs / step, 0.01));
    bars.push(atMost(`${name}: packed over unpacked, by estimate`, packed.microseconds / alone.microseconds, 1.01));
    const items = [plan.smallItems, plan.largeItems].map((list) => String(list.length / planItemWords));
    const loads = packed.loadedBytes / packed.distinctBytes;
    const figures = [loads, packed.partialBytes / 1e6, packed.microseconds, alone.microseconds, freshMs, patchedMs];
    return [name, ...items, ...figures.map(figure)];
  });
  const header = ["step", "small", "large", "loads", "partial MB", "us", "unpacked us", "fresh ms", "patched ms"];
  return { model: "32/8 heads of 128, 132 multiprocessors", bars, header, rows };
}

export const packBench: Bench = {
  name: "pack",
  summary: "Attention plans: what they load, by estimate, and what planning costs",
  run: runBench,
};
