/** The body of POST /v1/responses. Fields of the OpenAI client are honoured, refused by name, or left out and named. */
import { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { limits } from "../../config.ts";
import type { RequestFile } from "../../generate/plan-documents.ts";
import type { ChatRequest, PromptRequest } from "../../generate/requests.ts";
import { cacheUse, promptCacheFields, promptCacheOptions } from "../generation/prompt-cache.ts";
import { checkPromptFiles } from "../generation/prompt-file.ts";
import { requestFields } from "../generation/request-fields.ts";
import { responseTextFormat } from "../generation/response-format.ts";
import { generateFields, generateParams, samplingFields } from "../generation/sampling.ts";
import { effort, noWishes, type ThinkingWishes, thinkingFields } from "../generation/thinking.ts";
import { toolUseOf } from "../generation/tool-schemas.ts";
import { mostlyUnset, optional, shortString } from "../transport/fields.ts";
import { messagesOf } from "./calls.ts";
import { breakpointsOf, filesOf, type InputItem, type Item, item, itemsOf } from "./input-items.ts";
import { checkResponseTools, responseToolFields, responseTools } from "./tools.ts";

/** Optional parts of an answer that a request may ask for. */
const searchResults = "file_search_call.results";
const textLogprobs = "message.output_text.logprobs";
const includable = [searchResults, textLogprobs] as const;

const responseFields = {
  model: requestFields.model,
  input: z.union([z.string(), z.array(item).min(1).max(limits.messages)]),
  instructions: optional(z.string()),
  previous_response_id: optional(shortString),
  documents: requestFields.documents,
  max_output_tokens: optional(z.int().min(1)),
  ...samplingFields,
  store: optional(z.boolean()),
  stream: requestFields.stream,
  include: optional(
    z.array(z.enum(includable, `only ${includable.join(" and ")} are supported`)).max(includable.length),
  ),
  text: optional(z.strictObject({ format: optional(responseTextFormat) })),
  top_logprobs: generateFields.top_logprobs,
  metadata: requestFields.metadata,
  ...promptCacheFields,
  prompt_cache_options: optional(
    z.strictObject({ ...promptCacheOptions, comparison_response_id: optional(shortString) }),
  ),
  cache_salt: requestFields.cache_salt,
  spangate: requestFields.spangate,
  reasoning: optional(
    z.strictObject({
      effort: optional(effort),
      max_tokens: thinkingFields.thinking_budget,
      // What is thought is shown as it is, whatever summary is asked for.
      summary: optional(z.enum(["auto", "concise", "detailed"])),
      generate_summary: optional(z.enum(["auto", "concise", "detailed"])),
    }),
  ),
  // Values that mean what this server does anyway.
  background: optional(z.literal(false, "answers are not made in the background")),
  truncation: optional(z.literal("disabled", "prompts are never cut")),
  stream_options: optional(z.strictObject({ include_obfuscation: z.literal(false, "is not supported").optional() })),
  user: requestFields.user,
  safety_identifier: requestFields.safety_identifier,
};

/** Fields of the OpenAI client that are known and not supported, whatever their value. */
export const unsupportedResponseFields: ReadonlySet<string> = new Set([
  ...["access_programs", "context_management", "conversation", "image", "max_tool_calls", "moderation", "prompt"],
  ...["personality", "phase"],
]);

type ToolBody = Parameters<typeof checkResponseTools>[0];

function checkTools(body: ToolBody, context: z.RefinementCtx): void {
  checkResponseTools(body, (path, message) => {
    context.addIssue({ code: "custom", path: [...path], message, input: body });
  });
}

const parsedOf = <Body extends ToolBody & { readonly input: string | readonly InputItem[] }>(body: Body) => {
  return { body, ...responseTools(body), items: itemsOf(body.input) };
};

/** @param filters the corpus side's schema of a search's filters */
export function responsesSchema(filters: z.ZodType) {
  const body = z
    .strictObject({ ...responseFields, ...responseToolFields(filters) })
    .superRefine(checkTools)
    .superRefine((body, context) => {
      if (body.top_logprobs === undefined || showsLogprobs(body)) return;
      const message = `needs ${textLogprobs} in include`;
      context.addIssue({ code: "custom", path: ["top_logprobs"], message, input: body });
    });
  return mostlyUnset(body).transform(parsedOf);
}

type Including = { readonly include?: readonly string[] | undefined };
export const showsResults = ({ include = [] }: Including): boolean => include.includes(searchResults);
export const showsLogprobs = ({ include = [] }: Including): boolean => include.includes(textLogprobs);

/** The body of POST /v1/responses/input_tokens: what a prompt is made of. */
export function inputTokensSchema(filters: z.ZodType) {
  const { model, input, instructions, previous_response_id, documents, text, truncation } = responseFields;
  const { cache_salt, spangate, reasoning } = responseFields;
  const prompt = { model, input, instructions, previous_response_id, documents, reasoning, cache_salt, spangate };
  return z
    .strictObject({ ...prompt, text, truncation, ...responseToolFields(filters) })
    .superRefine(checkTools)
    .transform(parsedOf);
}

export type ResponsesBody = z.output<ReturnType<typeof responsesSchema>>;
/** The fields of the body that make up a prompt. */
export type ResponsePrompt = z.output<ReturnType<typeof inputTokensSchema>>;
/** Response that the prompt is to be compared with. */
export const comparedWith = (body: ResponsesBody["body"]): string | undefined =>
  body.prompt_cache_options?.comparison_response_id;

/** What the request wishes of thinking. */
export function wishesOf({ body: { reasoning }, items }: ResponsePrompt): ThinkingWishes {
  const { effort: wanted, max_tokens: tokens } = reasoning ?? {};
  return {
    ...noWishes,
    efforts: wanted === undefined ? [] : [{ field: "reasoning.effort", effort: wanted }],
    budgets: tokens === undefined ? [] : [{ field: "reasoning.max_tokens", tokens }],
    earlier: items.some(({ type }) => type === "reasoning") ? "input[].content" : undefined,
  };
}

/** @param items the conversation so far and the new input, in order */
export function promptOf(parsed: ResponsePrompt, items: readonly Item[]): PromptRequest {
  const { body, fileSearch, functions } = parsed;
  const system = body.instructions === undefined ? [] : [{ role: "system", content: body.instructions }];
  return {
    model: body.model,
    messages: [...system, ...messagesOf(items, parsed.items.length)],
    tools: toolUseOf(functions),
    documents: [...(body.documents ?? []), ...documentFiles(parsed, items)],
    fileSearch,
    cacheSalt: body.cache_salt,
    attention: body.spangate?.attention ?? "span",
  };
}

/** @throws ApiError invalid_value */
function documentFiles({ body, items: own }: ResponsePrompt, items: readonly Item[]): readonly RequestFile[] {
  const files = filesOf(items, own.length);
  checkPromptFiles(files, body.documents?.length ?? 0, (_path, text) => {
    throw new ApiError("invalid_value", { message: `'input': the conversation's messages ${text}.`, param: "input" });
  });
  return files;
}

/** @param items the conversation so far and the new input, in order */
export function requestOf(parsed: ResponsesBody, items: readonly Item[]): ChatRequest {
  const { body } = parsed;
  const { caches, retention } = cacheUse(body, breakpointsOf(body.input));
  return {
    ...promptOf(parsed, items),
    maxTokens: body.max_output_tokens,
    params: generateParams({ ...body, logprobs: showsLogprobs(body) }),
    format: body.text?.format?.format,
    choiceCount: 1,
    stops: body.stop ?? [],
    cacheKey: body.prompt_cache_key,
    reuse: caches && (body.spangate?.reuse ?? true),
    sparse: body.spangate?.sparse,
    retention,
    diagnose: comparedWith(body) !== undefined || body.spangate?.prompt_cache_diagnostics === true,
  };
}
