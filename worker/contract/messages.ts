/**
 * Messages between gateway and worker, over Bun's IPC (structured clone, so typed arrays travel as they
 * are). Token ids and block keys only: no text, no tenant, no salt.
 */
import type { ByteGrammar, VocabularyBytes } from "./grammar.ts";
import type { ModelCard } from "./model-card.ts";
import type { PlanOwners } from "./owners.ts";
import type { BlockKey } from "./units.ts";

/** Part of an earlier run that a run sees. Draws on chain positions: q at position p reads it at p - offset. */
export interface SegmentRef {
  /** Index of the run in the plan; lower than the seeing run's own. */
  readonly run: number;
  /** First token of the run that is seen, and how many. */
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
  /** Closed run: one a block, the partly filled last one too. Open run: one a full block. */
  readonly blockKeys: readonly BlockKey[];
  /** Key that blockKeys[0] was chained from; an open run goes on keying from the last of these. */
  readonly rootKey: BlockKey;
  /** The span's name in the answer's `spangate.spans`; runs of one span share it. */
  readonly spanId?: string;
  /**
   * Last keys and root keys of spans whose text this run quotes as its own tokens: when such a span is evicted, this
   * run is evicted too. Runs that a run sees or copies need not be named here.
   */
  readonly quotes?: readonly BlockKey[];
  /** Most of the run's KV is copied from runs that were computed alone, and only partly computed again. */
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

/** Runs in topological order. With a completion wanted, the last run is open: generated tokens go on from it. */
export interface TokenPlan {
  readonly runs: readonly PlanRun[];
}

export interface SamplingParams {
  /** 0 is greedy. */
  readonly temperature: number;
  readonly topP: number;
  /** 0: off. */
  readonly topK: number;
  readonly minP: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly repetitionPenalty: number;
  /** Counter-based generator: same seed, same prompt, same tokens, whatever else runs. */
  readonly seed: number;
  readonly logitBias: readonly (readonly [tokenId: number, bias: number])[];
  /** How many alternatives to report per token; -1: no log-probabilities at all. */
  readonly topLogprobs: number;
}

export interface GenerateParams {
  /** 0: prepare only, compute and keep the runs, sample nothing (every run is closed then). */
  readonly maxTokens: number;
  readonly minTokens: number;
  readonly ignoreEos: boolean;
  readonly stopTokenIds: readonly number[];
  readonly sampling: SamplingParams;
  /**
   * What the completion spells; it may stop where the grammar is complete, and nowhere else. Needs the vocabulary, and
   * neither minTokens nor ignoreEos.
   */
  readonly grammar?: ByteGrammar | undefined;
}

/** false in `reuse` recomputes everything into private blocks (the baseline of `bench rag`). */
export interface SubmitMessage {
  readonly type: "submit";
  readonly requestId: string;
  readonly plan: TokenPlan;
  readonly params: GenerateParams;
  readonly reuse: boolean;
  /**
   * The chain is to be used by others: after the last generated token these follow, all is computed, and the partly
   * filled last block is kept too. At most one block's worth. Absent: the chain stays open, as for a chat.
   */
  readonly closeTokenIds?: Int32Array;
  /** The `finished` message tells how many tokens of each run were found. */
  readonly tellFound?: boolean;
  /** Owners that the runs' blocks are counted for; absent: nobody in particular. */
  readonly owners?: PlanOwners;
  /** How long what the asking owner's runs use is to be retained: an index in retentionTimesMs. Absent: 0, no time. */
  readonly retention?: number;
}

export type SpanSource = "device" | "computed";

/** What became of each span of a plan, its runs taken together, in plan order. */
export interface SpanReport {
  readonly id: string;
  readonly tokens: number;
  /** "computed" when any of it was. */
  readonly source: SpanSource;
  /** Tokens whose KV was found, and whose KV was computed and kept under a key. */
  readonly cachedTokens: number;
  readonly cacheWriteTokens: number;
}

export interface RequestTimings {
  /** Arrival in the worker to admission, admission to last prompt token computed, arrival to first token. */
  readonly queueMs: number;
  readonly prefillMs: number;
  readonly ttftMs: number;
}

export interface RequestUsage {
  readonly promptTokens: number;
  readonly completionTokens: number;
  /** Prompt tokens whose KV was found, and whose KV was computed and kept under a key. */
  readonly cachedTokens: number;
  readonly cacheWriteTokens: number;
}

export interface TokenLogprob {
  readonly tokenId: number;
  readonly logprob: number;
  readonly top: readonly (readonly [tokenId: number, logprob: number])[];
}

export type FinishReason = "stop" | "length" | "abort" | "prepared";

export type GatewayMessage =
  | SubmitMessage
  /** How tokens are spelled; sent once, before the first request with a grammar. */
  | { readonly type: "vocabulary"; readonly vocabulary: VocabularyBytes }
  | { readonly type: "abort"; readonly requestId: string }
  /**
   * Forget the blocks with these keys at once (blocks in use lose their key and are freed when released), and all that
   * was computed from the runs that end with these keys. The key that spans begin with stands for all of them; any
   * chain's root key stands for what is being computed of it. With `owner`: only of blocks and runs that are counted
   * for the owner with this number.
   */
  | { readonly type: "evict"; readonly blockKeys: readonly BlockKey[]; readonly owner?: number }
  /** Blocks with these keys are evicted last of their owner's, those that are stored later too; or no longer so. */
  | { readonly type: "pin"; readonly blockKeys: readonly BlockKey[]; readonly pinned: boolean }
  | { readonly type: "stats"; readonly id: number }
  /** Finish what runs, take nothing new, then exit. */
  | { readonly type: "drain" };

export type WorkerErrorCode = "bad_plan" | "prompt_too_long" | "grammar_too_ambiguous" | "overloaded" | "internal";

/** A change of what is resident, numbered without gaps from 1. All goes at once with the worker's process alone. */
export type KvEvent = StoredEvent | RemovedEvent;

/** A request's stored blocks are told before its end. */
export interface StoredEvent {
  readonly sequence: number;
  readonly type: "stored";
  readonly blockKeys: readonly BlockKey[];
  /** Of each block: the key it was chained from (its run's rootKey, for the first), and the tokens it holds. */
  readonly previousKeys: readonly BlockKey[];
  readonly tokenCounts: readonly number[];
}

export interface RemovedEvent {
  readonly sequence: number;
  readonly type: "removed";
  readonly blockKeys: readonly BlockKey[];
}

/** Counters only rise; gauges are the present. Tokens unless the name says otherwise. */
export interface WorkerStats {
  readonly queriedTokens: number;
  readonly hitTokens: number;
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
}

export interface FinishedMessage {
  readonly type: "finished";
  readonly requestId: string;
  readonly reason: FinishReason;
  readonly usage: RequestUsage;
  readonly timings: RequestTimings;
  readonly spans: readonly SpanReport[];
  /** Only of a plan with blended runs. */
  readonly blend?: BlendReport | undefined;
  /** Tokens that were found of each run of the plan; only when `tellFound` asked for it. */
  readonly foundTokens?: readonly number[];
}

export type WorkerMessage =
  | { readonly type: "ready"; readonly card: ModelCard }
  /** Start-up failed in a way that trying again will not mend (a bad model file, a missing library). */
  | { readonly type: "fatal"; readonly message: string }
  | {
      readonly type: "tokens";
      readonly requestId: string;
      readonly tokenIds: readonly number[];
      readonly logprobs?: readonly TokenLogprob[];
    }
  | FinishedMessage
  | { readonly type: "failed"; readonly requestId: string; readonly code: WorkerErrorCode; readonly message: string }
  | { readonly type: "kv"; readonly events: readonly KvEvent[] }
  | { readonly type: "stats"; readonly id: number; readonly stats: WorkerStats };
