/** What goes into the dispatcher and what comes out of it. */
import type { TenantId } from "../../../db/ids.ts";
import type { FinishedMessage, GenerateParams, TokenLogprob, TokenPlan } from "../../../worker/contract/messages.ts";
import type { RetentionTime } from "../../../worker/contract/owners.ts";
import type { MissReport } from "./miss-report.ts";
import type { Placement } from "./placement.ts";
import type { RunTimes } from "./run-clock.ts";

/** Tenant that work counts for; "" for work on corpora that no tenant asked for. */
export type WorkOwner = TenantId | "";

export interface DispatchRequest {
  /** Unique among the requests in flight; becomes part of the worker's request id. */
  readonly requestId: string;
  /** Whose the plan's chains are, those of corpora's fragments excepted: their KV is counted for it. */
  readonly tenantId: WorkOwner;
  readonly plan: TokenPlan;
  readonly params: GenerateParams;
  /** false: nothing found, nothing kept (the baseline of measurements). */
  readonly reuse: boolean;
  /**
   * Nobody has seen a token before the end, so a lost worker's tokens may be thrown away and the request run again:
   * a `restarted` event says so. false: a request that has given tokens ends with worker_lost.
   */
  readonly restartable?: boolean;
  /** How long what it uses of its tenant's KV is to be kept after this use; absent: as long as there is room. */
  readonly retention?: RetentionTime | undefined;
  /** When its texts were read, by performance.now(); default: when it is submitted. See Evictions. */
  readonly readAtMs?: number | undefined;
  readonly deadlineMs: number;
  readonly signal?: AbortSignal;
  /** Requests with the same affinity prefer the same worker where the cost is equal. */
  readonly affinity?: string;
  /** Shared with the other requests of a tree, which then run on one worker; or made for one worker. */
  readonly placement?: Placement | undefined;
  /** The chain will stand in other prompts: these tokens end it. */
  readonly closeTokenIds?: Int32Array | undefined;
  /** Its end is to tell why KV was not found. */
  readonly diagnose?: boolean | undefined;
  /** It waits for everything else: see FairQueue. */
  readonly background?: boolean | undefined;
  /** Called with its first token, and again when a lost worker's tokens were void. */
  readonly onFirstToken?: () => void;
  /**
   * Called once when it has ended, with the tokens it took: 0 when the server failed before the first.
   * @param end undefined when it has failed
   */
  readonly onEnd?: (tokens: number, end: FinishedEvent | undefined) => void;
  /** Called with the end when its reader had gone before it. */
  readonly onAbandoned?: ((end: FinishedEvent) => void) | undefined;
}

export interface TokensEvent {
  readonly type: "tokens";
  readonly tokenIds: readonly number[];
  readonly logprobs?: readonly TokenLogprob[];
}

export type GenerationEvent =
  | TokensEvent
  /** What came so far is void; the tokens begin again. */
  | { readonly type: "restarted" }
  | FinishedEvent;

/** As the worker told it; its timings begin with the arrival there. */
export interface FinishedEvent extends Omit<FinishedMessage, "requestId" | "foundTokens"> {
  /** With the waiting for a worker, and with what a lost worker took. */
  readonly times: RunTimes;
  readonly workerId: string;
  /** Only of a request that asked to be diagnosed. */
  readonly misses?: readonly MissReport[] | undefined;
}
