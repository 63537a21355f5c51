/** Tools as all APIs describe them: functions, the schemas of their arguments, calls, and which functions may be called. */
import { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { limits } from "../../config.ts";
import type { JsonObject } from "../../text/messages.ts";
import { toolLimits } from "../../tools/limits.ts";
import type { OfferedTool, ToolUse } from "../../tools/tool-use.ts";
import { JsonCost } from "../transport/json-cost.ts";

export type Path = readonly (string | number)[];
export type Refuse = (path: Path, message: string) => void;

export const toolName = z.string().regex(/^[a-zA-Z0-9_-]{1,64}$/, "must be 1 to 64 letters, digits, _ or -");
export const toolDescription = z.string().max(toolLimits.descriptionChars);
export const callId = z.string().min(1).max(toolLimits.callIdChars);

/** JSON schema of a function's arguments. */
export const parametersSchema = z.record(z.string(), z.unknown()).transform((schema, context): JsonObject => {
  const refuse = (path: PropertyKey[], message: string): void => {
    context.addIssue({ code: "custom", path, message, input: schema });
  };
  const { type } = schema;
  if (type !== undefined && type !== "object") refuse(["type"], "must be 'object'");
  if (JSON.stringify(schema).length > toolLimits.schemaChars) {
    refuse([], `has more than ${toolLimits.schemaChars} characters as JSON`);
  }
  // It was parsed from JSON.
  return schema as JsonObject;
});

/** A call's arguments as text. */
export const argumentsJson = z
  .string()
  .max(toolLimits.argumentsChars)
  .transform((text, context): JsonObject => {
    try {
      // A call without arguments is written as either by clients.
      return text.trim() === "" ? {} : objectOf(text);
    } catch {
      context.addIssue({ code: "custom", message: "must be a JSON object", input: text });
      return z.NEVER;
    }
  });

function objectOf(text: string): JsonObject {
  const { argumentsDepth: depth, argumentsCommas: commas } = toolLimits;
  new JsonCost({ depth, commas, fields: commas, nodes: limits.jsonNodes }).look(text);
  const value: unknown = JSON.parse(text);
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new ApiError("invalid_value");
  return value as JsonObject;
}

/** Which tools may be called, whatever the API calls that. */
export interface ToolChoice {
  readonly mode: "none" | "auto" | "required";
  /** undefined: all of them. */
  readonly names?: readonly { readonly name: string; readonly path: Path }[] | undefined;
  /** The tool is named: it is called once. */
  readonly isNamed?: boolean;
}

export interface ToolsAsked {
  readonly tools: readonly OfferedTool[];
  /** Path from a tool to its name. */
  readonly namePath: Path;
  readonly choice: ToolChoice;
  readonly parallel: boolean;
}

/** Refuses tools and choices that contradict each other. */
export function checkTools({ tools, namePath, choice }: ToolsAsked, refuse: Refuse): void {
  const names = tools.map(({ name }) => name);
  const twice = names.findIndex((name, index) => names.indexOf(name) !== index);
  if (twice >= 0) refuse(["tools", twice, ...namePath], "another tool has this name");
  if (choice.mode !== "none" && tools.length === 0 && (choice.mode === "required" || choice.names !== undefined)) {
    refuse(["tool_choice"], "needs tools");
    return;
  }
  for (const { name, path } of choice.names ?? []) if (!names.includes(name)) refuse(path, "names none of the tools");
  const chars = tools.reduce((sum, tool) => sum + JSON.stringify(tool).length, 0);
  if (chars > toolLimits.toolsChars) refuse(["tools"], `have more than ${toolLimits.toolsChars} characters as JSON`);
}

export const cannotBeContinued = "cannot stand beside an answer that has begun";

/** Refuses a call that must be made, where the answer has begun with text. */
export function checkContinued({ choice }: ToolsAsked, refuse: Refuse): void {
  if (choice.mode === "required") refuse(["tool_choice"], cannotBeContinued);
}

/** undefined: nothing is called, and no tool is shown. */
export function toolUseOf({ tools, choice, parallel }: ToolsAsked): ToolUse | undefined {
  if (tools.length === 0 || choice.mode === "none") return undefined;
  const names = choice.names?.map(({ name }) => name) ?? tools.map(({ name }) => name);
  return { tools, callable: new Set(names), mode: choice.mode, parallel: parallel && choice.isNamed !== true };
}
