/** Messages of chat completions. */
import { z } from "zod";
import { limits } from "../../config.ts";
import type { RequestFile } from "../../generate/plan-documents.ts";
import type { LowerMessage } from "../../text/messages.ts";
import { toolLimits } from "../../tools/limits.ts";
import { type CacheBreakpoint, cacheBreakpoint } from "../generation/prompt-cache.ts";
import { checkPromptFile, promptFileAt, promptFileFields } from "../generation/prompt-file.ts";
import { argumentsJson, callId, type Path, toolName } from "../generation/tool-schemas.ts";
import { optional } from "../transport/fields.ts";

const textPart = z.strictObject({
  type: z.literal("text", { error: "only parts of type 'text' are supported here" }),
  text: z.string(),
  prompt_cache_breakpoint: cacheBreakpoint,
});
const content = z.union([
  z.string().transform((text) => ({ text, breakpoints: [] })),
  z
    .array(textPart)
    .min(1)
    .max(limits.contentParts)
    .transform((parts) => ({
      text: parts.map((part) => part.text).join(""),
      breakpoints: parts.flatMap(({ prompt_cache_breakpoint: breakpoint }) => breakpoint ?? []),
    })),
]);

const filePart = z.strictObject({
  type: z.literal("file"),
  file: z.strictObject(promptFileFields).superRefine(checkPromptFile),
  prompt_cache_breakpoint: cacheBreakpoint,
});
/** Files leave the conversation: they become documents of the request. */
const userContent = z.union([
  z.string().transform((text) => ({ text, breakpoints: [], files: [] })),
  z
    .array(z.discriminatedUnion("type", [textPart, filePart], "only parts of type 'text' and 'file' are supported"))
    .min(1)
    .max(limits.contentParts)
    .transform((parts) => ({
      text: parts.map((part) => (part.type === "text" ? part.text : "")).join(""),
      breakpoints: parts.flatMap(({ prompt_cache_breakpoint: breakpoint }) => breakpoint ?? []),
      files: parts.flatMap((part, at) => (part.type === "file" ? [{ at, ...part.file }] : [])),
    })),
]);

const call = z.strictObject({
  id: callId,
  type: z.literal("function", "only calls of type 'function' are supported"),
  function: z.strictObject({ name: toolName, arguments: argumentsJson }),
});
const notSupported = "is not supported";
const message = z.discriminatedUnion(
  "role",
  [
    z.strictObject({ role: z.literal("user"), content: userContent }),
    z.strictObject({ role: z.enum(["system", "developer"]), content }),
    z.strictObject({
      role: z.literal("assistant"),
      content: optional(content),
      tool_calls: optional(z.array(call).min(1).max(toolLimits.callsPerMessage)),
      // What was thought before it, for templates that show it again.
      reasoning_content: optional(z.string()),
      // Answers come back as clients got them, with what was not in them as null; notes on them, as `refusal` is, are
      // no part of the prompt and left out.
      function_call: z.null(notSupported).optional(),
      audio: z.null(notSupported).optional(),
    }),
    z.strictObject({ role: z.literal("tool"), content, tool_call_id: callId, name: optional(toolName) }),
  ],
  { error: "only the roles system, developer, user, assistant and tool are supported" },
);
type Message = z.output<typeof message>;

/** The calls without an answer yet, of the last message that made calls: their names, and where they stand. */
type OpenCalls = Map<string, { readonly name: string; readonly path: Path }>;

export interface ChatMessages {
  readonly lowered: readonly LowerMessage[];
  /** In order. */
  readonly files: readonly RequestFile[];
  /** In order. */
  readonly breakpoints: readonly CacheBreakpoint[];
}

export const chatMessages = z
  .array(message)
  .min(1)
  .max(limits.messages)
  .transform((messages, context): ChatMessages => {
    let refused = false;
    const refuse = (path: Path, text: string): void => {
      // Only the first fault is reported, since there may be as many as there are calls.
      if (!refused) context.addIssue({ code: "custom", path: [...path], message: text, input: messages });
      refused = true;
    };
    const open: OpenCalls = new Map();
    const refuseOpen = (): void => {
      for (const { path } of open.values())
        refuse(path, "has no answer: a message of role 'tool' for each must follow");
      open.clear();
    };
    const lowered = messages.map((each, index): LowerMessage => {
      if (each.role === "tool") {
        const called = open.get(each.tool_call_id);
        if (called === undefined) refuse([index, "tool_call_id"], "is the id of no call that waits for an answer");
        open.delete(each.tool_call_id);
        const name = each.name ?? called?.name ?? "";
        return { role: "tool", content: each.content.text, answers: { id: each.tool_call_id, name } };
      }
      refuseOpen();
      if (each.role === "assistant") return assistantMessage(each, index, open, refuse);
      return { role: each.role === "developer" ? "system" : each.role, content: each.content.text };
    });
    refuseOpen();
    const files = messages.flatMap((each, index) => {
      if (each.role !== "user") return [];
      return each.content.files.map(({ at, ...file }) =>
        promptFileAt(["messages", index, "content", at, "file"], file),
      );
    });
    return { lowered, files, breakpoints: messages.flatMap(({ content: each }) => each?.breakpoints ?? []) };
  });

function assistantMessage(
  { content: said, reasoning_content: thinking, tool_calls: made }: Message & { readonly role: "assistant" },
  index: number,
  open: OpenCalls,
  refuse: (path: Path, text: string) => void,
): LowerMessage {
  const text = said?.text;
  if (made === undefined) {
    if (text === undefined) refuse([index, "content"], "is missing, and so are tool_calls");
    return { role: "assistant", content: text ?? "", ...(thinking ? { thinking } : {}) };
  }
  const calls = made.map(({ id, function: { name, arguments: given } }, at) => {
    const path = [index, "tool_calls", at];
    if (open.has(id)) refuse([...path, "id"], "another call has this id");
    open.set(id, { name, path });
    return { id, name, arguments: given };
  });
  return { role: "assistant", content: text ?? "", calls, ...(thinking ? { thinking } : {}) };
}
