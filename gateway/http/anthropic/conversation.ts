/**
 * A conversation as Anthropic's API writes it: the schemas of its messages, blocks and tools, and how they become the
 * turns of a prompt. Blocks of documents and of search results leave the conversation: they become the request's
 * documents, in their order, as `documents` of chat completions are.
 */
import { z } from "zod";
import { limits } from "../../config.ts";
import type { PromptDocument, RequestDocument, RequestFile } from "../../generate/plan-documents.ts";
import type { JsonObject, LowerMessage } from "../../text/messages.ts";
import { toolLimits } from "../../tools/limits.ts";
import type { OfferedTool } from "../../tools/tool-use.ts";
import { documentTitle } from "../generation/request-fields.ts";
import {
  callId,
  type Path,
  parametersSchema,
  type Refuse,
  type ToolChoice,
  type ToolsAsked,
  toolDescription,
} from "../generation/tool-schemas.ts";
import { optional, shortString } from "../transport/fields.ts";
import { paramOf } from "../transport/schema-check.ts";
import type { CitableBlocks, CitableSource } from "./citations.ts";

export const cacheControl = optional(
  z.strictObject({ type: z.literal("ephemeral"), ttl: z.enum(["5m", "1h"]).optional() }),
);
const citations = optional(z.strictObject({ enabled: z.boolean().optional() }));

const textBlock = z.strictObject({
  type: z.literal("text", "only blocks of type 'text' are supported here"),
  text: z.string(),
  cache_control: cacheControl,
  // Answers of this server have citations, and clients send them back in the next request.
  citations: optional(z.array(z.unknown()).max(limits.contentParts)),
});
export const textBlocks = z.array(textBlock).min(1).max(limits.contentParts);
const sourceTypes = "only sources of type 'text', 'content', 'base64' and 'file' are supported";
const documentBlock = z.strictObject({
  type: z.literal("document"),
  source: z.discriminatedUnion(
    "type",
    [
      z.strictObject({ type: z.literal("text"), media_type: z.literal("text/plain"), data: z.string().min(1) }),
      z.strictObject({ type: z.literal("content"), content: z.union([z.string().min(1), textBlocks]) }),
      z.strictObject({ type: z.literal("base64"), media_type: shortString, data: z.string().min(1) }),
      z.strictObject({ type: z.literal("file"), file_id: shortString }),
    ],
    sourceTypes,
  ),
  title: optional(documentTitle),
  context: optional(z.string()),
  citations,
  cache_control: cacheControl,
});
const searchResultBlock = z.strictObject({
  type: z.literal("search_result"),
  source: z.string().min(1).max(limits.sourceChars),
  title: documentTitle,
  content: textBlocks,
  citations,
  cache_control: cacheControl,
});
const messageToolName = z.string().regex(/^[a-zA-Z0-9_-]{1,128}$/, "must be 1 to 128 letters, digits, _ or -");

const toolUseBlock = z.strictObject({
  type: z.literal("tool_use"),
  id: callId,
  name: messageToolName,
  // It was parsed from JSON.
  input: z.record(z.string(), z.unknown()).transform((input) => input as JsonObject),
  caller: optional(z.strictObject({ type: z.literal("direct", "is not supported") })),
  cache_control: cacheControl,
});
const toolResultBlock = z.strictObject({
  type: z.literal("tool_result"),
  tool_use_id: callId,
  content: optional(
    z.union([
      z.string(),
      z
        .array(
          z.discriminatedUnion(
            "type",
            [textBlock, documentBlock, searchResultBlock],
            "only blocks of type 'text', 'document' and 'search_result' are supported",
          ),
        )
        .max(limits.contentParts),
    ]),
  ),
  is_error: z.boolean().optional(),
  cache_control: cacheControl,
});
/** What was thought before an earlier answer. The signature is not looked at: the text is the caller's own to send. */
const thinkingBlock = z.strictObject({
  type: z.literal("thinking"),
  thinking: z.string(),
  signature: optional(z.string()),
});
/** What another server has hidden is no text. */
const redactedBlock = z.strictObject({ type: z.literal("redacted_thinking"), data: z.string() });
const userBlock = z.discriminatedUnion(
  "type",
  [textBlock, documentBlock, searchResultBlock, toolResultBlock],
  "only blocks of type 'text', 'document', 'search_result' and 'tool_result' are supported",
);
type GivenBlock = z.output<typeof textBlock | typeof documentBlock | typeof searchResultBlock>;
export type Block = z.output<typeof userBlock | typeof toolUseBlock | typeof thinkingBlock | typeof redactedBlock>;

const userMessage = z.strictObject({
  role: z.literal("user"),
  content: z.union([z.string(), z.array(userBlock).min(1).max(limits.contentParts)]),
});
const assistantMessage = z.strictObject({
  role: z.literal("assistant"),
  content: z.union([
    z.string(),
    z
      .array(
        z.discriminatedUnion(
          "type",
          [textBlock, toolUseBlock, thinkingBlock, redactedBlock],
          "only blocks of type 'text', 'tool_use', 'thinking' and 'redacted_thinking' are supported",
        ),
      )
      .min(1)
      .max(limits.contentParts),
  ]),
});
const systemMessage = z.strictObject({ role: z.literal("system"), content: z.union([z.string(), textBlocks]) });
export const message = z.discriminatedUnion(
  "role",
  [userMessage, assistantMessage, systemMessage],
  "must be user, assistant or system",
);
export type Message = z.output<typeof message>;

/** Text of the blocks of text. */
export const textOf = (content: string | readonly Block[]): string =>
  typeof content === "string"
    ? content
    : content.flatMap((block) => (block.type === "text" ? [block.text] : [])).join("\n");

export const blocksOf = ({ content }: { readonly content: Message["content"] }): readonly Block[] =>
  typeof content === "string" ? [] : content;

/** A block that may be a document, and where it stands in the request. */
interface GivenAt {
  readonly block: GivenBlock;
  readonly path: Path;
}

/** Blocks of messages, with those that tools' results hold in their places. */
function givenBlocks(messages: readonly Message[]): readonly GivenAt[] {
  return messages.flatMap((message, index) =>
    blocksOf(message).flatMap((block, at): readonly GivenAt[] => {
      const path = ["messages", index, "content", at];
      if (block.type === "tool_use" || block.type === "thinking" || block.type === "redacted_thinking") return [];
      if (block.type !== "tool_result") return [{ block, path }];
      const inside = typeof block.content === "string" ? [] : (block.content ?? []);
      return inside.map((one, place) => ({ block: one, path: [...path, "content", place] }));
    }),
  );
}

export function documentsOf(messages: readonly Message[]): readonly RequestDocument[] {
  const given = givenBlocks(messages).filter(({ block }) => block.type !== "text");
  return given.flatMap(({ block, path }, index): RequestDocument[] => {
    if (block.type === "text") return [];
    const named = { id: `document-${index}`, title: block.title };
    if (block.type === "search_result") return [withHead(named, `Source: ${block.source}\n`, textOf(block.content))];
    const head = block.context === undefined ? "" : `Context: ${block.context}\n`;
    const { source } = block;
    if (source.type === "text") return [withHead(named, head, source.data)];
    if (source.type === "content") return [withHead(named, head, textOf(source.content))];
    return [{ ...named, head, file: fileOf(source, paramOf(path)) }];
  });
}

type DocumentSource = Extract<GivenBlock, { type: "document" }>["source"];

function fileOf(source: Extract<DocumentSource, { type: "base64" | "file" }>, at: string): RequestFile["file"] {
  return source.type === "file"
    ? { param: `${at}.source.file_id`, source: { fileId: source.file_id }, filename: undefined }
    : {
        param: `${at}.source.data`,
        source: { base64: source.data },
        filename: undefined,
        mediaType: source.media_type,
      };
}

const withHead = (named: Pick<PromptDocument, "id" | "title">, head: string, text: string): PromptDocument => {
  return { ...named, text: head + text, bodyAt: head.length };
};

/** Blocks whose citations are asked for, each with its place among all blocks of its kind. */
export function citableOf(messages: readonly Message[]): CitableBlocks {
  const partsOf = (content: string | readonly Block[]): readonly string[] =>
    typeof content === "string" ? [content] : content.map((block) => textOf([block]));
  const blocks = givenBlocks(messages).flatMap(({ block }) => (block.type === "text" ? [] : [block]));
  const sources: CitableSource[] = [];
  let [documentCount, resultCount] = [0, 0];
  for (const [document, block] of blocks.entries()) {
    const isDocument = block.type === "document";
    const index = isDocument ? documentCount++ : resultCount++;
    if (block.citations?.enabled !== true) continue;
    const { title } = block;
    if (isDocument) {
      const content = block.source.type === "content" ? partsOf(block.source.content) : undefined;
      sources.push({ title, source: undefined, index, document, content });
    } else sources.push({ title, source: block.source, index, document, content: partsOf(block.content) });
  }
  return { sources, documentCount, resultCount };
}

/** Every block, with those in other blocks. */
export const allBlocks = (message: Message): readonly Block[] => {
  const inside = blocksOf(message).flatMap((block) =>
    block.type === "tool_result" && typeof block.content === "object" ? block.content : [],
  );
  return [...blocksOf(message), ...inside];
};

type ToolUse = Extract<Block, { type: "tool_use" }>;
type ToolResult = Extract<Block, { type: "tool_result" }>;

/** Uses of the message before, by their ids. */
type OpenUses = Map<string, { readonly name: string; readonly path: Path }>;

/** Every use of a tool is answered in the message that follows it, and nothing else is. */
export function checkToolUses(messages: readonly Message[], refuse: Refuse): void {
  let open: OpenUses = new Map();
  const refuseOpen = (): void => {
    for (const { path } of open.values()) refuse(path, "has no tool_result in the message that follows");
  };
  for (const [index, message] of messages.entries()) {
    const next: OpenUses = new Map();
    for (const [at, block] of blocksOf(message).entries()) {
      const path = ["messages", index, "content", at];
      if (block.type === "tool_use") {
        if (next.has(block.id)) refuse([...path, "id"], "another tool_use has this id");
        next.set(block.id, { name: block.name, path });
      }
      if (block.type !== "tool_result") continue;
      if (!open.delete(block.tool_use_id))
        refuse([...path, "tool_use_id"], "is the id of no tool_use in the message before");
    }
    refuseOpen();
    open = next;
  }
  refuseOpen();
}

/** Turns of messages that were checked. Neighbours of one role are one turn. */
export function turnsOf(messages: readonly Message[], system: readonly LowerMessage[]): readonly LowerMessage[] {
  const names = new Map<string, string>();
  const turns = messages.flatMap((message): readonly LowerMessage[] => {
    const { role, content } = message;
    const blocks = blocksOf(message);
    const uses = blocks.filter((block): block is ToolUse => block.type === "tool_use");
    const results = blocks.filter((block): block is ToolResult => block.type === "tool_result");
    for (const { id, name } of uses) names.set(id, name);
    const thought = blocks.flatMap((block) => (block.type === "thinking" ? [block.thinking] : [])).join("\n\n");
    const before = thought === "" ? {} : { thinking: thought };
    if (uses.length > 0) {
      const calls = uses.map(({ id, name, input }) => ({ id, name, arguments: input }));
      return [{ role, content: textOf(content), calls, ...before }];
    }
    const answered = results.map((result): LowerMessage => {
      const { tool_use_id: id } = result;
      return { role: "tool", content: resultText(result), answers: { id, name: names.get(id) ?? "" } };
    });
    const text = textOf(content);
    return results.length > 0 && text === "" ? answered : [...answered, { role, content: text, ...before }];
  });
  return joined([...system, ...turns]);
}

/** Joins neighbours of one role. A message without text, whose documents stand elsewhere, adds nothing to its turn. */
function joined(messages: readonly LowerMessage[]): readonly LowerMessage[] {
  const turns: LowerMessage[] = [];
  const isPlain = ({ calls, answers }: LowerMessage): boolean => calls === undefined && answers === undefined;
  for (const message of messages) {
    const turn = turns.at(-1);
    if (turn?.role !== message.role || !isPlain(turn) || !isPlain(message)) {
      turns.push(message);
      continue;
    }
    const isBoth = turn.content !== "" && message.content !== "";
    // Strings are concatenated with +, which does not copy: joining a thousand texts one by one would copy gigabytes.
    const content = turn.content + (isBoth ? "\n\n" : "") + message.content;
    turns[turns.length - 1] = { role: turn.role, content, thinking: turn.thinking ?? message.thinking };
  }
  return turns;
}

/** Text of a tool's result. Documents in it are named by title; their text stands with the request's other documents. */
function resultText({ content = "", is_error: isError }: ToolResult): string {
  const found =
    typeof content === "string"
      ? []
      : content.flatMap((block) => (block.type === "text" ? [] : [`Found: ${block.title ?? "a document"}`]));
  const text = [textOf(content), ...found].filter((line) => line !== "").join("\n");
  return isError === true ? `Error: ${text}` : text;
}

const notSupported = "is not supported";

/** @param cacheControl schema of `cache_control` */
export function messageToolFields<CacheControl extends z.ZodType>(cacheControl: CacheControl) {
  const tool = z.strictObject({
    type: optional(z.literal("custom", "only tools of type 'custom' are supported")),
    name: messageToolName,
    description: optional(toolDescription),
    input_schema: parametersSchema,
    strict: optional(z.boolean()),
    cache_control: cacheControl,
    // Values that mean what this server does anyway: arguments are streamed as they come.
    eager_input_streaming: optional(z.boolean()),
    defer_loading: optional(z.literal(false, notSupported)),
    allowed_callers: optional(z.array(z.literal("direct", notSupported)).max(1)),
    input_examples: optional(z.array(z.unknown()).max(0, notSupported)),
  });
  const disableParallel = { disable_parallel_tool_use: optional(z.boolean()) };
  return {
    tools: optional(z.array(tool).max(toolLimits.tools)),
    tool_choice: optional(
      z.discriminatedUnion("type", [
        z.strictObject({ type: z.literal("auto"), ...disableParallel }),
        z.strictObject({ type: z.literal("any"), ...disableParallel }),
        z.strictObject({ type: z.literal("tool"), name: messageToolName, ...disableParallel }),
        z.strictObject({ type: z.literal("none") }),
      ]),
    ),
  };
}

type Fields = ReturnType<typeof messageToolFields<z.ZodType>>;
type Body = { [Name in keyof Fields]: z.output<Fields[Name]> };

export function messageToolsAsked({ tools = [], tool_choice: choice }: Body): ToolsAsked {
  const offered = tools.map(({ name, description, input_schema: parameters, strict = false }, index): OfferedTool => {
    return { name, description, parameters, strict, param: `tools[${index}].input_schema` };
  });
  const parallel = choice === undefined || choice.type === "none" || choice.disable_parallel_tool_use !== true;
  return { tools: offered, namePath: ["name"], choice: choiceOf(choice), parallel };
}

function choiceOf(choice: Body["tool_choice"]): ToolChoice {
  if (choice === undefined) return { mode: "auto" };
  if (choice.type === "any") return { mode: "required" };
  if (choice.type !== "tool") return { mode: choice.type };
  return { mode: "required", isNamed: true, names: [{ name: choice.name, path: ["tool_choice", "name"] }] };
}
