/** Items of the input of POST /v1/responses: messages, calls and their outputs, searches, references to kept items. */
import { z } from "zod";
import { limits } from "../../config.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { RequestFile } from "../../generate/plan-documents.ts";
import { type CacheBreakpoint, cacheBreakpoint } from "../generation/prompt-cache.ts";
import { checkPromptFile, promptFileAt, promptFileFields } from "../generation/prompt-file.ts";
import { argumentsJson, callId, toolName } from "../generation/tool-schemas.ts";
import { optional, shortString } from "../transport/fields.ts";

const status = optional(z.enum(["in_progress", "completed", "incomplete"]));
const caller = optional(z.strictObject({ type: z.literal("direct", "is not supported") }));
const outputPart = z.strictObject({
  type: z.literal("input_text", "only parts of type 'input_text' are supported"),
  text: z.string(),
});

const callItem = z.strictObject({
  type: z.literal("function_call"),
  id: optional(shortString),
  call_id: callId,
  name: toolName,
  arguments: z.string().refine((text) => argumentsJson.safeParse(text).success, "must be a JSON object"),
  status,
  caller,
  async: optional(z.literal(false, "is not supported")),
});
const callOutputItem = z.strictObject({
  type: z.literal("function_call_output"),
  id: optional(shortString),
  call_id: callId,
  output: z.union([
    z.string(),
    z
      .array(outputPart)
      .max(limits.contentParts)
      .transform((parts) => parts.map(({ text }) => text).join("")),
  ]),
  status,
  caller,
});

/** Larger than the number of tokens that any answer has. */
const maxLogprobs = 131_072;
const textPart = z.strictObject({
  type: z.enum(["input_text", "output_text"]),
  text: z.string(),
  prompt_cache_breakpoint: cacheBreakpoint,
  // Clients send earlier answers back with these two fields; neither is stored.
  annotations: optional(z.array(z.unknown()).max(limits.documents)),
  logprobs: optional(z.array(z.unknown()).max(maxLogprobs)),
});
/** A file leaves the conversation: it becomes a document of the request. */
const filePart = z
  .strictObject({
    type: z.literal("input_file"),
    ...promptFileFields,
    file_url: optional(z.never("is not supported: send file_data or file_id")),
    // Says how finely images in it are to be looked at; there are none here.
    detail: optional(z.enum(["low", "high", "auto"])),
    prompt_cache_breakpoint: cacheBreakpoint,
  })
  .superRefine(checkPromptFile);
const contentPart = z.discriminatedUnion(
  "type",
  [textPart, filePart],
  "only parts of type 'input_text', 'output_text' and 'input_file' are supported",
);
const messageItem = z
  .strictObject({
    type: z.literal("message"),
    id: optional(shortString),
    status: optional(z.enum(["in_progress", "completed", "incomplete"])),
    role: z.enum(["user", "assistant", "system", "developer"], "must be user, assistant, system or developer"),
    content: z.union([z.string(), z.array(contentPart).min(1).max(limits.contentParts)]),
  })
  .superRefine(({ role, content }, context) => {
    const at = typeof content === "string" ? -1 : content.findIndex(({ type }) => type === "input_file");
    if (at < 0 || role === "user") return;
    context.addIssue({
      code: "custom",
      path: ["content", at, "type"],
      message: "stands in messages of the user alone",
    });
  });
/** A search of an earlier turn, as it was answered: what it found is not searched for again, and not in the prompt. */
const searchItem = z.strictObject({
  type: z.literal("file_search_call"),
  id: shortString,
  queries: z.array(z.string().max(corpusLimits.maxQueryChars)).max(corpusLimits.maxQueriesPerSearch),
  status: z.enum(["in_progress", "searching", "completed", "incomplete", "failed"]),
  results: optional(z.array(z.unknown()).max(limits.retrievedFragments)),
});
/** What was thought before an answer, as it was answered. */
const thoughtPart = z.strictObject({ type: z.enum(["reasoning_text", "summary_text"]), text: z.string() });
const reasoningItem = z.strictObject({
  type: z.literal("reasoning"),
  id: optional(shortString),
  summary: optional(z.array(thoughtPart).max(limits.contentParts)),
  content: optional(z.array(thoughtPart).max(limits.contentParts)),
  encrypted_content: optional(z.never("is not supported")),
  status,
});
/** Refers to an item of a stored response by the item's id. */
const referenceItem = z.strictObject({ type: z.literal("item_reference"), id: shortString });
const itemTypes =
  "only items of type 'message', 'function_call', 'function_call_output', 'file_search_call', 'reasoning' and 'item_reference' are supported";
/** The type of a message may be left out. */
const withType = (value: unknown): unknown =>
  typeof value === "object" && value !== null && !("type" in value) ? { ...value, type: "message" } : value;
const itemKinds = [messageItem, searchItem, reasoningItem, referenceItem, callItem, callOutputItem] as const;
export const item = z.preprocess(withType, z.discriminatedUnion("type", itemKinds, itemTypes));
export type InputItem = z.output<typeof item>;

export type ItemReference = z.output<typeof referenceItem>;
type ItemPart =
  | { readonly type: "input_text" | "output_text"; readonly text: string; readonly annotations?: readonly [] }
  | FilePart;
type FilePart = Pick<z.output<typeof filePart>, "type" | "file_id" | "file_data" | "filename">;

/** The text of a message's parts. */
export const textOf = (content: readonly ItemPart[]): string =>
  content.map((part) => (part.type === "input_file" ? "" : part.text)).join("");

/**
 * The files of a conversation, in order.
 * @param ownCount how many of the items, at their end, are the request's own
 */
export function filesOf(items: readonly Item[], ownCount: number): readonly RequestFile[] {
  const earlier = items.length - ownCount;
  return items.flatMap((item, index) => {
    if (item.type !== "message") return [];
    return item.content.flatMap((part, at): RequestFile[] => {
      if (part.type !== "input_file") return [];
      if (index >= earlier) return [promptFileAt(["input", index - earlier, "content", at], part)];
      const found = promptFileAt([`earlier-file-${index}-${at}`], part);
      return [{ ...found, file: { ...found.file, param: "previous_response_id" } }];
    });
  });
}

/** A message, a call or a call's output, in the form that is stored, listed and lowered. */
export type Item = Exclude<ReturnType<typeof itemsOf>[number], ItemReference>;

export function itemsOf(input: string | readonly InputItem[]) {
  const items =
    typeof input === "string" ? [{ type: "message" as const, role: "user" as const, content: input }] : input;
  return items.map((entry) => {
    if (entry.type === "item_reference") return entry;
    if (entry.type === "file_search_call") return { ...entry, results: null };
    if (entry.type === "function_call") {
      const { type, call_id, name } = entry;
      return { type, call_id, name, arguments: entry.arguments, status: "completed" };
    }
    if (entry.type === "reasoning") {
      const parts = (entry.content ?? []).filter((part) => part.type === "reasoning_text");
      const content = parts.map(({ text }) => ({ type: "reasoning_text" as const, text }));
      return { type: entry.type, summary: [], content, status: "completed" };
    }
    if (entry.type === "function_call_output") {
      return { type: entry.type, call_id: entry.call_id, output: entry.output, status: "completed" };
    }
    const type = entry.role === "assistant" ? "output_text" : "input_text";
    const parts =
      typeof entry.content === "string" ? [{ type: "input_text" as const, text: entry.content }] : entry.content;
    const content = parts.map((part): ItemPart => {
      if (part.type !== "input_file")
        return { type, text: part.text, ...(type === "output_text" ? { annotations: [] } : {}) };
      const { file_id, file_data, filename } = part;
      // What is undefined is not stored.
      return { type: part.type, file_id, file_data, filename };
    });
    return { type: entry.type, role: entry.role, status: "completed", content };
  });
}

export function breakpointsOf(input: string | readonly InputItem[]): readonly CacheBreakpoint[] {
  if (typeof input === "string") return [];
  const parts = input.flatMap((entry) =>
    entry.type === "message" && typeof entry.content !== "string" ? entry.content : [],
  );
  return parts.flatMap(({ prompt_cache_breakpoint: breakpoint }) => breakpoint ?? []);
}
