/**
 * Tools for models whose chat template knows none: the system message describes the tools, and says between which marks
 * a call is written. The marks end in digits that come from the tenant's salt. No document, user or tool can know them,
 * so no text of theirs can hold a call.
 */
import type { CacheSalt } from "../../worker/contract/units.ts";
import type { CallSyntax } from "../text/call-syntax.ts";
import type { LowerMessage, MessageCall, ToolDefinition } from "../text/messages.ts";

export interface PlainProtocol {
  readonly syntax: CallSyntax;
  /** Rewrites the messages as plain ones, the first of which describes the tools. */
  write(messages: readonly LowerMessage[], tools: readonly ToolDefinition[]): readonly LowerMessage[];
}

/** @param takesSystem false: the template takes no system message, so the first user message describes the tools */
export function plainProtocol(salt: CacheSalt, takesSystem: boolean): PlainProtocol {
  const digits = new Bun.CryptoHasher("sha256").update(`tool calls ${salt}`).digest("hex").slice(0, 8);
  const [marker, closer] = [`<tool_call_${digits}>`, `</tool_call_${digits}>`];
  const [before, after] = [`${marker}\n{"name": "`, `}\n${closer}`];
  const syntax: CallSyntax = {
    kind: "object",
    marker,
    closer,
    before,
    between: '", "arguments": ',
    after,
    separator: `${after}\n${before}`,
    signs: [],
  };
  const write: PlainProtocol["write"] = (messages, tools) => {
    const plain = plainMessages(
      messages,
      (call) => before + call.name + syntax.between + JSON.stringify(call.arguments) + after,
    );
    return tools.length === 0 ? plain : withIntroduction(plain, introduction(tools, marker, closer), takesSystem);
  };
  return { syntax, write };
}

function introduction(tools: readonly ToolDefinition[], marker: string, closer: string): string {
  const described = tools.map(({ name, description, parameters }) => {
    return JSON.stringify({ type: "function", function: { name, description, parameters } });
  });
  return [
    "# Tools\n\nYou may call functions to help with the user's query. They are, one in each line:",
    ...described,
    "\nTo call a function, write its name and its arguments as a JSON object between these two lines:",
    marker,
    '{"name": "name-of-the-function", "arguments": {"name-of-an-argument": "its value"}}',
    closer,
  ].join("\n");
}

function withIntroduction(
  messages: readonly LowerMessage[],
  text: string,
  takesSystem: boolean,
): readonly LowerMessage[] {
  const role = takesSystem ? "system" : "user";
  const [first, ...rest] = messages;
  if (first?.role !== role) return [{ role, content: text }, ...messages];
  const content = takesSystem ? `${first.content}\n\n${text}` : `${text}\n\n${first.content}`;
  return [{ role, content }, ...rest];
}

/** Writes tool results as user messages, and joins results and user messages that follow each other. */
function plainMessages(
  messages: readonly LowerMessage[],
  writeCall: (call: MessageCall) => string,
): readonly LowerMessage[] {
  const plain: { role: string; content: string; hasResult: boolean }[] = [];
  for (const { role, content, calls, answers } of messages) {
    const last = plain.at(-1);
    if (answers !== undefined || (role === "user" && last?.hasResult === true)) {
      const text = answers === undefined ? content : response(content);
      if (last?.hasResult === true) last.content = `${last.content}\n${text}`;
      else plain.push({ role: "user", content: text, hasResult: true });
      continue;
    }
    const texts = [...(content === "" ? [] : [content]), ...(calls ?? []).map(writeCall)];
    plain.push({ role, content: calls === undefined ? content : texts.join("\n"), hasResult: false });
  }
  return plain.map(({ role, content }) => ({ role, content }));
}

/** A tool's result as text, in which the result's own end mark is escaped. */
const response = (content: string): string =>
  `<tool_response>\n${content.replaceAll("</tool_response", "<\\/tool_response")}\n</tool_response>`;
