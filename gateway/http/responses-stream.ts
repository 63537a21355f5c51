/** A response as typed events, numbered from 0 without a gap. */
import type { ApiError } from "../errors.ts";
import type { Completion } from "./completion.ts";
import {
  messageId,
  messageItem,
  type ResponseBody,
  type ResponseParts,
  responseBody,
  searches,
  searchId,
  searchItem,
  textPart,
} from "./responses-answer.ts";
import type { SseFraming, SseStream } from "./sse.ts";

/** Numbers the events of one stream, the error that may end it included. */
export class ResponseEvents {
  #next = 0;

  readonly framing: SseFraming = {
    ping: ": ping\n\n",
    error: (error: ApiError) => {
      const { code, message, param = null } = error;
      return frame("error", { type: "error", sequence_number: this.#next++, code, message, param });
    },
  };

  write(stream: SseStream, type: string, fields: object): Promise<void> {
    const data = JSON.stringify({ type, sequence_number: this.#next++, ...fields });
    return stream.event({ event: type, data });
  }
}

const frame = (event: string, data: object): string => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;

/** @param finish called when all is generated, before the last event: makes, and keeps, the response as it is now */
export async function writeResponse(
  stream: SseStream,
  events: Completion["events"],
  parts: ResponseParts,
  { numbered, finish }: { readonly numbered: ResponseEvents; readonly finish: () => ResponseBody },
): Promise<void> {
  const write = (type: string, fields: object): Promise<void> => numbered.write(stream, `response.${type}`, fields);
  const begun = { response: responseBody(parts, undefined) };
  await write("created", begun);
  await write("in_progress", begun);
  if (searches(parts)) await writeSearch(write, parts);
  const place = { output_index: searches(parts) ? 1 : 0 };
  const item = { ...messageItem(parts), status: "in_progress", content: [] };
  await write("output_item.added", { ...place, item });
  const at = { item_id: messageId(parts), ...place, content_index: 0 };
  await write("content_part.added", { ...at, part: { type: "output_text", text: "", annotations: [], logprobs: [] } });
  for await (const [, event] of events) {
    if (event.type !== "text" || event.text === "") continue;
    await write("output_text.delta", { ...at, delta: event.text, logprobs: [] });
  }
  if (stream.closed) return;
  const part = textPart(parts);
  for (const [index, annotation] of part.annotations.entries()) {
    await write("output_text.annotation.added", { ...at, annotation_index: index, annotation });
  }
  await write("output_text.done", { ...at, text: part.text, logprobs: [] });
  await write("content_part.done", { ...at, part });
  await write("output_item.done", { ...place, item: messageItem(parts) });
  const response = finish();
  await write(response.status, { response });
}

async function writeSearch(
  write: (type: string, fields: object) => Promise<void>,
  parts: ResponseParts,
): Promise<void> {
  const at = { item_id: searchId(parts), output_index: 0 };
  await write("output_item.added", { output_index: 0, item: searchItem(parts, "in_progress") });
  for (const state of ["in_progress", "searching", "completed"]) await write(`file_search_call.${state}`, at);
  await write("output_item.done", { output_index: 0, item: searchItem(parts, "completed") });
}
