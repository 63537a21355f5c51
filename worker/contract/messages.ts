/**
 * Messages between gateway and worker, over Bun's IPC (structured clone, so typed arrays travel as they
 * are; a plan goes as piped-plan.ts says). Token ids and block keys only: no text, no tenant, no salt.
 */
import type { ByteGrammar, VocabularyBytes } from "./grammar.ts";
import type { KvObject } from "./kv-object.ts";
import type { ModelCard } from "./model-card.ts";
import type { PlanOwners } from "./owners.ts";
import type { SparseParams, SparseReport } from "./sparse.ts";
import type { KvTier, WorkerTier } from "./tiers.ts";
import type { BlockKey } from "./units.ts";

/** The part of an earlier run that a run sees, in chain positions: q at position p reads it as if at p - offset. */
export interface SegmentRef {
  /** Index of the run in the plan; lower than the seeing run's own. */
  readonly run: number;
  /** The run sees `tokenCount` tokens, from `firstToken` on. */
  readonly firstToken: number;
  readonly tokenCount: number;
  /** Where the segment's *chain position 0* stands in the seeing chain's own positions (Δ). 0 within one chain. */
  readonly offset: number;
}

/**
 * A run: consecutive tokens of one chain, stored from a block's first slot on. A span is one run; the main
 * chain has one run before its first span, one after each group of spans. Token i of a run has chain
 * position `position + i`, sees all of `sees`, and tokens 0..i of its own run.
 */
export interface PlanRun {
  readonly kind: "span" | "main";
  readonly tokenIds: Int32Array;
  readonly position: number;
  readonly sees: readonly SegmentRef[];
  /**
   * One key a block. A closed run has one for its partly filled last block too; an open run has keys of full blocks
   * alone.
   */
  readonly blockKeys: readonly BlockKey[];
  /** The key that blockKeys[0] was chained from. An open run derives further keys from its last one. */
  readonly rootKey: BlockKey;
  /** The span's name in the answer's `spangate.spans`; runs of one span share it. */
  readonly spanId?: string;
  /**
   * Last keys and root keys of spans whose text this run quotes as its own tokens: when such a span is evicted, this
   * run is evicted too. Runs that a run sees or copies need not be named here.
   */
  readonly quotes?: readonly BlockKey[];
  /** Most of the run's KV is copied from runs that were computed alone; only a part of it is computed again. */
  readonly blend?: BlendPlan;
}

/**
 * How a run is blended (CacheBlend, arXiv 2405.16444, section 4): K is moved to where it stands here and V taken as
 * it is; then the tokens whose KV deviates most from what full visibility gives are computed again. Tokens that no
 * copy covers are always computed. A blended chain has a root key of its own, since its KV is an approximation.
 */
export interface BlendPlan {
  /** Share of the copied tokens that is computed again, 0 to 1. */
  readonly recomputeRatio: number;
  /** In rising order of `at`, not overlapping. */
  readonly copies: readonly BlendCopy[];
}

/** Tokens firstToken … firstToken + tokenCount - 1 of an earlier closed run stand at token `at` of this run. */
export interface BlendCopy {
  readonly run: number;
  readonly firstToken: number;
  readonly tokenCount: number;
  readonly at: number;
}

export interface BlendReport {
  /** Tokens whose KV was copied, and those of them that were computed again. */
  readonly copiedTokens: number;
  readonly recomputedTokens: number;
}

/** Runs in topological order. When a completion is wanted, the last run is open: generated tokens continue it. */
export interface TokenPlan {
  readonly runs: readonly PlanRun[];
}

export interface SamplingParams {
  /** 0 is greedy. */
  readonly temperature: number;
  readonly topP: number;
  /** 0 switches it off. */
  readonly topK: number;
  readonly minP: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly repetitionPenalty: number;
  /** Seeds a counter-based generator: the same seed and prompt give the same tokens, whatever else runs. */
  readonly seed: number;
  readonly logitBias: readonly (readonly [tokenId: number, bias: number])[];
  /** How many alternatives to report per token; -1: no log-probabilities at all. */
  readonly topLogprobs: number;
}

/**
 * Bounds the thinking before an answer. The marks are bytes as the vocabulary spells them; the gateway alone knows what
 * they mean.
 */
export interface ThinkingLimit {
  /** What thinking begins with, behind white space at the completion's start. Empty: the prompt has begun it. */
  readonly opener: Uint8Array;
  /** What ends it. */
  readonly closer: Uint8Array;
  /** With so many tokens generated and the thinking not at its end, `endTokenIds` are drawn. */
  readonly maxTokens: number;
  readonly endTokenIds: Int32Array;
}

export interface GenerateParams {
  /** 0 only prepares: the worker computes and keeps the runs and samples nothing; then every run is closed. */
  readonly maxTokens: number;
  readonly minTokens: number;
  readonly ignoreEos: boolean;
  readonly stopTokenIds: readonly number[];
  readonly sampling: SamplingParams;
  /**
   * The completion follows this grammar and may end only where the grammar is complete. It needs the vocabulary to have
   * been sent, and excludes minTokens and ignoreEos.
   */
  readonly grammar?: ByteGrammar | undefined;
  /** Needs the vocabulary to have been sent; beside a grammar, the grammar allows the end wherever it allows thinking. */
  readonly thinking?: ThinkingLimit | undefined;
}

/** `reuse: false` recomputes everything into private blocks (the baseline of `bench rag`). */
export interface SubmitMessage {
  readonly type: "submit";
  readonly requestId: string;
  readonly plan: TokenPlan;
  readonly params: GenerateParams;
  readonly reuse: boolean;
  /**
   * Closes the chain so that others can use it: these tokens follow the last generated one, all of it is computed, and
   * the partly filled last block is kept too. At most one block of tokens. Absent: the chain stays open, as for a chat.
   */
  readonly closeTokenIds?: Int32Array;
  /** The `finished` message tells how many tokens of each run were found. */
  readonly tellFound?: boolean;
  /** The owners that the runs' blocks count for; absent: no owner. */
  readonly owners?: PlanOwners;
  /**
   * How long the blocks that the requester's runs use are retained: an index in retentionTimesMs. Absent: 0, no time.
   */
  readonly retention?: number;
  /** Rows of the answer may choose what they read; absent: they read all they see. */
  readonly sparse?: SparseParams;
}

/** Where a span's KV is from. What was brought from a tier is of that tier until it is evicted. */
export type SpanSource = KvTier | "computed";

/** What happened to each span of a plan, in plan order; all runs of a span are taken together. */
export interface SpanReport {
  readonly id: string;
  readonly tokens: number;
  /** "computed" when any part of the span was computed, else the farthest tier that a part is of. */
  readonly source: SpanSource;
  /** Tokens whose KV was found in the cache, and tokens whose KV was computed and kept under a key. */
  readonly cachedTokens: number;
  readonly cacheWriteTokens: number;
}

export interface RequestTimings {
  /**
   * From arrival in the worker to admission; from admission to the last prompt token; from arrival to the first token.
   */
  readonly queueMs: number;
  readonly prefillMs: number;
  readonly ttftMs: number;
}

export interface RequestUsage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Prompt tokens whose KV was found in the cache, and those whose KV was computed and kept under a key. */
  readonly cachedTokens: number;
  readonly cacheWriteTokens: number;
}

export interface TokenLogprob {
  readonly tokenId: number;
  readonly logprob: number;
  readonly top: readonly (readonly [tokenId: number, logprob: number])[];
}

export type FinishReason = "stop" | "length" | "abort" | "prepared";

/** Write these blocks to a file, if they are all there. The worker answers `kept` or `keep failed`. */
export interface KeepMessage {
  readonly type: "keep";
  readonly object: KvObject;
  readonly folder: string;
  /** The file's name until all of it is on the disk. */
  readonly temporaryName: string;
  readonly tokenIds: Int32Array;
  readonly blockKeys: readonly BlockKey[];
}

/** Where a file is: in the folder, or in the bucket alone. */
export type FileTier = Extract<KvTier, "disk" | "s3">;

/** What concerns KV in files. */
export type KvFileMessage =
  | KeepMessage
  /**
   * Objects that lie in the folder, or in the bucket alone. `warm`: load them before they are asked for, in this order,
   * into an empty pool.
   */
  | {
      readonly type: "catalog";
      readonly folder: string;
      readonly objects: readonly KvObject[];
      readonly warm: boolean;
      /** Default: the folder. */
      readonly tier?: FileTier;
    }
  /** Objects of the catalog that are in the folder now, or are still in the bucket alone, whoever waits for them. */
  | {
      readonly type: "moved";
      readonly objectIds: readonly string[];
      readonly tier: FileTier;
      /** For objects in the folder: their `copy`. */
      readonly copy?: number;
    }
  /** A question may soon want these objects of the folder; most likely at this worker. */
  | { readonly type: "prefetch"; readonly objectIds: readonly string[] }
  /**
   * These objects, and all of chains with these root keys, are gone: what is being loaded or written of them is
   * dropped. Blocks go by `evict`.
   */
  | { readonly type: "forget"; readonly objectIds: readonly string[]; readonly rootKeys?: readonly BlockKey[] };

export type GatewayMessage =
  | SubmitMessage
  | KvFileMessage
  /** How tokens are spelled; sent once, before the first request with a grammar. */
  | { readonly type: "vocabulary"; readonly vocabulary: VocabularyBytes }
  | { readonly type: "abort"; readonly requestId: string }
  /**
   * Forgets the blocks with these keys at once (blocks in use lose their key and are freed when released), and all that
   * was computed from the runs that end with these keys. The root key of spans stands for all spans; the root key of
   * any other chain stands for what is being computed of it. With `owner`: only blocks and runs that count for that
   * owner.
   */
  | { readonly type: "evict"; readonly blockKeys: readonly BlockKey[]; readonly owner?: number }
  /**
   * Blocks with these keys, also those stored later, are evicted last among their owner's; `pinned: false` ends that.
   * With `tier`: in the host's memory alone, not on the device.
   */
  | {
      readonly type: "pin";
      readonly blockKeys: readonly BlockKey[];
      readonly pinned: boolean;
      readonly tier?: Extract<WorkerTier, "host">;
    }
  | { readonly type: "stats"; readonly id: number }
  /** Finish what runs, take nothing new, then exit. */
  | { readonly type: "drain" };

export type WorkerErrorCode = "bad_plan" | "prompt_too_long" | "grammar_too_ambiguous" | "overloaded" | "internal";

/**
 * A change of what is resident. Sequence numbers rise from 1 without gaps; only the end of the process drops all
 * blocks.
 */
export type KvEvent = StoredEvent | RemovedEvent;

/** The worker reports a request's stored blocks before the request's end. */
export interface StoredEvent {
  readonly sequence: number;
  readonly type: "stored";
  /** Default: the device. */
  readonly tier?: WorkerTier;
  readonly blockKeys: readonly BlockKey[];
  /** For each block: the key it was chained from (for the first one its run's rootKey), and the tokens it holds. */
  readonly previousKeys: readonly BlockKey[];
  readonly tokenCounts: readonly number[];
}

export interface RemovedEvent {
  readonly sequence: number;
  readonly type: "removed";
  /** Where they are no more; default: on the device. */
  readonly tier?: WorkerTier;
  readonly blockKeys: readonly BlockKey[];
}

/**
 * What came of loads that were not called off: all of it was brought; it came later than computing would have; it cannot
 * be read, or is not what was written; blocks were short, or a block before was gone.
 */
export type LoadOutcome = "loaded" | "late" | "failed" | "dropped";

/** What one worker has moved between its pool and another tier. */
export interface TierStats {
  readonly tier: KvTier;
  readonly readBytes: number;
  readonly readMs: number;
  readonly writtenBytes: number;
  readonly writeMs: number;
  /**
   * What bringing a token's KV takes, in prompt tokens that are computed meanwhile; absent until both were measured.
   */
  readonly loadCost?: number;
  readonly loads: Readonly<Record<LoadOutcome, number>>;
}

/** Counters only rise; gauges show the present. The unit is tokens unless the name says otherwise. */
export interface WorkerStats {
  readonly queriedTokens: number;
  readonly hitTokens: number;
  /** Prompt tokens that the pool lacked at first, and those of them that came from another tier. */
  readonly lackedTokens: number;
  readonly broughtTokens: number;
  readonly computedTokens: number;
  readonly generatedTokens: number;
  readonly preemptions: number;
  readonly evictedBlocks: number;
  readonly steps: number;
  readonly runningRequests: number;
  readonly waitingRequests: number;
  readonly usedBlocks: number;
  readonly cachedBlocks: number;
  readonly freeBlocks: number;
  readonly residentBytes: number;
  /** Tiers beside the pool. */
  readonly tiers: readonly TierStats[];
}

export interface FinishedMessage {
  readonly type: "finished";
  readonly requestId: string;
  readonly reason: FinishReason;
  readonly usage: RequestUsage;
  readonly timings: RequestTimings;
  readonly spans: readonly SpanReport[];
  /** Present only for a plan with blended runs. */
  readonly blend?: BlendReport | undefined;
  /** Present where the request asked for it. */
  readonly sparse?: SparseReport | undefined;
  /** How many tokens of each run were found in the cache; only when `tellFound` asked for it. */
  readonly foundTokens?: readonly number[];
}

export type WorkerMessage =
  | { readonly type: "ready"; readonly card: ModelCard }
  /** Starting failed, and trying again will not help (a bad model file, a missing library). */
  | { readonly type: "fatal"; readonly message: string }
  | {
      readonly type: "tokens";
      readonly requestId: string;
      readonly tokenIds: readonly number[];
      readonly logprobs?: readonly TokenLogprob[];
    }
  | FinishedMessage
  | { readonly type: "failed"; readonly requestId: string; readonly code: WorkerErrorCode; readonly message: string }
  /** The object is in the folder under its name, whole and synced. */
  | { readonly type: "kept"; readonly objectId: string }
  /** Nothing of it is in the folder. `reason`: "gone" (not all blocks are there), "busy", or the system's code. */
  | { readonly type: "keep failed"; readonly objectId: string; readonly reason: string }
  /** How many blocks, of how many bytes, were brought back of objects whose chains begin with this key. */
  | {
      readonly type: "loaded";
      readonly rootKey: BlockKey;
      readonly objectIds: readonly string[];
      readonly blocks: number;
      readonly bytes: number;
    }
  /** The file cannot be read, or is not what was written. The worker has forgotten the object. `copy`: the object's. */
  | { readonly type: "load failed"; readonly objectId: string; readonly reason: string; readonly copy?: number }
  /** A request waits for an object that is in the bucket alone. The gateway answers `moved`, or `forget`. */
  | { readonly type: "fetch"; readonly objectId: string }
  /** What was to be loaded without being asked for is loaded, or will not be. */
  | { readonly type: "warm" }
  | { readonly type: "kv"; readonly events: readonly KvEvent[] }
  | { readonly type: "stats"; readonly id: number; readonly stats: WorkerStats };

/** As they go through the pipe: all that one turn of the worker's event loop says, in its order. */
export type WorkerMessages = readonly WorkerMessage[];
