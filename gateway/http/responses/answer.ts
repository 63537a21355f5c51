/** The JSON of responses: the object as it is answered, stored and told in events, and its output items. */
import type { ResponseId } from "../../../db/ids.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { EndEvent } from "../../generate/events.ts";
import { type ChatRun, questionOf } from "../../generate/pipeline.ts";
import type { Choice } from "../generation/choice.ts";
import { type ChoiceCitations, fileCitations } from "../generation/citations.ts";
import { type comparePrompt, responseDiagnostics } from "../generation/prompt-diagnostics.ts";
import { type DescribeLogprobs, spangateOf } from "../generation/report.ts";
import { toolUseOf } from "../generation/tool-schemas.ts";
import { chatCallId } from "../openai/chat-answer.ts";
import { type Item, textOf } from "./input-items.ts";
import { type ResponsesBody, showsResults } from "./schema.ts";

export interface ResponseParts {
  readonly id: ResponseId;
  readonly requestId: string;
  readonly createdMs: number;
  readonly parsed: ResponsesBody;
  /** The conversation that is answered. */
  readonly items: readonly Item[];
  readonly run: ChatRun;
  readonly choice: Choice;
  readonly citations: ChoiceCitations;
  /** The answer becomes a line of a batch's file, which would keep the text of a found file that is deleted. */
  readonly isBatchLine: boolean;
  /** Describes the log-probabilities of the answer's tokens; gives none where they are not asked for. */
  readonly logprobsOf: DescribeLogprobs;
  /** Comparison with the earlier prompt that the request named; undefined: it named none, or the response is not whole yet. */
  readonly comparison?: ReturnType<typeof comparePrompt>;
}

/** The id of a response's item is the response's id with another prefix. */
export const messageId = ({ id }: Pick<ResponseParts, "id">): string => id.replace("resp_", "msg_");
export const searchId = ({ id }: Pick<ResponseParts, "id">): string => id.replace("resp_", "fs_");

export const reasoningId = ({ id }: Pick<ResponseParts, "id">): string => id.replace("resp_", "rs_");

export const callItemId = ({ id }: Pick<ResponseParts, "id">, index: number): string =>
  `${id.replace("resp_", "fc_")}_${index}`;

export const searches = ({ parsed }: ResponseParts): boolean => parsed.fileSearch !== undefined;

/** Tells whether functions may be called, so that an answer may have no message. */
export const callsFunctions = ({ parsed }: ResponseParts): boolean => toolUseOf(parsed.functions) !== undefined;

/** The text of the question that is answered. */
const questionIn = ({ items }: Pick<ResponseParts, "items">): string =>
  questionOf(
    items.flatMap((item) => (item.type === "message" ? [{ role: item.role, content: textOf(item.content) }] : [])),
  ) ?? "";

/** @param completedMs undefined while the answer is generated */
export function responseBody(parts: ResponseParts, completedMs: number | undefined) {
  const { id, requestId, createdMs, parsed, run, choice, citations, comparison } = parts;
  const { body } = parsed;
  const done = completedMs !== undefined;
  return {
    id,
    object: "response",
    created_at: Math.floor(createdMs / 1000),
    completed_at: done && statusOf(choice.end) === "completed" ? Math.floor(completedMs / 1000) : null,
    status: done ? statusOf(choice.end) : "in_progress",
    error: null,
    incomplete_details: done && statusOf(choice.end) === "incomplete" ? { reason: "max_output_tokens" } : null,
    model: run.model,
    output: done ? outputOf(parts) : [],
    instructions: body.instructions ?? null,
    previous_response_id: body.previous_response_id ?? null,
    metadata: body.metadata ?? {},
    temperature: run.sampling.temperature,
    top_p: run.sampling.topP,
    top_logprobs: body.top_logprobs ?? 0,
    max_output_tokens: body.max_output_tokens ?? null,
    tools: body.tools ?? [],
    tool_choice: body.tool_choice ?? "auto",
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    background: false,
    store: body.store ?? true,
    reasoning: { effort: body.reasoning?.effort ?? null, summary: null },
    text: { format: body.text?.format?.shown ?? { type: "text" } },
    truncation: "disabled",
    service_tier: "default",
    user: body.user ?? null,
    prompt_cache_key: body.prompt_cache_key ?? null,
    prompt_cache_retention: body.prompt_cache_retention ?? null,
    ...(body.prompt_cache_options === undefined ? {} : cacheOptionsShown(body.prompt_cache_options)),
    ...(comparison === undefined ? {} : { prompt_cache_diagnostics: responseDiagnostics(comparison) }),
    usage: done ? usageOf(parts) : null,
    ...(done && choice.end !== undefined
      ? { spangate: spangateOf(requestId, run, [choice.end], citations.bodies(parts)) }
      : {}),
  };
}

/** Fields of the request that the response repeats, with their defaults. */
function cacheOptionsShown(options: NonNullable<ResponsesBody["body"]["prompt_cache_options"]>) {
  const { mode = "implicit", ttl = "30m", comparison_response_id = null } = options;
  return { prompt_cache_options: { mode, ttl, comparison_response_id } };
}

/** The answer's items, in the order in which they began. */
function outputOf(parts: ResponseParts) {
  const { thinking, text, textAt, calls } = parts.choice;
  const made = calls.map((_, index) => callItem(parts, index, "completed"));
  const message = text === "" && calls.length > 0 ? [] : [messageItem(parts)];
  const search = searches(parts) ? [searchItem(parts, "completed")] : [];
  const thought = thinking === "" ? [] : [reasoningItem(parts, "completed")];
  return [...search, ...thought, ...made.slice(0, textAt), ...message, ...made.slice(textAt)];
}

export type ResponseBody = ReturnType<typeof responseBody>;

const statusOf = (end: EndEvent | undefined): "completed" | "incomplete" =>
  end?.reason === "length" ? "incomplete" : "completed";

export function searchItem(parts: ResponseParts, status: "in_progress" | "searching" | "completed") {
  const { parsed, run, isBatchLine } = parts;
  const shown = status === "completed" && showsResults(parsed.body);
  const results = run.retrieved.map(({ fileId, filename, attributes, score, text }) => {
    return { file_id: fileId, filename, attributes, score, ...(isBatchLine ? {} : { text }) };
  });
  // Only this much of the question is searched for.
  const query = questionIn(parts).slice(0, corpusLimits.maxQueryChars).toWellFormed();
  const queries = status === "completed" ? [query] : [];
  return { type: "file_search_call", id: searchId(parts), status, queries, results: shown ? results : null };
}

/** What the model thought before it answered. */
export function reasoningItem(parts: ResponseParts, status: "in_progress" | "completed") {
  const content = status === "completed" ? [thoughtPart(parts.choice.thinking)] : [];
  return { type: "reasoning" as const, id: reasoningId(parts), status, summary: [], content };
}

export const thoughtPart = (text: string) => ({ type: "reasoning_text" as const, text });

/** @param status "completed": as the answer ended */
export function callItem({ id, choice }: ResponseParts, index: number, status: "in_progress" | "completed") {
  const call = choice.calls[index];
  if (call === undefined) throw new Error(`there is no call ${index}`);
  const isCutOff = statusOf(choice.end) === "incomplete" && index === choice.calls.length - 1;
  const fields = { id: callItemId({ id }, index), call_id: chatCallId(call.id), name: call.name };
  const given = status === "completed" ? call.arguments : "";
  return {
    type: "function_call" as const,
    status: status === "completed" && isCutOff ? ("incomplete" as const) : status,
    arguments: given,
    ...fields,
  };
}

export function messageItem(parts: ResponseParts) {
  const status = statusOf(parts.choice.end);
  return { type: "message" as const, id: messageId(parts), status, role: "assistant", content: [textPart(parts)] };
}

export function textPart(parts: ResponseParts) {
  const { choice, run, citations, logprobsOf } = parts;
  const annotations = fileCitations(citations.found, run);
  return { type: "output_text" as const, text: choice.text, annotations, logprobs: logprobsOf(choice.logprobs) };
}

function usageOf({ run, choice }: ResponseParts) {
  const { promptTokens = run.promptTokens, cachedTokens = 0, cacheWriteTokens = 0 } = choice.end?.report.usage ?? {};
  const outputTokens = choice.end?.completionTokens ?? 0;
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens, cache_write_tokens: cacheWriteTokens },
    output_tokens: outputTokens,
    output_tokens_details: { reasoning_tokens: choice.end?.reasoningTokens ?? 0 },
    total_tokens: promptTokens + outputTokens,
  };
}
