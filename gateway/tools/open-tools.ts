/** A request's tools in the words of the model that is asked. */
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import type { CallSyntax } from "../text/call-syntax.ts";
import { dataValues, hasCalls, type LowerMessage, type ToolDefinition } from "../text/messages.ts";
import { type AnswerFormat, type AnswerRules, answerRules, formatRules } from "./answer-rules.ts";
import type { CallReaderOptions } from "./call-reader.ts";
import { toolLimits } from "./limits.ts";
import { plainProtocol } from "./plain-protocol.ts";
import type { ToolUse } from "./tool-use.ts";

/** What the model's template knows. */
export interface TemplateFacts {
  readonly calls: CallSyntax | undefined;
  readonly takesSystem: boolean;
}

export interface OpenedTools {
  readonly messages: readonly LowerMessage[];
  /** What the template is given. */
  readonly tools: readonly ToolDefinition[];
  /** How calls are read out of the answer. undefined: there are none. */
  readonly reading: CallReaderOptions | undefined;
  /** What the answer has to be; undefined: it is free. */
  readonly rules: AnswerRules | undefined;
}

/**
 * @param format what the answer has to be where it is no call
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
