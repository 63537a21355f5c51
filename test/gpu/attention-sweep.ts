/** Many shapes of plans for each published tree: which are fast, and what the planner's own makes of it. */
import { type AttentionPlan, planItem, planItemWords, rowsPerTile } from "../../worker/attention/plan-format.ts";
import { PackPlanner } from "../../worker/attention/planner.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { Random } from "../native/random.ts";
import { attentionTrees } from "../support/attention-trees.ts";
import type { AttentionDevice, Heads } from "./attention-device.ts";
import { floorMicroseconds, type PlanVariant, type Rates, TreeTimer, treeInputs } from "./attention-timings.ts";
import { planTree, type TreePlanShape } from "./attention-tree-plan.ts";
import type { Report } from "./report.ts";

const blockTokens = 16;

function headsOf(queryHeads: number): Heads {
  return { queryHeads, kvHeads: 8, headDim: 128, rotaryDim: 128, blockTokens };
}

function packVariant(heads: Heads, multiprocessorCount: number, hasWarpgroups = false): PlanVariant {
  const group = heads.queryHeads / heads.kvHeads;
  const shape = { group, ...heads, multiprocessorCount, hasWarpgroups, packing: true, maxPartialRows: 16_384 };
  const largeKernel = hasWarpgroups ? "attention_wgmma" : "attention_tiles";
  const smallKernel = hasWarpgroups ? "attention_packed_wgmma" : "attention_packed";
  return { name: "pack", plan: (batch) => new PackPlanner(shape).plan(batch), largeKernel, smallKernel };
}

function itemTokens(plan: AttentionPlan): number {
  let sum = 0;
  for (const items of [plan.smallItems, plan.largeItems]) {
    for (let i = planItem.tokenCount; i < items.length; i += planItemWords) sum += items[i];
  }
  return sum;
}

function variantsOf(heads: Heads, batch: Batch, slots: number): PlanVariant[] {
  const group = heads.queryHeads / heads.kvHeads;
  const none = Number.POSITIVE_INFINITY;
  const variants: PlanVariant[] = [];
  const add = (name: string, shape: Partial<TreePlanShape> & { rows: number }) => {
    const whole = { group, blockTokens, hotReaders: none, hotTiles: 4, hotTokens: none, hotIsLarge: false };
    const full = { ...whole, partTokens: none, ...shape };
    variants.push({ name, plan: (of) => planTree(of, full), smallKernel: "attention_packed_wgmma" });
    return planTree(batch, full);
  };
  const perTile = rowsPerTile(group);
  for (const rows of new Set([1, perTile / 2, perTile, 2 * perTile, 4 * perTile])) {
    const whole = add(`whole${rows}`, { rows });
    const even = (plan: AttentionPlan, rounds: number) =>
      Math.max(64, Math.ceil(itemTokens(plan) / (slots * rounds) / 16) * 16);
    add(`cut${rows}`, { rows, partTokens: even(whole, 1) });
    const hotReaders = rows + 1;
    const hot = add(`hot${rows}`, { rows, hotReaders, hotTokens: 256 });
    for (const rounds of [1, 2]) {
      const tokens = even(hot, rounds);
      add(`hot${rows}/${rounds}`, { rows, hotReaders, hotTokens: tokens, partTokens: tokens });
    }
    add(`hotr${rows}`, { rows, hotReaders: 8 * hotReaders, hotTokens: 128 });
  }
  return variants;
}

/** @param queryHeads of 8 KV heads, for each tree */
export function sweepTrees(
  device: AttentionDevice,
  random: Random,
  rates: Rates,
  report: Report,
  queryHeads: number,
  only: readonly number[],
): string {
  const heads = headsOf(queryHeads);
  const inputs = treeInputs(random, heads.rotaryDim);
  const lines = [`copy ${(rates.bytesPerSecond / 1e12).toFixed(2)} TB/s, products ${rates.flopPerSecond / 1e12}`];
  attentionTrees.forEach((tree, index) => {
    if (only.length > 0 && !only.includes(index + 1)) return;
    const setup = { tree, heads, ownOffsets: false };
    const floor = floorMicroseconds(setup, rates);
    const timer = new TreeTimer(device, inputs, setup);
    const slots = (2 * device.multiprocessorCount) / heads.kvHeads;
    const variants = [...variantsOf(heads, timer.batch, slots), packVariant(heads, device.multiprocessorCount, true)];
    const timings = variants.flatMap((variant) => {
      try {
        const { microseconds, plan, planMilliseconds } = timer.time(variant);
        report.figure(`#${index + 1} ${queryHeads}/8 ${variant.name} us`, microseconds);
        const counts = `${plan.smallItems.length / 8}+${plan.largeItems.length / 8}i ${plan.partialCount}p`;
        return [{ variant, microseconds, planMilliseconds, counts }];
      } catch (error) {
        lines.push(`#${index + 1} ${variant.name}: ${String(error).slice(0, 200)}`);
        return [];
      }
    });
    const pack = timings.find(({ variant }) => variant.name === "pack");
    timings.sort((a, b) => a.microseconds - b.microseconds);
    const [best] = timings;
    const graph = best === undefined ? 0 : timer.graphMicroseconds(best.variant);
    const others =
      best === undefined ? [] : [timer.warmMicroseconds(best.variant), timer.primedMicroseconds(best.variant)];
    const show = (timing: (typeof timings)[number]) =>
      `${timing.variant.name} ${timing.microseconds.toFixed(1)} (${timing.counts})`;
    lines.push(
      `#${index + 1} floor ${floor.toFixed(1)} graph ${graph.toFixed(1)} x${(graph / floor).toFixed(2)} warm, primed ${others.map((us) => us.toFixed(1))} | ` +
        `${timings.slice(0, 4).map(show).join(", ")} | ${pack === undefined ? "no pack" : `${show(pack)} ${pack.planMilliseconds.toFixed(1)} ms`}`,
    );
    device.clear();
  });
  return `\n${lines.join("\n")}\n`;
}

const mean = (values: readonly number[]) =>
  Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);

export interface TreesAsked {
  /** Of 8 KV heads. */
  readonly queryHeads: number;
  readonly hasWarpgroups: boolean;
  /** Numbers of trees; empty: all. */
  readonly only: readonly number[];
}

/**
 * The planner's plan for each tree: over the floor, with equal offsets and with each row's own, and time of planning.
 */
export function timeTrees(
  device: AttentionDevice,
  random: Random,
  rates: Rates,
  report: Report,
  { queryHeads, hasWarpgroups, only }: TreesAsked,
): string {
  const heads = headsOf(queryHeads);
  const inputs = treeInputs(random, heads.rotaryDim);
  const variant = packVariant(heads, device.multiprocessorCount, hasWarpgroups);
  const lines = ["  # floor us  equal us  ratio    own us  own/equal  events us  plan ms"];
  const [ratios, shares]: number[][] = [[], []];
  attentionTrees.forEach((tree, index) => {
    if (only.length > 0 && !only.includes(index + 1)) return;
    const floor = floorMicroseconds({ tree, heads, ownOffsets: false }, rates);
    const [equal, own] = [false, true].map((ownOffsets) => {
      const timer = new TreeTimer(device, inputs, { tree, heads, ownOffsets });
      const { microseconds, planMilliseconds, plan } = timer.time(variant);
      const graph = timer.graphMicroseconds(variant);
      device.clear();
      const items = `${plan.smallItems.length / 8}+${plan.largeItems.length / 8} items ${plan.partialCount} partial rows`;
      return { graph, microseconds, planMilliseconds, items };
    });
    ratios.push(equal.graph / floor);
    shares.push(own.graph / equal.graph);
    report.figure(`tree ${index + 1} at ${queryHeads}/8 us`, equal.graph);
    report.figure(`tree ${index + 1} at ${queryHeads}/8 own offsets us`, own.graph);
    report.figure(`tree ${index + 1} at ${queryHeads}/8 floor us`, floor);
    report.figure(`tree ${index + 1} at ${queryHeads}/8 plan ms`, equal.planMilliseconds);
    const words = [floor, equal.graph, equal.graph / floor, own.graph, own.graph / equal.graph, equal.microseconds];
    const cells = [...words, equal.planMilliseconds].map((value) => value.toFixed(2).padStart(9)).join(" ");
    lines.push(`${String(index + 1).padStart(3)} ${cells}  ${equal.items}`);
  });
  report.figure(`trees at ${queryHeads}/8 geometric mean`, mean(ratios));
  report.figure(`trees at ${queryHeads}/8 own offsets over equal`, mean(shares));
  const greatest = Math.max(...ratios).toFixed(2);
  lines.push(`${queryHeads}/8: mean ${mean(ratios).toFixed(3)}, greatest ${greatest}, own ${mean(shares).toFixed(3)}`);
  return `\n${lines.join("\n")}\n`;
}

/** One plan launched three times, for a profiler. */
export function profileTree(device: AttentionDevice, random: Random, index: number, name: string, queryHeads: number) {
  const heads = headsOf(queryHeads);
  const inputs = treeInputs(random, heads.rotaryDim);
  const timer = new TreeTimer(device, inputs, { tree: attentionTrees[index - 1], heads, ownOffsets: false });
  const variants = variantsOf(heads, timer.batch, (2 * device.multiprocessorCount) / heads.kvHeads);
  const variant = variants.find((one) => one.name === name) ?? packVariant(heads, device.multiprocessorCount);
  for (let i = 0; i < 3; i++) timer.run(variant);
  device.clear();
}
