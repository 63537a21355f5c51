/** What an engine is made with, and how much it takes on at a time. */
import type { Backend } from "../backend/backend.ts";
import type { WorkerMessage } from "../contract/messages.ts";
import type { KvPositions } from "../relocation/relocation.ts";
import type { SparseLimits } from "../sparse/sparse-decoding.ts";
import type { FileSystem } from "../tiers/file-system.ts";

export interface EngineOptions {
  readonly backend: Backend;
  readonly eosTokenIds: readonly number[];
  readonly limits?: Partial<EngineLimits>;
  /** Milliseconds from any fixed point, never falling. */
  readonly clock: () => number;
  /** Takes every message to the gateway, in order; called synchronously. */
  readonly emit: (message: WorkerMessage) => void;
  /** Re-derives the bookkeeping after every step and throws when it contradicts itself. */
  readonly debug?: boolean;
  /** Default: deferred. */
  readonly positions?: KvPositions;
  /** The model's digest, by which KV in files is told from another model's; absent: none is kept. */
  readonly modelDigest?: string;
  /** Where the backend chooses what rows read. */
  readonly sparse?: Partial<SparseLimits>;
  /** Where KV files lie; default: the system's. */
  readonly files?: FileSystem;
}

export interface EngineLimits {
  readonly maxRunningRequests: number;
  readonly maxWaitingRequests: number;
  /** Rows of one step, prefill and decode together. */
  readonly stepTokens: number;
  /** Prefill rows of a step that also decodes, at most: they lengthen the time between two tokens of a stream. */
  readonly prefillTokensBesideDecodes: number;
  /**
   * Tokens of context that cost a row as much in attention as the model's products do: beside other tenants a step has
   * fewer prompt rows, the more they read. Infinity: attention is not counted.
   */
  readonly rowCostTokens: number;
  /**
   * Rows of a prompt that take as long as a step of one decode, as measured (worker/rehearsal.ts): beside other tenants
   * a step of heavy prompts is short in terms of it. undefined: not known.
   */
  readonly decodeStepRows: number | undefined;
  /**
   * Words of what a backend is told of a step beside its rows (step-budget.ts), on top of the blocks of a whole context
   * for each running request: rows that read thousands of segments are fewer in a step.
   */
  readonly stepListWords: number;
  /** Work on masks of constrained requests between two steps (sample/mask-slices.ts): 1 is about a nanosecond. */
  readonly stepMaskWork: number;
}

/** Of a CPU; worker/config.ts has a GPU's. */
export const defaultEngineLimits: EngineLimits = {
  maxRunningRequests: 64,
  maxWaitingRequests: 1_024,
  stepTokens: 512,
  prefillTokensBesideDecodes: 128,
  rowCostTokens: Number.POSITIVE_INFINITY,
  decodeStepRows: undefined,
  stepListWords: 15 * 2 ** 17,
  stepMaskWork: 1_000_000,
};
