/** What goes into the dispatcher and what comes out of it. */
import type { TenantId } from "../../../db/ids.ts";
import type { FinishedMessage, GenerateParams, TokenLogprob, TokenPlan } from "../../../worker/contract/messages.ts";
import type { RetentionTime } from "../../../worker/contract/owners.ts";
import type { SparseParams } from "../../../worker/contract/sparse.ts";
import type { MissReport } from "./miss-report.ts";
import type { Placement } from "./placement.ts";
import type { RunTimes } from "./run-clock.ts";

/** The tenant that the work counts for; "" for work on corpora that no tenant asked for. */
export type WorkOwner = TenantId | "";

export interface DispatchRequest {
  /** Unique among the requests in flight; becomes part of the worker's request id. */
  readonly requestId: string;
  /** The owner of the plan's chains, except for those of corpora's fragments: the chains' KV counts for this tenant. */
  readonly tenantId: WorkOwner;
  readonly plan: TokenPlan;
  readonly params: GenerateParams;
  /** false: the request finds no KV and leaves none. Measurements use this as their baseline. */
  readonly reuse: boolean;
  /**
   * Whether nobody sees a token before the end. Then the tokens of a lost worker may be dropped and the request run
   * again, which a `restarted` event reports. false: a request that has given tokens ends with worker_lost.
   */
  readonly restartable?: boolean;
  /** How long the KV that the request uses of its tenant is kept after this use; absent: as long as there is space. */
  readonly retention?: RetentionTime | undefined;
  /** Rows of the answer may choose what they read; absent: they read all they see. */
  readonly sparse?: SparseParams | undefined;
  /** When the request's texts were read, by performance.now(); default: when it is submitted. See Evictions. */
  readonly readAtMs?: number | undefined;
  readonly deadlineMs: number;
  readonly signal?: AbortSignal;
  /** Requests with the same affinity prefer the same worker where the cost is equal. */
  readonly affinity?: string;
  /** Shared with the other requests of a tree, which then run on one worker; or made for one given worker. */
  readonly placement?: Placement | undefined;
  /** These tokens end the chain, so that it can stand in other prompts. */
  readonly closeTokenIds?: Int32Array | undefined;
  /** Whether the end reports why KV was not found. */
  readonly diagnose?: boolean | undefined;
  /** Background work waits for all other work: see FairQueue. */
  readonly background?: boolean | undefined;
  /** Called with the request's first token, and again after a restart. */
  readonly onFirstToken?: () => void;
  /**
   * Called once when the request has ended, with the tokens that it used: 0 when the server failed before the first
   * one.
   * @param end undefined when the request has failed
   */
  readonly onEnd?: (tokens: number, end: FinishedEvent | undefined) => void;
  /** Called with the end when the reader of the events has left before it. */
  readonly onAbandoned?: ((end: FinishedEvent) => void) | undefined;
}

export interface TokensEvent {
  readonly type: "tokens";
  readonly tokenIds: readonly number[];
  readonly logprobs?: readonly TokenLogprob[];
}

export type GenerationEvent =
  | TokensEvent
  /** The events so far are void; the tokens begin again. */
  | { readonly type: "restarted" }
  | FinishedEvent;

/** The end as the worker reported it. Its timings begin with the request's arrival at the worker. */
export interface FinishedEvent extends Omit<FinishedMessage, "requestId" | "foundTokens"> {
  /** Times measured here. They include the wait for a worker and the time that a lost worker used. */
  readonly times: RunTimes;
  readonly workerId: string;
  /** Only present if the request asks why KV was not found. */
  readonly misses?: readonly MissReport[] | undefined;
}
