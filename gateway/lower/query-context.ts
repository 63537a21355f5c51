/** Inputs and results of lowering a span query, beside the tree itself. */
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import type { Generate, Repeat } from "../query/ir.ts";
import type { ReasoningReading } from "../text/reasoning-reader.ts";
import type { LowerDocument } from "./plan.ts";

/** The output of one run of an inner generate. */
export interface GeneratedOutput {
  /** The generated tokens, without the end-of-text token. */
  readonly tokenIds: Int32Array;
  /** false: a stand-in of the greatest possible length, for plans that are shown but not run. */
  readonly known: boolean;
}

export interface QueryContext {
  /** Salt of the text that the caller sent. */
  readonly salt: CacheSalt;
  readonly fragments: ReadonlyMap<string, LowerDocument>;
  /** Outputs of a node in a prompt: one of a generate, n of a repeat. Called with the node object itself. */
  readonly outputs: (node: Generate | Repeat) => readonly GeneratedOutput[];
}

export interface LoweredGenerate {
  /** The last run is open: it starts the assistant's message. */
  readonly plan: TokenPlan;
  readonly promptTokens: number;
  /** Tokens that end the assistant's message, so that the output can stand in another prompt. */
  readonly closeTokenIds: Int32Array;
  /** How the thinking before the answer is told from it; undefined: there is none that could be. */
  readonly reasoning: ReasoningReading | undefined;
  /** Indexes of the runs whose tokens or keys depend on an output that is not known. */
  readonly indeterminateRuns: ReadonlySet<number>;
}
