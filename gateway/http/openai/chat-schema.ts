/**
 * The body of POST /v1/chat/completions. Every field of the OpenAI client is either honoured or refused by name;
 * those whose only possible effect is elsewhere (`user`, `metadata`) are checked and have none here.
 */
import { z } from "zod";
import { limits as contractLimits } from "../../../worker/contract/limits.ts";
import { limits } from "../../config.ts";
import type { ChatRequest } from "../../generate/requests.ts";
import { cacheUse, promptCacheFields } from "../generation/prompt-cache.ts";
import { rankingOptions } from "../generation/ranking.ts";
import { generateFields, generateParams } from "../generation/sampling.ts";
import { checkTools, toolUseOf } from "../generation/tool-schemas.ts";
import { optional, shortString } from "../transport/fields.ts";
import { chatMessages } from "./chat-messages.ts";
import { chatToolFields, chatToolsAsked } from "./chat-tools.ts";

export { optional, shortString } from "../transport/fields.ts";

/** One line: it stands in a line of its own in the prompt. */
export const documentTitle = z
  .string()
  .max(limits.titleChars)
  .transform((title) => title.replace(/\s+/g, " ").trim());

const document = z.strictObject({
  id: z.string().min(1).max(limits.documentIdChars).optional(),
  title: optional(documentTitle),
  text: z.string().min(1),
});

/** Reports tell of documents by id, so no two have the same; one without is known by its place. */
const documents = z
  .array(document)
  .max(limits.documents)
  .transform((entries) => entries.map(({ id, title, text }, index) => ({ id: id ?? `document-${index}`, title, text })))
  .superRefine((entries, context) => {
    const ids = entries.map(({ id }) => id);
    const twice = ids.findIndex((id, index) => ids.indexOf(id) !== index);
    if (twice < 0) return;
    context.addIssue({ code: "custom", path: [twice, "id"], message: "another document has this id", input: entries });
  });

/** @param filters the corpus side's schema of `filters` */
export function chatSchema(filters: z.ZodType) {
  return z
    .strictObject({ ...chatFields, file_search: optional(fileSearchSchema(filters)) })
    .superRefine(checkTogether)
    .transform(toRequest);
}

/** @param filters the corpus side's schema of `filters` */
export const fileSearchFields = (filters: z.ZodType) => ({
  vector_store_ids: z.array(z.string().min(1).max(limits.shortStringChars)).min(1).max(limits.vectorStoresPerSearch),
  max_num_results: z.int().min(1).max(limits.retrievedFragments).default(10),
  filters: filters.optional(),
  ranking_options: rankingOptions.optional(),
});

export const fileSearchSchema = (filters: z.ZodType) =>
  z.strictObject(fileSearchFields(filters)).transform(fileSearchOf);

export function fileSearchOf(
  body: z.output<z.ZodObject<ReturnType<typeof fileSearchFields>>>,
): NonNullable<ChatRequest["fileSearch"]> {
  return {
    vectorStoreIds: body.vector_store_ids,
    maxResults: body.max_num_results,
    filters: body.filters,
    scoreThreshold: body.ranking_options?.score_threshold,
    weights: body.ranking_options?.hybrid_search,
  };
}

export const noReasoning = "is not supported: the answer is all that is generated";
export const noVerbosity = "is not supported: say in the prompt how long the answer is to be";

/** Fields of the body; other APIs take those that they share. */
export const chatFields = {
  model: z.string().min(1).max(limits.shortStringChars),
  messages: chatMessages,
  documents: optional(documents),
  max_tokens: optional(z.int().min(1)),
  max_completion_tokens: optional(z.int().min(1)),
  ...generateFields,
  n: optional(z.int().min(1).max(contractLimits.maxChoices)),
  stream: optional(z.boolean()),
  stream_options: optional(
    z.strictObject({ include_usage: z.boolean().optional(), include_obfuscation: z.literal(false).optional() }),
  ),
  ...promptCacheFields,
  cache_salt: optional(z.string().min(1).max(limits.shortStringChars)),
  spangate: optional(
    z.strictObject({
      reuse: z.boolean().optional(),
      attention: z.enum(["span", "full"]).optional(),
      prompt_cache_diagnostics: z.boolean().optional(),
    }),
  ),
  // Values that mean what this server does anyway.
  modalities: optional(z.array(z.literal("text")).length(1)),
  store: optional(z.literal(false, { error: "completions are never stored; leave it out or send false" })),
  service_tier: optional(z.enum(["auto", "default"])),
  reasoning_effort: optional(z.literal("none", noReasoning)),
  verbosity: optional(z.literal("medium", noVerbosity)),
  ...chatToolFields,
  // Facts for the caller's own bookkeeping.
  user: optional(shortString),
  safety_identifier: optional(shortString),
  metadata: optional(
    z
      .record(z.string().max(64), shortString)
      .refine((entries) => Object.keys(entries).length <= limits.metadataEntries, "too many entries"),
  ),
};

/** Fields of the OpenAI client and of vLLM that are known and not supported, whatever their value. */
export const unsupportedChatFields: ReadonlySet<string> = new Set([
  ...["audio", "function_call", "functions", "moderation", "prediction"],
  ...["web_search_options"],
  ...["name", "best_of", "use_beam_search", "length_penalty", "echo"],
  ...["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "chat_template"],
  ...["chat_template_kwargs", "add_generation_prompt", "continue_final_message", "skip_special_tokens"],
  ...[
    "include_stop_str_in_output",
    "prompt_logprobs",
    "priority",
    "allowed_token_ids",
    "bad_words",
    "logits_processors",
  ],
]);

type Fields = { [Name in keyof typeof chatFields]: z.output<(typeof chatFields)[Name]> };
type Body = Fields & { file_search: ChatRequest["fileSearch"] };

export interface ChatBody {
  readonly request: ChatRequest;
  readonly stream: boolean;
  readonly includeUsage: boolean;
}

function checkTogether(body: Body, context: z.RefinementCtx): void {
  const refuse = (path: PropertyKey[], text: string): void => {
    context.addIssue({ code: "custom", path, message: text, input: body });
  };
  if (body.max_tokens !== undefined && body.max_completion_tokens !== undefined) {
    if (body.max_tokens !== body.max_completion_tokens) refuse(["max_tokens"], "differs from max_completion_tokens");
  }
  if (body.top_logprobs !== undefined && body.logprobs !== true) refuse(["top_logprobs"], "needs logprobs: true");
  if (body.stream_options !== undefined && body.stream !== true) refuse(["stream_options"], "needs stream: true");
  const minTokens = body.min_tokens ?? 0;
  const maxTokens = body.max_completion_tokens ?? body.max_tokens ?? Number.POSITIVE_INFINITY;
  if (minTokens > maxTokens) refuse(["min_tokens"], "is more than max_tokens");
  const tools = chatToolsAsked(body);
  checkTools(tools, (path, text) => refuse([...path], text));
  if (body.response_format === undefined && toolUseOf(tools) === undefined) return;
  // The answer ends where the format says, or where its calls do.
  const other = body.response_format === undefined ? "tools" : "this response_format";
  if (minTokens > 0) refuse(["min_tokens"], `cannot stand beside ${other}`);
  if (body.ignore_eos === true) refuse(["ignore_eos"], `cannot stand beside ${other}`);
}

function toRequest(body: Body): ChatBody {
  const { lowered, breakpoints } = body.messages;
  const { caches, retention } = cacheUse(body, breakpoints);
  const request: ChatRequest = {
    model: body.model,
    messages: lowered,
    tools: toolUseOf(chatToolsAsked(body)),
    documents: body.documents ?? [],
    fileSearch: body.file_search,
    maxTokens: body.max_completion_tokens ?? body.max_tokens,
    params: generateParams(body),
    format: body.response_format,
    choiceCount: body.n ?? 1,
    stops: body.stop ?? [],
    cacheSalt: body.cache_salt,
    cacheKey: body.prompt_cache_key,
    reuse: caches && (body.spangate?.reuse ?? true),
    retention,
    attention: body.spangate?.attention ?? "span",
    diagnose: body.spangate?.prompt_cache_diagnostics ?? false,
  };
  return { request, stream: body.stream ?? false, includeUsage: body.stream_options?.include_usage ?? false };
}
