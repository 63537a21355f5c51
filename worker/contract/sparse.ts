/**
 * Sparse decoding: a row of an answer reads a chosen part of what it sees, and a recent tail. AsyncSpade (sparse decoding
 * with the next query predicted) chooses ahead of use; what is chosen is copied into a buffer of the request's own.
 */

/**
 * How a row's tokens are chosen; an entry's place is its code in native code.
 *
 *   now         by the row's own query, over shadows of K
 *   ahead       by the predicted query every few steps, and again by the row's own where the two are far apart
 *   last        by the query before it                 exact       by the row's own, over K itself
 *   quest       whole blocks, by bounds of their K     tova        what earlier rows chose, less the least
 *   algorithm1  as ahead, with the prediction that the paper's listing has in place of its equations
 */
export const choiceModes = ["now", "ahead", "last", "exact", "quest", "tova", "algorithm1"] as const;
export type ChoiceMode = (typeof choiceModes)[number];

/** What callers can ask for; the others are there to be compared with. */
export const servedModes = ["now", "ahead"] as const satisfies readonly ChoiceMode[];
export type ServedMode = (typeof servedModes)[number];

const withoutQueries: readonly ChoiceMode[] = ["now", "exact", "quest"];

/** Whether a row's choice depends on earlier rows, so that a seat has to be told of rows that read all they see. */
export const looksBack = (mode: ChoiceMode): boolean => !withoutQueries.includes(mode);

/** Bits of `Choices.flags`. */
export const choiceFlags = {
  /** The seat has a new owner: its lists, ring and counters are forgotten. */
  fresh: 1,
  /** The piece reads all it sees; the queries of its newest rows go into the seat's ring, and nothing is chosen. */
  watch: 2,
  /** KV that may be chosen was computed anew in place: everything is chosen and copied again. Ring and counters stay. */
  stale: 4,
} as const;

/** Tokens at the beginning of a span, and of the prompt, that every row reads: much of a row's attention is there. */
export const forcedTokens = { span: 2, prompt: 4 } as const;

/** How a request decodes. */
export interface SparseParams {
  readonly mode: ChoiceMode;
  /** Tokens that a row chooses, beside forced ones and its tail. */
  readonly tokens: number;
  /** `ahead`: chosen ahead every so many steps (R). Default: 4. */
  readonly refreshSteps?: number | undefined;
  /**
   * `ahead`: the row's own query chooses again where its cosine with the one that chose is below this (τ). Default: 0.6;
   * -1: never.
   */
  readonly leastCosine?: number | undefined;
  /** After so many sparse tokens their KV is computed anew, with all that they see; 0: never. Default: 64. */
  readonly rectifyTokens?: number | undefined;
}

export const sparseDefaults = { refreshSteps: 4, leastCosine: 0.6, rectifyTokens: 64 } as const;

/** Counted where tokens are chosen, since the seat was fresh. A list is a layer's and KV head's. */
export interface ChoiceCounts {
  /** Lists that steps read, and those of them that were chosen in that step, whatever for. */
  readonly lists: number;
  readonly chosen: number;
  /** Those of `chosen` that were made since the row's query was too far from the one that had chosen before. */
  readonly chosenAgain: number;
  /** Tokens copied into the buffer, over all lists. */
  readonly changed: number;
  /**
   * Sums over `measured` looks, each at one layer of one row: the part of its attention weights that what it read has,
   * and the part of the exact choice that was chosen; both 0 to 1.
   */
  readonly mass: number;
  readonly overlap: number;
  readonly measured: number;
}

/** What sparse decoding did for one request. */
export interface SparseReport extends ChoiceCounts {
  readonly mode: ChoiceMode;
  /** Chosen for a row, beside forced ones and its tail. */
  readonly tokens: number;
  /** Answer tokens whose rows read a choice, and those whose rows read all they saw. */
  readonly steps: number;
  readonly denseSteps: number;
  /** Tokens whose KV was computed anew with all that they see. */
  readonly rectifiedTokens: number;
}
