/** Any value that JSON can hold. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };
export type JsonObject = { readonly [key: string]: Json };

export interface LowerMessage {
  readonly role: string;
  readonly content: string;
  /** What an assistant thought before this message; templates show it where they show it. */
  readonly thinking?: string | undefined;
  /** Calls that an assistant's message makes. */
  readonly calls?: readonly MessageCall[] | undefined;
  /** The call that a message of role "tool" answers. */
  readonly answers?: { readonly id: string; readonly name: string } | undefined;
}

export interface MessageCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: JsonObject;
}

export interface ToolDefinition {
  /** The name has only letters, digits, _ and -. */
  readonly name: string;
  readonly description: string | undefined;
  /** JSON schema of the arguments, which are an object. */
  readonly parameters: JsonObject;
}

/** Whether any of the messages makes or answers a call. */
export const hasCalls = (messages: readonly LowerMessage[]): boolean =>
  messages.some(({ calls, answers }) => calls !== undefined || answers !== undefined);

/** Number of values in calls and tools: each key, and each entry of an object or list. */
export function dataValues(messages: readonly LowerMessage[], tools: readonly ToolDefinition[]): number {
  const calls = messages.flatMap((message) => message.calls ?? []);
  const open: Json[] = [...calls.map((call) => call.arguments), ...tools.map((tool) => tool.parameters)];
  let count = 0;
  for (let value = open.pop(); value !== undefined; value = open.pop()) {
    count += 1;
    if (typeof value !== "object" || value === null) continue;
    // The entries are not spread into one push: there may be more than a function call takes.
    for (const entry of Object.values(value)) open.push(entry);
  }
  return count;
}

/** Fewest characters that calls and tools add to a prompt. */
export function toolChars(messages: readonly LowerMessage[], tools: readonly ToolDefinition[]): number {
  const calls = messages.flatMap((message) => message.calls ?? []);
  return [...calls.map((call) => call.arguments), ...tools.map((tool) => tool.parameters)].reduce<number>(
    (sum, value) => sum + JSON.stringify(value).length,
    tools.reduce((sum, tool) => sum + (tool.description?.length ?? 0), 0),
  );
}
