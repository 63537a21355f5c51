/** Prepares a request's tools for the model: in the syntax of its template, or in the plain protocol. */
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import type { CallSyntax } from "../text/call-syntax.ts";
import { dataValues, hasCalls, type LowerMessage, type ToolDefinition } from "../text/messages.ts";
import { type AnswerFormat, type AnswerRules, answerRules, formatRules } from "./answer-rules.ts";
import type { CallReaderOptions } from "./call-reader.ts";
import { toolLimits } from "./limits.ts";
import { plainProtocol } from "./plain-protocol.ts";
import type { ToolUse } from "./tool-use.ts";

/** What the gateway knows about the model's chat template. */
export interface TemplateFacts {
  readonly calls: CallSyntax | undefined;
  readonly takesSystem: boolean;
}

export interface OpenedTools {
  readonly messages: readonly LowerMessage[];
  /** The tools that are passed to the template. */
  readonly tools: readonly ToolDefinition[];
  /** How calls are read from the answer. undefined: the answer has none. */
  readonly reading: CallReaderOptions | undefined;
  /** What the answer has to be. undefined: it is free. */
  readonly rules: AnswerRules | undefined;
}

/**
 * @param format what an answer without calls has to be
 * @throws ApiError invalid_value for schemas and arguments of too many values
 */
export function openTools(
  { messages, tools: use }: { readonly messages: readonly LowerMessage[]; readonly tools?: ToolUse | undefined },
  { calls, takesSystem }: TemplateFacts,
  salt: CacheSalt,
  format: AnswerFormat | undefined,
): OpenedTools {
  if (use === undefined && !hasCalls(messages))
    return { messages, tools: [], reading: undefined, rules: formatRules(format) };
  if (dataValues(messages, use?.tools ?? []) > toolLimits.promptValues) {
    throw new ApiError("invalid_value", {
      message: `Schemas of tools and arguments of calls have more than ${toolLimits.promptValues} values.`,
      param: hasCalls(messages) ? "messages" : "tools",
    });
  }
  const protocol = calls === undefined ? plainProtocol(salt, takesSystem) : undefined;
  const shown = use?.tools ?? [];
  const prompt =
    protocol === undefined ? { messages, tools: shown } : { messages: protocol.write(messages, shown), tools: [] };
  const syntax = calls ?? protocol?.syntax;
  if (use === undefined || syntax === undefined) return { ...prompt, reading: undefined, rules: formatRules(format) };
  const reading = {
    syntax,
    names: use.callable,
    several: use.parallel && syntax.separator !== undefined,
    callsOnly: use.mode === "required",
  };
  return { ...prompt, reading, rules: answerRules(syntax, use, format) };
}
