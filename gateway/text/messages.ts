/** Messages as they are lowered, and the tools that a prompt shows. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };
export type JsonObject = { readonly [key: string]: Json };

export interface LowerMessage {
  readonly role: string;
  readonly content: string;
  /** Calls that an assistant's message makes. */
  readonly calls?: readonly MessageCall[] | undefined;
  /** Of a message of role "tool": the call that it answers. */
  readonly answers?: { readonly id: string; readonly name: string } | undefined;
}

export interface MessageCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: JsonObject;
}

export interface ToolDefinition {
  /** Letters, digits, _ and - alone. */
  readonly name: string;
  readonly description: string | undefined;
  /** JSON schema of an object. */
  readonly parameters: JsonObject;
}

/** Messages that more is written of than a role and a content. */
export const hasCalls = (messages: readonly LowerMessage[]): boolean =>
  messages.some(({ calls, answers }) => calls !== undefined || answers !== undefined);

/** Values in what templates look into: keys and all that stands in objects and lists. */
export function dataValues(messages: readonly LowerMessage[], tools: readonly ToolDefinition[]): number {
  const calls = messages.flatMap((message) => message.calls ?? []);
  const open: Json[] = [...calls.map((call) => call.arguments), ...tools.map((tool) => tool.parameters)];
  let count = 0;
  for (let value = open.pop(); value !== undefined; value = open.pop()) {
    count += 1;
    if (typeof value !== "object" || value === null) continue;
    // Not spread: there may be more than a call takes.
    for (const entry of Object.values(value)) open.push(entry);
  }
  return count;
}

/** Characters that calls and tools add to a prompt, at the least. */
export function toolChars(messages: readonly LowerMessage[], tools: readonly ToolDefinition[]): number {
  const calls = messages.flatMap((message) => message.calls ?? []);
  return [...calls.map((call) => call.arguments), ...tools.map((tool) => tool.parameters)].reduce<number>(
    (sum, value) => sum + JSON.stringify(value).length,
    tools.reduce((sum, tool) => sum + (tool.description?.length ?? 0), 0),
  );
}
