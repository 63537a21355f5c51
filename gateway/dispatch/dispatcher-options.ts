/** What the dispatcher stands on, and its bounds. */
import type { TenantId } from "../../db/ids.ts";
import type { WorkerErrorCode } from "../../worker/contract/messages.ts";
import type { ErrorCode } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { KvHistory } from "./kv/history.ts";
import type { MissReasons } from "./kv/miss-reasons.ts";
import type { PendingBlocks } from "./kv/pending-blocks.ts";
import type { Residency } from "./kv/residency.ts";
import type { UseCounts } from "./kv/use-counts.ts";
import type { Registry } from "./workers/registry.ts";
import type { Supervisor } from "./workers/supervisor.ts";

export interface DispatcherOptions {
  readonly registry: Registry;
  readonly residency: Residency;
  readonly pendingBlocks: PendingBlocks;
  readonly uses: Pick<UseCounts, "note">;
  /** undefined: nobody is told why KV was not found. */
  readonly misses?: MissReasons;
  readonly history?: KvHistory;
  readonly supervisor: Pick<Supervisor, "send">;
  readonly log: Log;
  /** Times a request is sent to a worker, the first time included. */
  readonly maxAttempts: number;
  /** Requests that a worker runs at the same time. */
  readonly maxRunningPerWorker: number;
  /** Requests that wait for a worker, and tokens of their prompts. */
  readonly maxWaiting: number;
  readonly maxWaitingTokens: number;
  /** How long a worker may take to confirm an abort. */
  readonly abortGraceMs: number;
  /** Bytes of KV that a tenant may keep on each worker; undefined: no quota. */
  readonly kvQuotaBytesOf?: (tenantId: TenantId) => number | undefined;
  readonly nowMs?: () => number;
  /** A run that was taken ends with this error. */
  readonly onFailed?: (code: ErrorCode) => void;
}

/** What the client is told of a worker's refusal. */
export const codeOfFailure: Readonly<Record<WorkerErrorCode, ErrorCode>> = {
  bad_plan: "internal",
  prompt_too_long: "context_length_exceeded",
  grammar_too_ambiguous: "schema_too_ambiguous",
  overloaded: "overloaded",
  internal: "internal",
};
