/**
 * The bodies of POST /v1/messages and /v1/messages/count_tokens. Blocks of documents and of search results leave the
 * conversation: they become the request's documents, in their order, as `documents` of chat completions are.
 */
import { z } from "zod";
import { limits } from "../config.ts";
import type { ChatRequest, PromptRequest } from "../pipeline.ts";
import type { CitableSource } from "./messages-citations.ts";
import {
  chatFields,
  documentTitle,
  fileSearchSchema,
  generateParams,
  optional,
  shortString,
  stopString,
} from "./schemas.ts";

const cacheControl = optional(z.strictObject({ type: z.literal("ephemeral"), ttl: z.enum(["5m", "1h"]).optional() }));
const citations = optional(z.strictObject({ enabled: z.boolean().optional() }));

const textBlock = z.strictObject({
  type: z.literal("text", "only blocks of type 'text' are supported here"),
  text: z.string(),
  cache_control: cacheControl,
  // Our own answers have them, and come back in the next request.
  citations: optional(z.array(z.unknown()).max(limits.contentParts)),
});
const textBlocks = z.array(textBlock).min(1).max(limits.contentParts);
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
const userBlock = z.discriminatedUnion(
  "type",
  [textBlock, documentBlock, searchResultBlock],
  "only blocks of type 'text', 'document' and 'search_result' are supported",
);
type UserBlock = z.output<typeof userBlock>;

const userMessage = z.strictObject({
  role: z.literal("user"),
  content: z.union([z.string(), z.array(userBlock).min(1).max(limits.contentParts)]),
});
const otherMessage = z.strictObject({
  role: z.enum(["assistant", "system"]),
  content: z.union([z.string(), textBlocks]),
});
const message = z.discriminatedUnion("role", [userMessage, otherMessage], "must be user, assistant or system");
type Message = z.output<typeof message>;

const promptFields = (filters: z.ZodType) => ({
  model: chatFields.model,
  messages: z.array(message).min(1).max(limits.messages),
  system: optional(z.union([z.string(), textBlocks])),
  cache_control: cacheControl,
  file_search: optional(fileSearchSchema(filters)),
  cache_salt: chatFields.cache_salt,
  spangate: chatFields.spangate,
  // Values that mean what this server does anyway.
  thinking: optional(z.strictObject({ type: z.literal("disabled", "thinking is not supported") })),
  tools: optional(z.array(z.unknown()).max(0, "tools are not supported")),
  tool_choice: optional(z.strictObject({ type: z.literal("none", "tools are not supported") })),
});
type PromptBody = z.output<z.ZodObject<ReturnType<typeof promptFields>>>;

export interface CountBody {
  readonly request: PromptRequest;
}

export interface MessagesBody {
  readonly request: ChatRequest;
  readonly stream: boolean;
  /** How long the caller hopes that what is written stays; undefined: it does not say. */
  readonly ttl: "5m" | "1h" | undefined;
  /** What the answer may cite. */
  readonly citable: readonly CitableSource[];
  /** Asked why KV was not found, against an earlier message if there was one. */
  readonly diagnostics: { readonly previous_message_id?: string | undefined } | undefined;
}

/** @param filters the corpus side's schema of `filters` */
export function countTokensSchema(filters: z.ZodType) {
  return z
    .strictObject(promptFields(filters))
    .superRefine(checkPrompt)
    .transform((body): CountBody => ({ request: promptOf(body) }));
}

/** @param filters the corpus side's schema of `filters` */
export function messagesSchema(filters: z.ZodType) {
  return z
    .strictObject({
      ...promptFields(filters),
      max_tokens: z.int().min(1),
      temperature: chatFields.temperature,
      top_p: chatFields.top_p,
      top_k: chatFields.top_k,
      stop_sequences: optional(z.array(stopString).max(limits.stopStrings)),
      stream: chatFields.stream,
      service_tier: optional(z.enum(["auto", "standard_only"])),
      metadata: optional(z.strictObject({ user_id: optional(shortString) })),
      diagnostics: optional(z.strictObject({ previous_message_id: optional(shortString) })),
    })
    .superRefine(checkPrompt)
    .transform(
      (body): MessagesBody => ({
        request: {
          ...promptOf(body),
          maxTokens: body.max_tokens,
          params: generateParams(body),
          choiceCount: 1,
          stops: body.stop_sequences ?? [],
          cacheKey: undefined,
          reuse: body.spangate?.reuse ?? true,
          diagnose: body.diagnostics !== undefined || body.spangate?.prompt_cache_diagnostics === true,
        },
        stream: body.stream ?? false,
        ttl: ttlOf(body),
        citable: citableOf(body.messages),
        diagnostics: body.diagnostics,
      }),
    );
}

/** Fields of Anthropic's client that are known and not supported, whatever their value. */
export const unsupportedMessagesFields: ReadonlySet<string> = new Set([
  ...["container", "context_management", "fallbacks", "inference_geo", "mcp_servers", "output_config"],
  ...["output_format", "speed", "user_profile_id", "workspace_id", "thinking", "tools", "tool_choice"],
]);

const maxCacheControls = 4;

function checkPrompt(body: PromptBody, context: z.RefinementCtx): void {
  const refuse = (path: PropertyKey[], text: string): void => {
    context.addIssue({ code: "custom", path, message: text, input: body });
  };
  const last = body.messages.length - 1;
  if (body.messages[last]?.role !== "user") {
    refuse(
      ["messages", last, "role"],
      "the last message must be the user's: an answer that has begun is not continued",
    );
  }
  if (documentsOf(body.messages).length > limits.documents) {
    refuse(["messages"], `have more than ${limits.documents} documents and search results`);
  }
  if (cacheControlsOf(body).length > maxCacheControls) {
    refuse(["cache_control"], `stands more than ${maxCacheControls} times in the request`);
  }
}

function promptOf(body: PromptBody): PromptRequest {
  const system = body.system === undefined ? [] : [{ role: "system", content: textOf(body.system) }];
  return {
    model: body.model,
    messages: joined([...system, ...body.messages.map(({ role, content }) => ({ role, content: textOf(content) }))]),
    documents: documentsOf(body.messages).map((fields, index) => ({ id: `document-${index}`, ...fields })),
    fileSearch: body.file_search,
    cacheSalt: body.cache_salt,
    attention: body.spangate?.attention ?? "span",
  };
}

/** Neighbours of one role are one turn; a part without text (its documents stand elsewhere) adds nothing to it. */
function joined(messages: readonly { role: string; content: string }[]): PromptRequest["messages"] {
  const turns: { role: string; content: string }[] = [];
  for (const { role, content } of messages) {
    const turn = turns.at(-1);
    if (turn?.role !== role) turns.push({ role, content });
    else turn.content = [turn.content, content].filter((text) => text !== "").join("\n\n");
  }
  return turns;
}

const textOf = (content: string | readonly UserBlock[]): string =>
  typeof content === "string"
    ? content
    : content.flatMap((block) => (block.type === "text" ? [block.text] : [])).join("\n");

const blocksOf = ({ content }: { readonly content: Message["content"] }): readonly UserBlock[] =>
  typeof content === "string" ? [] : content;

function documentsOf(messages: readonly Message[]) {
  return messages.flatMap(blocksOf).flatMap((block) => {
    if (block.type === "text") return [];
    const { title } = block;
    if (block.type === "search_result") return [{ title, text: `Source: ${block.source}\n${textOf(block.content)}` }];
    const text = block.source.type === "text" ? block.source.data : textOf(block.source.content);
    return [{ title, text: block.context === undefined ? text : `Context: ${block.context}\n${text}` }];
  });
}

/** Blocks whose citations are asked for, each with its place among all blocks of its kind. */
function citableOf(messages: readonly Message[]): readonly CitableSource[] {
  const blocks = messages.flatMap(blocksOf);
  const partsOf = (content: string | readonly UserBlock[]): readonly string[] =>
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

function cacheControlsOf(body: PromptBody): readonly { readonly ttl?: "5m" | "1h" | undefined }[] {
  const { system = "", messages, cache_control: whole } = body;
  const blocks = [...blocksOf({ content: system }), ...messages.flatMap(blocksOf)];
  return [whole, ...blocks.map((block) => block.cache_control)].filter((control) => control !== undefined);
}

function ttlOf(body: PromptBody): "5m" | "1h" | undefined {
  const controls = cacheControlsOf(body);
  if (controls.length === 0) return undefined;
  return controls.some(({ ttl }) => ttl === "1h") ? "1h" : "5m";
}
