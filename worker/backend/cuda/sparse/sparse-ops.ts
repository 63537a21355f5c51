/** Launches of rows that choose: shadows of K wherever K is written, and in each layer the choice and its attention. */
import type { ModelConfig } from "../../../model/config.ts";
import type { ComputeDevice, DeviceBuffer, SideStream } from "../device/device.ts";
import { blockCandidates, type ChoiceWorkspace, listBlockCounts, passHeads, type Shadows } from "./sparse-memory.ts";

/** Puts one launch into the stream, sized for the counts of a step. */
type Op = (counts: { readonly rows: number; readonly choices: number }) => void;

/** Everything of a backend that these launches read or write. */
export interface SparseParts {
  readonly device: ComputeDevice;
  readonly config: ModelConfig;
  readonly blockTokens: number;
  readonly workspace: ChoiceWorkspace;
  readonly shadows: Shadows;
  /** The pool of all layers, and the bytes of one. */
  readonly pool: { readonly memory: DeviceBuffer; readonly layerBytes: number };
  readonly qkv: DeviceBuffer;
  readonly attended: DeviceBuffer;
}

/** A step's integers on the device: the whole buffer, and the word that says where in it the choices begin. */
export interface StepLists {
  readonly buffer: DeviceBuffer;
  readonly choicePlace: DeviceBuffer;
}

const bfloat16Bytes = 2;
/** KV heads and tokens of a thread block of shadow_keys.cu. */
const warpsPerBlock = 8;
const shadowTokens = 8;
const overlapsPrevious = true;
/** The kernels that choose, by how many thread blocks share a list. */
export const choosingKernels = {
  1: "attend_choice_1",
  2: "attend_choice_2",
  4: "attend_choice_4",
  8: "attend_choice_8",
} as const;
export type ListBlocks = keyof typeof choosingKernels;

/** The kernel that scores for groups of so many query heads. */
export const scoringKernel = (group: number) => (group > passHeads ? "score_shadows_wide" : "score_shadows");

/** Shared memory of attend_choice.cu. */
function choosingBytes(headDim: number): number {
  // Counters of ranks, or of each of 4 warps sums and totals for 16 query heads; 8192 ranks, 2048 tokens of a list, sums over
  // counters, of scores, over warps, and what was found, or such sums of the thread block; of each warp 8 rows of q.
  const sums = 16 * (4 * headDim + 8);
  const list = 2 * (8_192 + 2_048) + 4 * (128 + 16 + 8 + 5);
  return Math.max(2 ** 16, 4 * sums) + Math.ceil(Math.max(list, sums) / 16) * 16 + 4 * 8 * 2 * (headDim + 8);
}

/** How the kernels of rows that choose are launched, for `lists` pairs of a row and a KV head. */
export function choiceLaunches(headDim: number, multiprocessorCount: number) {
  const blocks = (headDim > 128 ? 1 : 2) * multiprocessorCount;
  // Of each of 8 warps a ring of 8 panels and its barriers, and 16 rounded queries (score_shadows.cu).
  const scoring = 8 * (8 * 16 * (headDim / 2 + 2) + 32 + 16 * (headDim + 24));
  const shared = { scoring, choosing: choosingBytes(headDim) } as const;
  return {
    shared,
    score: {
      grid: [blocks],
      blockThreads: 256,
      sharedBytes: scoring,
      overlapsPrevious,
    } as const,
    /** How many thread blocks a list has: as few as end soonest, of those that run at the same time and count so many. */
    listBlocks: (lists: number, mostCandidates: number): ListBlocks => {
      const turns = (count: number): number => Math.ceil((lists * count) / blocks) / count;
      const enough = listBlockCounts.filter((count) => count * blockCandidates >= mostCandidates);
      return enough.reduce<ListBlocks>((best, count) => (turns(count) < turns(best) ? count : best), enough[0] ?? 8);
    },
    choose: (lists: number, listBlocks: ListBlocks) =>
      ({ grid: [lists * listBlocks], blockThreads: 128, sharedBytes: shared.choosing, overlapsPrevious }) as const,
  };
}

/** Allows these kernels the shared memory that they are launched with, and clusters to lie close together. */
export function allowChoices(device: ComputeDevice, headDim: number): void {
  const { shared } = choiceLaunches(headDim, device.multiprocessorCount);
  for (const name of ["score_shadows", "score_shadows_wide"] as const) device.allowSharedBytes(name, shared.scoring);
  for (const name of Object.values(choosingKernels)) {
    device.allowSharedBytes(name, shared.choosing);
    device.packClusters(name);
  }
}

/** Launches of shadow_keys.cu. */
export const shadowLaunch = (tokens: number, kvHeads: number, layers: number) => {
  const grid = [Math.ceil(tokens / shadowTokens), Math.ceil(kvHeads / warpsPerBlock), layers] as const;
  return { grid, blockThreads: 256 } as const;
};

/**
 * Shadows of a step's rows in all layers, behind the last of them: what a row chooses from was written in a step before.
 * @param slots [*rowCount]
 */
export function shadowRows(parts: SparseParts, slots: DeviceBuffer, rowCount: DeviceBuffer): Op {
  const { device, config, pool, shadows } = parts;
  const { kvHeadCount, layerCount } = config;
  const launch = device.prepare("shadow_slots", slots, rowCount, ...stridesOf(parts), pool.memory, shadows.memory);
  return ({ rows }) => launch({ ...shadowLaunch(rows, kvHeadCount, layerCount), overlapsPrevious });
}

/** Shadows of tokens in all layers. @param slots [*slotCount] of at most `most` */
export function shadowSlots(parts: SparseParts, slots: DeviceBuffer, slotCount: DeviceBuffer, most: number): void {
  const { device, config, pool, shadows } = parts;
  const launch = device.prepare("shadow_slots", slots, slotCount, ...stridesOf(parts), pool.memory, shadows.memory);
  launch(shadowLaunch(most, config.kvHeadCount, config.layerCount));
}

/** Shadows of whole blocks in all layers. @param moved the blocks as move_blocks.cu takes them, of which `count` are read */
export function shadowBlocks(parts: SparseParts, moved: Uint8Array, count: number, stream: SideStream): void {
  const { device, config, blockTokens, pool, shadows } = parts;
  const launch = device.prepare("shadow_blocks", moved, ...stridesOf(parts), pool.memory, shadows.memory);
  launch({ ...shadowLaunch(count * blockTokens, config.kvHeadCount, config.layerCount), stream });
}

/** kvHeads, blockTokens, and what lies between two layers of the pool, in elements, and of the shadows, in bytes. */
const stridesOf = ({ config, blockTokens, pool, shadows }: SparseParts) =>
  [config.kvHeadCount, blockTokens, pool.layerBytes / bfloat16Bytes, shadows.layerBytes] as const;

/** The choices of a layer, and attention over them. K and V of the step's rows are written. */
export function chooseOps(
  parts: SparseParts,
  lists: StepLists,
  {
    layer,
    kv,
    rotations,
  }: { readonly layer: number; readonly kv: DeviceBuffer; readonly rotations: DeviceBuffer | null },
): Op[] {
  const { device, config, blockTokens, workspace, shadows, qkv, attended } = parts;
  const { headCount, kvHeadCount, rope, softmaxScale } = config;
  const { scores, unitSums, lists: chosen, counts } = workspace;
  const { listTokens, seats } = workspace.options;
  const plan = [lists.buffer, lists.choicePlace] as const;
  const heads = [headCount, kvHeadCount] as const;
  const rotaryDim = rotations === null ? 0 : rope.rotaryDim;
  const blockShift = Math.log2(blockTokens);
  const scaleLog2 = softmaxScale * Math.LOG2E;
  const score = device.prepare(
    scoringKernel(headCount / kvHeadCount),
    ...([qkv, ...plan, rotations, shadows.layer(layer), ...heads, rotaryDim, blockShift, scaleLog2] as const),
    ...([scores, unitSums, layer === 0 ? counts : null] as const),
  );
  const choosing = [
    ...([qkv, ...plan, rotations, kv, ...heads, rotaryDim, blockTokens, listTokens, scaleLog2] as const),
    ...([unitSums, scores, chosen, counts, attended] as const),
  ] as const;
  const prepared = (count: ListBlocks) => device.prepare(choosingKernels[count], ...choosing);
  const choose = { 1: prepared(1), 2: prepared(2), 4: prepared(4), 8: prepared(8) } as const;
  const launches = choiceLaunches(config.headDim, device.multiprocessorCount);
  const listsOf = (choices: number): number => Math.min(choices, seats) * kvHeadCount;
  return [
    ({ choices }) => {
      if (choices === 0) return;
      const listCount = listsOf(choices);
      const listBlocks = launches.listBlocks(listCount, workspace.mostCandidates);
      score(launches.score);
      choose[listBlocks](launches.choose(listCount, listBlocks));
    },
  ];
}
