/**
 * The body of POST /v1/chat/completions. Every field of the OpenAI client is honoured, refused by name because it would
 * change the answer, or left out and named in `x-spangate-ignored`; those whose only possible effect is elsewhere (`user`,
 * `metadata`) are checked and have none here.
 */
import { z } from "zod";
import type { ChatRequest } from "../../generate/requests.ts";
import { cacheUse, promptCacheFields } from "../generation/prompt-cache.ts";
import { checkPromptFiles } from "../generation/prompt-file.ts";
import { fileSearchSchema, requestFields } from "../generation/request-fields.ts";
import { generateFields, generateParams } from "../generation/sampling.ts";
import { chatWishes, type ThinkingWishes, templateVariables, thinkingFields } from "../generation/thinking.ts";
import { cannotBeContinued, checkContinued, checkTools, toolUseOf } from "../generation/tool-schemas.ts";
import { mostlyUnset, optional } from "../transport/fields.ts";
import { chatMessages } from "./chat-messages.ts";
import { chatToolFields, chatToolsAsked } from "./chat-tools.ts";

/** @param filters the corpus side's schema of `filters` */
export function chatSchema(filters: z.ZodType) {
  const body = z.strictObject({ ...chatFields, file_search: optional(fileSearchSchema(filters)) });
  return mostlyUnset(body.superRefine(checkTogether)).transform(toRequest);
}

/** Fields of the body. */
export const chatFields = {
  model: requestFields.model,
  messages: chatMessages,
  documents: requestFields.documents,
  max_tokens: optional(z.int().min(1)),
  max_completion_tokens: optional(z.int().min(1)),
  ...generateFields,
  n: requestFields.n,
  stream: requestFields.stream,
  stream_options: requestFields.stream_options,
  ...promptCacheFields,
  cache_salt: requestFields.cache_salt,
  spangate: requestFields.spangate,
  // Values that mean what this server does anyway.
  modalities: optional(z.array(z.literal("text")).length(1)),
  ...chatToolFields,
  // The names of vLLM; with the second, the last message is an answer that has begun.
  chat_template_kwargs: optional(templateVariables),
  ...thinkingFields,
  continue_final_message: optional(z.boolean()),
  add_generation_prompt: optional(z.boolean()),
  // Facts for the caller's own bookkeeping.
  user: requestFields.user,
  safety_identifier: requestFields.safety_identifier,
  metadata: requestFields.metadata,
};

/** Fields of the OpenAI client and of vLLM that are known and not supported, whatever their value. */
export const unsupportedChatFields: ReadonlySet<string> = new Set([
  ...["audio", "function_call", "functions", "moderation"],
  ...["web_search_options"],
  // Where they are known they are part of the prompt.
  ...["tool_calls", "tool_call_id"],
  ...["best_of", "use_beam_search", "length_penalty", "echo"],
  ...["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "chat_template"],
  "skip_special_tokens",
  ...["include_stop_str_in_output", "prompt_logprobs", "allowed_token_ids", "bad_words", "logits_processors"],
]);

type Fields = { [Name in keyof typeof chatFields]: z.output<(typeof chatFields)[Name]> };
type Body = Fields & { file_search: ChatRequest["fileSearch"] };

export interface ChatBody {
  readonly request: ChatRequest;
  readonly stream: boolean;
  readonly includeUsage: boolean;
  readonly thinking: ThinkingWishes;
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
  checkPromptEnd(body, refuse);
  // Messages with a fault, which is told first, come as they were sent.
  const { files = [] } = body.messages as Partial<Body["messages"]>;
  checkPromptFiles(files, body.documents?.length ?? 0, (_path, text) => refuse(["messages"], text));
  if (body.continue_final_message === true) {
    checkContinued(tools, (path, text) => refuse([...path], text));
    if (body.response_format !== undefined) refuse(["response_format"], cannotBeContinued);
  }
  if (body.response_format === undefined && toolUseOf(tools) === undefined) return;
  // The answer ends where the format says, or where its calls do.
  const other = body.response_format === undefined ? "tools" : "this response_format";
  if (minTokens > 0) refuse(["min_tokens"], `cannot stand beside ${other}`);
  if (body.ignore_eos === true) refuse(["ignore_eos"], `cannot stand beside ${other}`);
}

type PromptEnd = Pick<Fields, "messages" | "continue_final_message" | "add_generation_prompt">;

/** A prompt ends with the start of an answer, or within the last message where that is an answer that has begun. */
export function checkPromptEnd(
  { messages, continue_final_message: continues = false, add_generation_prompt: opens = !continues }: PromptEnd,
  refuse: (path: PropertyKey[], text: string) => void,
): void {
  if (opens === continues) {
    const text = continues ? "must be false beside continue_final_message" : "needs continue_final_message: true";
    return refuse(["add_generation_prompt"], text);
  }
  if (!continues) return;
  // Messages with a fault, which is told first, come as they were sent.
  const last = "lowered" in messages ? messages.lowered.at(-1) : undefined;
  const isAnswer = last?.role === "assistant" && last.content !== "" && last.calls === undefined;
  if (isAnswer) return;
  refuse(["continue_final_message"], "needs a last message of the assistant with text and no tool_calls");
}

function toRequest(body: Body): ChatBody {
  const { lowered, files, breakpoints } = body.messages;
  const { caches, retention } = cacheUse(body, breakpoints);
  const request: ChatRequest = {
    model: body.model,
    messages: lowered,
    continuesLast: body.continue_final_message ?? false,
    tools: toolUseOf(chatToolsAsked(body)),
    documents: [...(body.documents ?? []), ...files],
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
    sparse: body.spangate?.sparse,
    diagnose: body.spangate?.prompt_cache_diagnostics ?? false,
  };
  const includeUsage = body.stream_options?.include_usage ?? false;
  const wishes = chatWishes(body, body.chat_template_kwargs ?? {});
  const earlier = lowered.some(({ thinking }) => thinking !== undefined) ? "messages[].reasoning_content" : undefined;
  return { request, stream: body.stream ?? false, includeUsage, thinking: { ...wishes, earlier } };
}
