/** What a request says of tools. */
import type { ToolDefinition } from "../text/messages.ts";

export interface OfferedTool extends ToolDefinition {
  /** Its arguments have to fit its schema. */
  readonly strict: boolean;
  /** Path of the schema in the request, for what cannot be kept of it. */
  readonly param: string;
}

export interface ToolUse {
  /** What the prompt shows. */
  readonly tools: readonly OfferedTool[];
  /** Names of those that may be called now. */
  readonly callable: ReadonlySet<string>;
  /** "required": the answer is a call, or several. */
  readonly mode: "auto" | "required";
  /** An answer may have several calls. */
  readonly parallel: boolean;
}
