/** What a request says about tools. */
import type { ToolDefinition } from "../text/messages.ts";

export interface OfferedTool extends ToolDefinition {
  /** true: a call's arguments have to fit the tool's schema. */
  readonly strict: boolean;
  /** Path of the tool's schema in the request, for errors about it. */
  readonly param: string;
}

export interface ToolUse {
  /** The tools that the prompt shows. */
  readonly tools: readonly OfferedTool[];
  /** Names of the tools that may be called now. */
  readonly callable: ReadonlySet<string>;
  /** "required": the answer is one or more calls. */
  readonly mode: "auto" | "required";
  /** true: an answer may have several calls. */
  readonly parallel: boolean;
}
