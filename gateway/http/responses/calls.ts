import { ApiError } from "../../base/errors.ts";
import type { JsonObject, LowerMessage } from "../../text/messages.ts";
import { argumentsJson } from "../generation/tool-schemas.ts";
import { type Item, textOf } from "./input-items.ts";

/**
 * Turns the conversation into messages.
 * @param ownCount how many of the items, at their end, are the request's own
 * @throws ApiError invalid_value for a call without an output, and an output without a call
 */
export function messagesOf(items: readonly Item[], ownCount: number): readonly LowerMessage[] {
  const messages: LowerMessage[] = [];
  const open = new Map<string, { readonly name: string; readonly index: number }>();
  const refuse = (index: number, field: string, text: string): never => {
    const own = index - (items.length - ownCount);
    const param = own < 0 ? "previous_response_id" : `input[${own}]${field}`;
    throw new ApiError("invalid_value", { message: `'${param}' ${text}.`, param });
  };
  const refuseOpen = (): void => {
    for (const { index } of open.values()) refuse(index, "", "is a function_call without a function_call_output");
  };
  // What was thought belongs to the assistant's message or call behind it.
  let thinking: string | undefined;
  const takeThinking = () => {
    const taken = thinking === undefined ? {} : { thinking };
    thinking = undefined;
    return taken;
  };
  for (const [index, item] of items.entries()) {
    if (item.type === "file_search_call") continue;
    if (item.type === "reasoning") {
      thinking = item.content.map(({ text }) => text).join("\n\n") || undefined;
      continue;
    }
    if (item.type === "function_call_output") {
      const { call_id: id } = item;
      const call = open.get(id) ?? refuse(index, ".call_id", "is the id of no function_call that waits for its output");
      open.delete(id);
      messages.push({ role: "tool", content: item.output, answers: { id, name: call.name } });
      continue;
    }
    if (item.type === "function_call") {
      if (open.has(item.call_id)) refuse(index, ".call_id", "is the id of another function_call");
      open.set(item.call_id, { name: item.name, index });
      addCall(messages, item, takeThinking());
      continue;
    }
    refuseOpen();
    const role = item.role === "developer" ? "system" : item.role;
    const thought = takeThinking();
    messages.push({ role, content: textOf(item.content), ...(role === "assistant" ? thought : {}) });
  }
  refuseOpen();
  return messages;
}

function addCall(
  messages: LowerMessage[],
  item: Item & { readonly type: "function_call" },
  thought: Pick<LowerMessage, "thinking">,
): void {
  const call = { id: item.call_id, name: item.name, arguments: argumentsOf(item.arguments) };
  const last = messages.at(-1);
  if (last?.role !== "assistant") messages.push({ role: "assistant", content: "", calls: [call], ...thought });
  else messages[messages.length - 1] = { ...last, calls: [...(last.calls ?? []), call] };
}

/** Arguments of a call in an answer that was cut off are no JSON. */
function argumentsOf(text: string): JsonObject {
  const parsed = argumentsJson.safeParse(text);
  return parsed.success ? parsed.data : {};
}
