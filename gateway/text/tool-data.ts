/** Tools and calls in the form that chat templates read, which is that of Hugging Face's transformers. */
import type { Json, JsonObject, LowerMessage, ToolDefinition } from "./messages.ts";
import type { TemplateMessage, TemplateTool } from "./template-probe.ts";

export interface StandInMaker {
  /** Makes the stand-in for the content of message number `index`. */
  readonly content: (index: number) => string;
  readonly literal: (text: string) => string;
}

/** @param controls contents of the tokenizer's control tokens */
export function templateData(
  messages: readonly LowerMessage[],
  tools: readonly ToolDefinition[],
  controls: readonly string[],
  { content, literal }: StandInMaker,
): { readonly messages: readonly TemplateMessage[]; readonly tools: readonly TemplateTool[] | undefined } {
  // A control token in a text, or one that a text and the template's own text form together, puts the token's first or
  // last character into the text. So every text with such a character becomes a stand-in.
  const ends = new Set(controls.flatMap((control) => [control.charAt(0), control.charAt(control.length - 1)]));
  const shield = (text: string): string => ([...text].some((char) => ends.has(char)) ? literal(text) : text);
  return {
    messages: messages.map((message, index) => {
      const { thinking } = message;
      const shown = templateMessage(message, content(index), shield);
      if (thinking === undefined) return shown;
      const standIn = literal(thinking);
      return { ...shown, reasoning_content: standIn, thinking: standIn };
    }),
    tools: tools.length === 0 ? undefined : tools.map((tool) => templateTool(tool, shield)),
  };
}

type Shield = (text: string) => string;

function templateMessage(message: LowerMessage, standIn: string, shield: Shield): TemplateMessage {
  const { role, content, calls, answers } = message;
  if (answers !== undefined) return { role, content: standIn, tool_call_id: callId(answers.id), name: answers.name };
  if (calls === undefined) return { role, content: standIn };
  const toolCalls = calls.map(({ id, name, arguments: given }) => {
    return { id: callId(id), type: "function" as const, function: { name, arguments: shieldedObject(given, shield) } };
  });
  // Templates test whether there is text beside the calls, so an empty content stays empty.
  return { role, content: content === "" ? "" : standIn, tool_calls: toolCalls };
}

function templateTool({ name, description, parameters }: ToolDefinition, shield: Shield): TemplateTool {
  const told: JsonObject = description === undefined ? {} : { description: shield(description) };
  return { type: "function", function: { name, ...told, parameters: shieldedObject(parameters, shield) } };
}

/** Turns an id into 9 letters and digits, since some templates (Mistral's) refuse any other. */
export function callId(id: string): string {
  if (/^[a-zA-Z0-9]{9}$/.test(id)) return id;
  return new Bun.CryptoHasher("sha256").update(id).digest("hex").slice(0, 9);
}

function shielded(value: Json, shield: Shield): Json {
  if (typeof value === "string") return shield(value);
  if (typeof value !== "object" || value === null) return value;
  if (isList(value)) return value.map((entry) => shielded(entry, shield));
  return shieldedObject(value, shield);
}

const isList = (value: Json): value is readonly Json[] => Array.isArray(value);

function shieldedObject(value: JsonObject, shield: Shield): JsonObject {
  // Object.fromEntries makes a plain property of any name, even of __proto__.
  return Object.fromEntries(Object.entries(value).map(([key, entry]) => [shield(key), shielded(entry, shield)]));
}
