/** The JSON of chat completions: whole answers and chunks. */
import type { TokenLogprob } from "../../../worker/contract/messages.ts";
import type { ArgumentsEvent, CallEvent } from "../../generate/events.ts";
import type { ChatRun } from "../../generate/pipeline.ts";
import { type Choice, endsOf, finishReasonOf } from "../generation/choice.ts";
import type { ChunkShape } from "../generation/completion.ts";
import { type AnswerHead, spangateOf, usageOf } from "../generation/report.ts";

export function wholeAnswer(
  head: AnswerHead,
  requestId: string,
  run: ChatRun,
  choices: readonly Choice[],
  {
    logprobsOf,
    citations,
  }: {
    readonly logprobsOf: ((logprobs: readonly TokenLogprob[]) => object) | undefined;
    readonly citations: readonly object[] | undefined;
  },
) {
  const ends = endsOf(choices);
  return {
    ...head,
    object: "chat.completion",
    choices: choices.map((choice, index) => ({
      index,
      message: messageOf(choice),
      logprobs: logprobsOf?.(choice.logprobs) ?? null,
      finish_reason: finishReasonOf(choice.end?.reason, choice.calls.length),
    })),
    usage: usageOf(ends),
    spangate: spangateOf(requestId, run, ends, citations),
  };
}

function messageOf({ thinking, text, calls }: Choice) {
  // The field of DeepSeek's API, which most clients read.
  const thought = thinking === "" ? {} : { reasoning_content: thinking };
  if (calls.length === 0) return { role: "assistant", content: text, refusal: null, ...thought };
  const toolCalls = calls.map(({ id, name, arguments: given }) => {
    return { id: chatCallId(id), type: "function", function: { name, arguments: given } };
  });
  return { role: "assistant", content: text === "" ? null : text, refusal: null, ...thought, tool_calls: toolCalls };
}

export const chatCallId = (id: string): string => `call_${id}`;

/**
 * Chunks of a streamed answer.
 * @param callsTools it may have calls
 */
export function chatChunks(
  head: AnswerHead,
  logprobsOf: ((logprobs: readonly TokenLogprob[]) => object) | undefined,
  { summary, endFields }: Pick<ChunkShape, "summary" | "endFields">,
  callsTools = false,
): ChunkShape {
  const delta = (index: number, fields: object, finishReason: string | null, logprobs: object | null = null) => {
    return { index, delta: fields, logprobs, finish_reason: finishReason };
  };
  return {
    shared: { ...head, object: "chat.completion.chunk" },
    // An answer of calls alone has no text, not even an empty one.
    begin: (index) => delta(index, { role: "assistant", content: callsTools ? null : "" }, null),
    text: (index, { text, logprobs }) => delta(index, { content: text }, null, logprobsOf?.(logprobs) ?? null),
    thinking: (index, event) => delta(index, { reasoning_content: event.text }, null),
    call: (index, event) => delta(index, { tool_calls: [callDelta(event)] }, null),
    end: (index, finishReason) => delta(index, {}, finishReason),
    ...(endFields === undefined ? {} : { endFields }),
    summary,
  };
}

function callDelta(event: CallEvent | ArgumentsEvent) {
  if (event.type === "arguments") return { index: event.call, function: { arguments: event.text } };
  const { call, id, name } = event;
  return { index: call, id: chatCallId(id), type: "function", function: { name, arguments: "" } };
}
