/** The JSON of Anthropic's messages: whole answers, stream events, usage. */
import type { EndEvent } from "../generation.ts";
import type { ChatRun } from "../pipeline.ts";
import { type Choice, spangateOf } from "./chat-answer.ts";
import type { Completion } from "./completion.ts";
import { type CitableSource, messageCitations } from "./messages-citations.ts";
import { type ComparedPrompt, comparePrompt, messageDiagnostics } from "./prompt-diagnostics.ts";
import type { SseStream } from "./sse.ts";

export interface MessageParts {
  readonly requestId: string;
  readonly run: ChatRun;
  readonly choice: Choice;
  /** What the request asked of what is written; undefined: nothing. */
  readonly ttl: "5m" | "1h" | undefined;
  readonly question: string;
  /** What the answer may cite. */
  readonly citable: readonly CitableSource[];
  /** undefined: it is not asked for. */
  readonly comparing: ComparedPrompt | undefined;
}

export function wholeMessage(parts: MessageParts) {
  const { requestId, run, choice } = parts;
  return {
    ...messageOf(parts),
    diagnostics: diagnosticsOf(parts),
    content: [{ type: "text", text: choice.text, citations: parts.citable.length === 0 ? null : citationsOf(parts) }],
    ...stopOf(choice.end),
    usage: { ...finalUsage(parts), ...fixedUsage },
    spangate: spangateOf(requestId, run, endsOf(choice)),
  };
}

/** From message_start to message_stop. */
export async function writeMessage(
  stream: SseStream,
  events: Completion["events"],
  parts: MessageParts,
): Promise<void> {
  const { requestId, run, choice } = parts;
  const write = (type: string, fields: object = {}): Promise<void> =>
    stream.event({ event: type, data: JSON.stringify({ type, ...fields }) });
  await write("message_start", {
    message: { ...messageOf(parts), content: [], ...stopOf(undefined), usage: usageBeforeEnd(run) },
  });
  const citations = parts.citable.length === 0 ? null : [];
  await write("content_block_start", { index: 0, content_block: { type: "text", text: "", citations } });
  await write("ping");
  for await (const [, event] of events) {
    if (event.type !== "text" || event.text === "") continue;
    await write("content_block_delta", { index: 0, delta: { type: "text_delta", text: event.text } });
  }
  if (stream.closed) return;
  for (const citation of citationsOf(parts)) {
    await write("content_block_delta", { index: 0, delta: { type: "citations_delta", citation } });
  }
  await write("content_block_stop", { index: 0 });
  await write("message_delta", {
    delta: { ...stopOf(choice.end), container: null },
    usage: finalUsage(parts),
    diagnostics: diagnosticsOf(parts),
    spangate: spangateOf(requestId, run, endsOf(choice)),
  });
  await write("message_stop");
}

export const messageIdOf = (requestId: string): string => `msg_${requestId}`;

function messageOf({ requestId, run, comparing }: MessageParts) {
  const { model } = run;
  // A stream begins before it is known what will be found: pending, as their clients know it.
  const diagnostics = comparing?.earlierId === undefined ? null : { cache_miss_reason: null };
  const id = messageIdOf(requestId);
  return { id, type: "message", role: "assistant", model, container: null, diagnostics };
}

function diagnosticsOf({ comparing, run, choice }: MessageParts) {
  return comparing === undefined ? null : messageDiagnostics(comparePrompt(comparing, run, choice));
}

const citationsOf = ({ choice, question, citable }: MessageParts): readonly object[] =>
  citable.length === 0 ? [] : messageCitations(choice.text, question, citable);

function stopOf(end: EndEvent | undefined) {
  return { stop_reason: stopReasonOf(end), stop_sequence: end?.stoppedBy ?? null, stop_details: null };
}

function stopReasonOf(end: EndEvent | undefined): string | null {
  if (end === undefined) return null;
  if (end.reason === "length") return "max_tokens";
  return end.stoppedBy === undefined ? "end_turn" : "stop_sequence";
}

const endsOf = ({ end }: Choice): readonly EndEvent[] => (end === undefined ? [] : [end]);

const fixedUsage = { inference_geo: null, service_tier: "standard", speed: null };

/** What was found and what was written is known at the end only: null until then, and input_tokens is the whole prompt. */
function usageBeforeEnd(run: ChatRun) {
  const unknown = { cache_creation: null, cache_creation_input_tokens: null, cache_read_input_tokens: null };
  const none = { output_tokens_details: null, server_tool_use: null };
  return { input_tokens: run.promptTokens, ...unknown, output_tokens: 0, ...none, ...fixedUsage };
}

/** As there, the prompt is the sum of what was read from the cache, what was written to it, and input_tokens: the rest. */
function finalUsage({ run, choice, ttl }: MessageParts) {
  const { promptTokens = run.promptTokens, cachedTokens = 0, cacheWriteTokens = 0 } = choice.end?.report.usage ?? {};
  return {
    input_tokens: promptTokens - cachedTokens - cacheWriteTokens,
    cache_creation_input_tokens: cacheWriteTokens,
    cache_read_input_tokens: cachedTokens,
    cache_creation: {
      ephemeral_5m_input_tokens: ttl === "1h" ? 0 : cacheWriteTokens,
      ephemeral_1h_input_tokens: ttl === "1h" ? cacheWriteTokens : 0,
    },
    output_tokens: choice.end?.completionTokens ?? 0,
    output_tokens_details: null,
    server_tool_use: null,
  };
}
