/**
 * What rows that choose take of the device: shadows of K beside the pool, and for each seat the scores of all that a row
 * may choose from, its lists, and parts of its attention. Nothing of it outlives a step but shadows and counts: a list is
 * chosen anew for each row, and read where the pool has its tokens.
 */
import type { ModelConfig } from "../../../model/config.ts";
import type { SparseOptions } from "../../backend.ts";
import type { ComputeDevice, DeviceBuffer } from "../device/device.ts";
import { type ChoiceSizes, choiceWords, unitTokens } from "./choice-words.ts";

/** Segments that a row chooses from at most. */
export const segmentsPerSeat = 1_024;
/** Query heads that share a KV head, at most (kMaxGroup), and how many of them are scored at a time (kPassHeads). */
const mostGroup = 16;
/** Tokens that a thread block chooses from at most (kMostCandidates, of which parts of a list have whole eights). */
export const blockCandidates = 65_528;
/** How many thread blocks may share a list, where they can be clusters; else one has it. */
export const listBlockCounts = [1, 2, 4, 8] as const;
const [fewestListBlocks, , , mostListBlocks] = listBlockCounts;
/** A context's newest tokens are its tail, which every row reads: thread blocks need not count them. */
const uncountedTokens = 64;
export const passHeads = 4;

/** Query heads of a KV head for which there is space: whole passes. */
export const scoredHeads = (group: number): number => Math.ceil(group / passHeads) * passHeads;

/** @throws Error naming what of the model or of the pool does not go with choices */
export function assertChoosable(config: ModelConfig, blockTokens: number, isMx8: boolean, hasClusters = true): void {
  const { headCount, kvHeadCount, headDim, window, scoreCap, sinks, contextTokens } = config;
  const most = blockCandidates * (hasClusters ? mostListBlocks : fewestListBlocks) + uncountedTokens;
  const refused = (what: string) => new Error(`rows cannot choose what they read on a GPU: ${what}`);
  if (isMx8) throw refused("KV is in mx8");
  if (blockTokens < 16) throw refused(`blocks have ${blockTokens} tokens, and 16 are needed`);
  if (headDim % 32 !== 0) throw refused(`heads have ${headDim} dimensions, which are no multiple of 32`);
  if (headCount / kvHeadCount > mostGroup) throw refused(`more than ${mostGroup} query heads share a KV head`);
  if (window !== undefined) throw refused("the model has layers of a sliding window");
  if (scoreCap !== undefined) throw refused("the model caps scores");
  if (sinks) throw refused("heads have sinks");
  if (contextTokens > most) throw refused(`of contexts of ${contextTokens} tokens, and ${most} are the most here`);
}

/**
 * Tokens that a row of such contexts chooses from at most: so many that as few thread blocks as possible count them. Of
 * 131,072 tokens two blocks count 131,056, and no more are candidates, since the rest is in the tail.
 */
export function mostCandidatesOf(contextTokens: number): number {
  const count = listBlockCounts.find((blocks) => contextTokens <= blocks * blockCandidates + uncountedTokens);
  return Math.min(contextTokens, (count ?? mostListBlocks) * blockCandidates);
}

/** What the shadows of a block take in all layers: 4 bits a number of K, and a float16 scale for each head. */
export function shadowBytesPerBlock({ layerCount, kvHeadCount, headDim }: ModelConfig, blockTokens: number): number {
  return layerCount * kvHeadCount * blockTokens * (headDim / 2 + 2);
}

/** Shadows of a pool's K: [layers][blocks], a block as shadow.cuh has it. */
export class Shadows {
  readonly memory: DeviceBuffer;
  readonly layerBytes: number;

  constructor(device: ComputeDevice, config: ModelConfig, blockCount: number, blockTokens: number) {
    this.memory = device.allocate("shadows of K", blockCount * shadowBytesPerBlock(config, blockTokens));
    this.layerBytes = this.memory.byteLength / config.layerCount;
    device.fill(this.memory, 0);
  }

  layer(index: number): DeviceBuffer {
    return this.memory.slice(index * this.layerBytes, this.layerBytes, `shadows of layer ${index}`);
  }
}

/** What the rows of a step work in. */
export interface ChoiceWorkspace {
  readonly options: SparseOptions;
  /** The most places for scores and units of a step, over all rows that choose. */
  readonly scoreTokens: number;
  readonly mostUnits: number;
  /** What a row chooses from at most. */
  readonly mostCandidates: number;
  /** float16 [scoreTokens][kvHeads][scoredHeads], float32 [mostUnits][kvHeads][scoredHeads] (choice_plan.cuh). */
  readonly scores: DeviceBuffer;
  readonly unitSums: DeviceBuffer;
  /** int2 [seats][kvHeads][listTokens]: slots and offsets */
  readonly lists: DeviceBuffer;
  /** uint64 [seats] (choice_counts.cuh) */
  readonly counts: DeviceBuffer;
}

const unitsPerSeat = (contextTokens: number): number => Math.ceil(contextTokens / unitTokens) + segmentsPerSeat;

/** Words that a step's choices take at most. */
export function mostChoiceWords({ contextTokens }: ModelConfig, { seats }: SparseOptions, blockTokens: number): number {
  const blocks = Math.ceil(contextTokens / blockTokens) + 2 * segmentsPerSeat;
  return choiceWords(
    { entries: seats, units: seats * unitsPerSeat(contextTokens), segments: seats * segmentsPerSeat },
    seats * blocks,
  );
}

export function makeChoiceWorkspace(
  device: ComputeDevice,
  { headCount, kvHeadCount, contextTokens }: ModelConfig,
  options: SparseOptions,
): ChoiceWorkspace {
  const { seats, listTokens } = options;
  const scoreTokens = seats * Math.ceil(contextTokens / 8) * 8;
  const mostUnits = seats * unitsPerSeat(contextTokens);
  const scored = kvHeadCount * scoredHeads(headCount / kvHeadCount);
  const take = (name: string, bytes: number) => device.allocate(name, bytes);
  const counts = take("counts of choices", seats * 8);
  device.fill(counts, 0);
  return {
    ...{ options, scoreTokens, mostUnits, mostCandidates: mostCandidatesOf(contextTokens), counts },
    scores: take("scores of candidates", scoreTokens * scored * 2),
    unitSums: take("sums of scores", mostUnits * scored * 4),
    lists: take("lists of chosen tokens", seats * kvHeadCount * listTokens * 8),
  };
}

/** @throws RangeError when a step's choices are more than there is memory for, or than a list's thread blocks count */
export function assertChoicesFit(workspace: ChoiceLimits, sizes: ChoiceSizes): void {
  const { options, scoreTokens, mostUnits, mostCandidates } = workspace;
  if (sizes.mostCandidates > mostCandidates) {
    throw new RangeError(`a row that chooses from ${sizes.mostCandidates} tokens, of at most ${mostCandidates}`);
  }
  const fits = sizes.entries <= options.seats && sizes.scoreTokens <= scoreTokens && sizes.units <= mostUnits;
  if (fits) return;
  const asked = `${sizes.entries} rows that choose from ${sizes.scoreTokens} tokens in ${sizes.units} units`;
  throw new RangeError(`${asked} in a step of at most ${options.seats}, ${scoreTokens} and ${mostUnits}`);
}

type ChoiceLimits = Pick<ChoiceWorkspace, "options" | "scoreTokens" | "mostUnits" | "mostCandidates">;
