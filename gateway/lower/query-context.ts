/** What lowering a span query takes and gives, beside the tree itself. */
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import type { Generate, Repeat } from "../query/ir.ts";
import type { LowerDocument } from "./plan.ts";

/** What one run of an inner generate gave. */
export interface GeneratedOutput {
  /** Without the end-of-text token. */
  readonly tokenIds: Int32Array;
  /** false: a stand-in of the greatest length, for plans that are only looked at. */
  readonly known: boolean;
}

export interface QueryContext {
  /** Salt of the caller's own text. */
  readonly salt: CacheSalt;
  readonly fragments: ReadonlyMap<string, LowerDocument>;
  /** Outputs of a node that stands in a prompt: one of a generate, n of a repeat. Called with the node's own object. */
  readonly outputs: (node: Generate | Repeat) => readonly GeneratedOutput[];
}

export interface LoweredGenerate {
  /** The last run is open: the start of the assistant's message. */
  readonly plan: TokenPlan;
  readonly promptTokens: number;
  /** Ends the assistant's message, so that the chain can stand in another prompt. */
  readonly closeTokenIds: Int32Array;
  /** Runs whose tokens or keys depend on an output that is not known. */
  readonly indeterminateRuns: ReadonlySet<number>;
}
