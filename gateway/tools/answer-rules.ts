/** Says as plain data what an answer has to be. A grammar is made from it, in this thread or in another. */
import type { CallSyntax } from "../text/call-syntax.ts";
import type { JsonObject } from "../text/messages.ts";
import type { ReasoningReading } from "../text/reasoning-reader.ts";
import type { ToolUse } from "./tool-use.ts";

/** The form of an answer that makes no call: any JSON object, or a value of a schema. */
export type AnswerFormat =
  | { readonly kind: "object" }
  /** `param` is the schema's path in the request, for errors about the schema. */
  | { readonly kind: "schema"; readonly schema: unknown; readonly param: string };

export interface CallableTool {
  readonly name: string;
  /** Path of the schema in the request. */
  readonly param: string;
  /** JSON schema of the arguments. undefined: any object. */
  readonly parameters: JsonObject | undefined;
}

export interface CallRules extends Pick<ToolUse, "mode" | "parallel"> {
  readonly syntax: CallSyntax;
  readonly tools: readonly CallableTool[];
}

/** The rules of an answer; a format or calls are there. */
export interface AnswerRules {
  /** Thinking that may come before the answer; absent: none. */
  readonly thinking?: ReasoningReading | undefined;
  readonly format?: AnswerFormat | undefined;
  readonly calls?: CallRules | undefined;
}

/** The param of an error that concerns no single part of a schema. undefined: there is no schema. */
export function schemaParam({ format, calls }: AnswerRules): string | undefined {
  if (calls !== undefined) return "tools";
  return format?.kind === "schema" ? format.param : undefined;
}

export const formatRules = (format: AnswerFormat | undefined): AnswerRules | undefined => format && { format };

/** The rules of an answer. undefined: it is free, as no call is required and no arguments have to fit a schema. */
export function answerRules(
  syntax: CallSyntax,
  { tools, callable, mode, parallel }: ToolUse,
  format: AnswerFormat | undefined,
): AnswerRules | undefined {
  const offered = tools.filter(({ name }) => callable.has(name));
  const isFree = mode === "auto" && parallel && !offered.some(({ strict }) => strict);
  if (isFree && format === undefined) return undefined;
  const kept = offered.map(({ name, param, strict, parameters }) => {
    return { name, param, parameters: strict || mode === "required" ? parameters : undefined };
  });
  return { format, calls: { syntax, tools: kept, mode, parallel } };
}
