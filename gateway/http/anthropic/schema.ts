/** The bodies of POST /v1/messages and /v1/messages/count_tokens. */
import { z } from "zod";
import { limits } from "../../config.ts";
import type { ChatRequest, PromptRequest } from "../../generate/requests.ts";
import { checkPromptFiles } from "../generation/prompt-file.ts";
import { fileSearchSchema, requestFields } from "../generation/request-fields.ts";
import { messageFormat } from "../generation/response-format.ts";
import { generateParams, samplingFields, stopString } from "../generation/sampling.ts";
import { effort, noWishes, switchesOf, type ThinkingWishes, thinkingSwitch } from "../generation/thinking.ts";
import { cannotBeContinued, checkContinued, checkTools, toolUseOf } from "../generation/tool-schemas.ts";
import { optional, shortString } from "../transport/fields.ts";
import type { CitableBlocks } from "./citations.ts";
import {
  allBlocks,
  blocksOf,
  cacheControl,
  checkToolUses,
  citableOf,
  documentsOf,
  message,
  messageToolFields,
  messageToolsAsked,
  textBlocks,
  textOf,
  turnsOf,
} from "./conversation.ts";

const promptFields = (filters: z.ZodType) => ({
  model: requestFields.model,
  messages: z.array(message).min(1).max(limits.messages),
  system: optional(z.union([z.string(), textBlocks])),
  cache_control: cacheControl,
  file_search: optional(fileSearchSchema(filters)),
  cache_salt: requestFields.cache_salt,
  spangate: requestFields.spangate,
  output_config: optional(z.strictObject({ format: optional(messageFormat), effort: optional(effort) })),
  thinking: optional(thinkingSwitch),
  ...messageToolFields(cacheControl),
});
type PromptBody = z.output<z.ZodObject<ReturnType<typeof promptFields>>>;

export interface CountBody {
  readonly request: PromptRequest;
  readonly thinking: ThinkingWishes;
}

export interface MessagesBody {
  readonly request: ChatRequest;
  readonly thinking: ThinkingWishes;
  readonly stream: boolean;
  /** How long the caller asks that its cached prompt stays; undefined: it does not ask. */
  readonly ttl: "5m" | "1h" | undefined;
  /** What the answer may cite. */
  readonly citable: CitableBlocks;
  /** Present when the caller asks why KV was not found; it may name an earlier message to compare with. */
  readonly diagnostics: { readonly previous_message_id?: string | undefined } | undefined;
}

/** @param filters the corpus side's schema of `filters` */
export function countTokensSchema(filters: z.ZodType) {
  return z
    .strictObject(promptFields(filters))
    .superRefine(checkPrompt)
    .transform((body): CountBody => ({ request: promptOf(body), thinking: wishesOf(body) }));
}

/** @param filters the corpus side's schema of `filters` */
export function messagesSchema(filters: z.ZodType) {
  return z
    .strictObject({
      ...promptFields(filters),
      max_tokens: z.int().min(1),
      temperature: samplingFields.temperature,
      top_p: samplingFields.top_p,
      top_k: samplingFields.top_k,
      stop_sequences: optional(z.array(stopString).max(limits.stopStrings)),
      stream: requestFields.stream,
      metadata: optional(z.strictObject({ user_id: optional(shortString) })),
      diagnostics: optional(z.strictObject({ previous_message_id: optional(shortString) })),
    })
    .superRefine(checkPrompt)
    .superRefine(({ thinking, max_tokens: maxTokens }, context) => {
      if (thinking?.budget_tokens === undefined || thinking.budget_tokens < maxTokens) return;
      const message = "must be less than max_tokens";
      context.addIssue({ code: "custom", path: ["thinking", "budget_tokens"], message, input: thinking });
    })
    .transform(
      (body): MessagesBody => ({
        request: {
          ...promptOf(body),
          maxTokens: body.max_tokens,
          params: generateParams(body),
          format: body.output_config?.format,
          choiceCount: 1,
          stops: body.stop_sequences ?? [],
          cacheKey: undefined,
          reuse: body.spangate?.reuse ?? true,
          sparse: body.spangate?.sparse,
          retention: ttlOf(body),
          diagnose: body.diagnostics !== undefined || body.spangate?.prompt_cache_diagnostics === true,
        },
        thinking: wishesOf(body),
        stream: body.stream ?? false,
        ttl: ttlOf(body),
        citable: citableOf(body.messages),
        diagnostics: body.diagnostics,
      }),
    );
}

/** Fields of Anthropic's client that are known and not supported, whatever their value. */
export const unsupportedMessagesFields: ReadonlySet<string> = new Set([
  ...["container", "context_management", "fallbacks", "inference_geo", "mcp_servers"],
  ...["output_format", "speed", "task_budget", "user_profile_id", "workspace_id", "thread"],
]);

const maxCacheControls = 4;

function checkPrompt(body: PromptBody, context: z.RefinementCtx): void {
  const refuse = (path: PropertyKey[], text: string): void => {
    context.addIssue({ code: "custom", path, message: text, input: body });
  };
  const last = body.messages.length - 1;
  const lastRole = body.messages[last]?.role;
  if (lastRole === "system")
    refuse(["messages", last, "role"], "the last message must be the user's or the assistant's");
  checkToolUses(body.messages, (path, text) => refuse([...path], text));
  const tools = messageToolsAsked(body);
  checkTools(tools, (path, text) => refuse([...path], text));
  if (lastRole === "assistant") {
    checkContinued(tools, (path, text) => refuse([...path], text));
    if (body.output_config?.format !== undefined) refuse(["output_config", "format"], cannotBeContinued);
  }
  const documents = documentsOf(body.messages);
  if (documents.length > limits.documents) {
    refuse(["messages"], `have more than ${limits.documents} documents and search results`);
  }
  const files = documents.filter((document) => "file" in document);
  checkPromptFiles(files, 0, (_path, text) => refuse(["messages"], text));
  if (cacheControlsOf(body).length > maxCacheControls) {
    refuse(["cache_control"], `stands more than ${maxCacheControls} times in the request`);
  }
}

function promptOf(body: PromptBody): PromptRequest {
  // An answer that has begun may have no text yet.
  const lastTurn = body.messages.at(-1);
  const isEmpty = lastTurn?.role === "assistant" && textOf(lastTurn.content) === "";
  const messages = isEmpty ? body.messages.slice(0, -1) : body.messages;
  const system = body.system === undefined ? [] : [{ role: "system", content: textOf(body.system) }];
  return {
    model: body.model,
    messages: turnsOf(messages, system),
    continuesLast: messages.at(-1)?.role === "assistant",
    tools: toolUseOf(messageToolsAsked(body)),
    documents: documentsOf(body.messages),
    fileSearch: body.file_search,
    cacheSalt: body.cache_salt,
    attention: body.spangate?.attention ?? "span",
  };
}

function wishesOf({ thinking, output_config: output, messages }: PromptBody): ThinkingWishes {
  const { effort: wanted } = output ?? {};
  const tokens = thinking?.type === "enabled" ? thinking.budget_tokens : undefined;
  const hasEarlier = messages.some((each) => blocksOf(each).some(({ type }) => type === "thinking"));
  return {
    ...noWishes,
    switches: switchesOf("thinking", thinking),
    efforts: wanted === undefined ? [] : [{ field: "output_config.effort", effort: wanted }],
    budgets: tokens === undefined ? [] : [{ field: "thinking.budget_tokens", tokens }],
    earlier: hasEarlier ? "messages[].content[].thinking" : undefined,
  };
}

function cacheControlsOf(body: PromptBody): readonly { readonly ttl?: "5m" | "1h" | undefined }[] {
  const { system = "", messages, tools = [], cache_control: whole } = body;
  const blocks = [...(typeof system === "string" ? [] : system), ...messages.flatMap(allBlocks), ...tools];
  return [whole, ...blocks.map((block) => ("cache_control" in block ? block.cache_control : undefined))].filter(
    (control) => control !== undefined,
  );
}

function ttlOf(body: PromptBody): "5m" | "1h" | undefined {
  const controls = cacheControlsOf(body);
  if (controls.length === 0) return undefined;
  return controls.some(({ ttl }) => ttl === "1h") ? "1h" : "5m";
}
