/**
 * Blocks and messages of Anthropic's API. Blocks of documents and of search results leave the conversation: they become
 * the request's documents, in their order, as `documents` of chat completions are.
 */
import { z } from "zod";
import { limits } from "../../config.ts";
import type { JsonObject } from "../../text/messages.ts";
import { documentTitle } from "../generation/request-fields.ts";
import { callId } from "../generation/tool-schemas.ts";
import { optional } from "../transport/fields.ts";
import type { CitableSource } from "./citations.ts";
import { messageToolName } from "./tools.ts";

export const cacheControl = optional(
  z.strictObject({ type: z.literal("ephemeral"), ttl: z.enum(["5m", "1h"]).optional() }),
);
const citations = optional(z.strictObject({ enabled: z.boolean().optional() }));

const textBlock = z.strictObject({
  type: z.literal("text", "only blocks of type 'text' are supported here"),
  text: z.string(),
  cache_control: cacheControl,
  // Our own answers have them, and come back in the next request.
  citations: optional(z.array(z.unknown()).max(limits.contentParts)),
});
export const textBlocks = z.array(textBlock).min(1).max(limits.contentParts);
const sourceTypes = "only sources of type 'text' and 'content' are supported";
const documentBlock = z.strictObject({
  type: z.literal("document"),
  source: z.discriminatedUnion(
    "type",
    [
      z.strictObject({ type: z.literal("text"), media_type: z.literal("text/plain"), data: z.string().min(1) }),
      z.strictObject({ type: z.literal("content"), content: z.union([z.string().min(1), textBlocks]) }),
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
const userBlock = z.discriminatedUnion(
  "type",
  [textBlock, documentBlock, searchResultBlock, toolResultBlock],
  "only blocks of type 'text', 'document', 'search_result' and 'tool_result' are supported",
);
type GivenBlock = z.output<typeof textBlock | typeof documentBlock | typeof searchResultBlock>;
export type Block = z.output<typeof userBlock | typeof toolUseBlock>;

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
          [textBlock, toolUseBlock],
          "only blocks of type 'text' and 'tool_use' are supported",
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

/** Blocks of a message, with those that tools' results hold in their places. */
function givenBlocks(message: Message): readonly GivenBlock[] {
  return blocksOf(message).flatMap((block): readonly GivenBlock[] => {
    if (block.type === "tool_use") return [];
    if (block.type !== "tool_result") return [block];
    return typeof block.content === "string" ? [] : (block.content ?? []);
  });
}

export function documentsOf(messages: readonly Message[]) {
  return messages.flatMap(givenBlocks).flatMap((block) => {
    if (block.type === "text") return [];
    const { title } = block;
    if (block.type === "search_result") return [{ title, text: `Source: ${block.source}\n${textOf(block.content)}` }];
    const text = block.source.type === "text" ? block.source.data : textOf(block.source.content);
    return [{ title, text: block.context === undefined ? text : `Context: ${block.context}\n${text}` }];
  });
}

/** Blocks whose citations are asked for, each with its place among all blocks of its kind. */
export function citableOf(messages: readonly Message[]): readonly CitableSource[] {
  const blocks = messages.flatMap(givenBlocks);
  const partsOf = (content: string | readonly Block[]): readonly string[] =>
    typeof content === "string" ? [content] : content.map((block) => textOf([block]));
  const results = blocks.filter((block) => block.type === "search_result");
  const documents = blocks.filter((block) => block.type === "document");
  const sources: CitableSource[] = [
    ...documents.map(({ title, source }, index) => ({
      ...{ title, source: undefined, index },
      content: source.type === "text" ? source.data : partsOf(source.content),
    })),
    ...results.map(({ title, source, content }, index) => ({ title, source, index, content: partsOf(content) })),
  ];
  const enabled = [...documents, ...results].map((block) => block.citations?.enabled === true);
  return sources.filter((_, i) => enabled[i]);
}

/** Every block, with those in other blocks. */
export const allBlocks = (message: Message): readonly Block[] => {
  const inside = blocksOf(message).flatMap((block) =>
    block.type === "tool_result" && typeof block.content === "object" ? block.content : [],
  );
  return [...blocksOf(message), ...inside];
};
