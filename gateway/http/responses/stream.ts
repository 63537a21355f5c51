/** A response as typed events, numbered from 0 without a gap. */
import type { TokenLogprob } from "../../../worker/contract/messages.ts";
import type { ApiError } from "../../base/errors.ts";
import type { ForEachEvent } from "../generation/completion.ts";
import type { SseFraming, SseStream } from "../transport/sse.ts";
import {
  callItem,
  callItemId,
  callsFunctions,
  messageId,
  messageItem,
  type ResponseBody,
  type ResponseParts,
  reasoningId,
  reasoningItem,
  responseBody,
  searches,
  searchId,
  searchItem,
  textPart,
  thoughtPart,
} from "./answer.ts";

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
  forEachEvent: ForEachEvent,
  parts: ResponseParts,
  { numbered, finish }: { readonly numbered: ResponseEvents; readonly finish: () => ResponseBody },
): Promise<void> {
  const write: WriteEvent = (type, fields) => numbered.write(stream, `response.${type}`, fields);
  const begun = { response: responseBody(parts, undefined) };
  await write("created", begun);
  await write("in_progress", begun);
  if (searches(parts)) await writeSearch(write, parts);
  const items = new ItemWriter(write, parts);
  if (!callsFunctions(parts) && !parts.run.thinks) await items.openMessage();
  await forEachEvent(async (event) => {
    if (event.type === "thinking") return await items.thinking(event.text);
    if (event.type === "text") await items.text(event.text, event.logprobs);
    else if (event.type === "call") await items.openCall(event.call);
    else if (event.type === "arguments") await items.arguments(event.text);
  });
  if (stream.closed) return;
  await parts.citations.find();
  await items.end();
  const response = finish();
  await write(response.status, { response });
}

type WriteEvent = (type: string, fields: object) => Promise<void>;

/** Items of an answer. The message stays open to the end: its citations are known then. */
class ItemWriter {
  readonly #write: WriteEvent;
  readonly #parts: ResponseParts;
  #nextIndex: number;
  #messageIndex: number | undefined;
  readonly #untold: TokenLogprob[] = [];
  #reasoningIndex: number | undefined;
  #thinks = false;
  #call: { readonly index: number; readonly output_index: number } | undefined;

  constructor(write: WriteEvent, parts: ResponseParts) {
    this.#write = write;
    this.#parts = parts;
    this.#nextIndex = searches(parts) ? 1 : 0;
  }

  async thinking(delta: string): Promise<void> {
    if (!this.#thinks) {
      this.#thinks = true;
      this.#reasoningIndex = this.#nextIndex++;
      const item = reasoningItem(this.#parts, "in_progress");
      await this.#write("output_item.added", { output_index: this.#reasoningIndex, item });
      await this.#write("content_part.added", { ...this.#thoughtPlace(), part: thoughtPart("") });
    }
    await this.#write("reasoning_text.delta", { ...this.#thoughtPlace(), delta });
  }

  /** The thinking ends where anything else begins. */
  async #closeThinking(): Promise<void> {
    if (!this.#thinks) return;
    this.#thinks = false;
    const text = this.#parts.choice.thinking;
    await this.#write("reasoning_text.done", { ...this.#thoughtPlace(), text });
    await this.#write("content_part.done", { ...this.#thoughtPlace(), part: thoughtPart(text) });
    const item = reasoningItem(this.#parts, "completed");
    await this.#write("output_item.done", { output_index: this.#reasoningIndex, item });
  }

  async openMessage(): Promise<void> {
    await this.#closeThinking();
    this.#messageIndex = this.#nextIndex++;
    const item = { ...messageItem(this.#parts), status: "in_progress", content: [] };
    await this.#write("output_item.added", { output_index: this.#messageIndex, item });
    const part = { type: "output_text", text: "", annotations: [], logprobs: [] };
    await this.#write("content_part.added", { ...this.#place(), part });
  }

  async text(delta: string, logprobs: readonly TokenLogprob[]): Promise<void> {
    this.#untold.push(...logprobs);
    // A token may end within a character: its log-probability is sent with the text that completes the character.
    if (delta === "") return;
    if (this.#messageIndex === undefined) await this.openMessage();
    const told = this.#parts.logprobsOf(this.#untold.splice(0));
    await this.#write("output_text.delta", { ...this.#place(), delta, logprobs: told });
  }

  async openCall(index: number): Promise<void> {
    await this.#closeThinking();
    await this.#closeCall();
    this.#call = { index, output_index: this.#nextIndex++ };
    const item = callItem(this.#parts, index, "in_progress");
    await this.#write("output_item.added", { output_index: this.#call.output_index, item });
  }

  async arguments(delta: string): Promise<void> {
    if (this.#call === undefined) throw new Error("arguments of a call that has not begun");
    await this.#write("function_call_arguments.delta", { ...this.#callPlace(this.#call), delta });
  }

  /** An answer has one item at least. */
  async end(): Promise<void> {
    await this.#closeThinking();
    await this.#closeCall();
    if (this.#messageIndex === undefined && this.#parts.choice.calls.length > 0) return;
    if (this.#messageIndex === undefined) await this.openMessage();
    const part = textPart(this.#parts);
    for (const [index, annotation] of part.annotations.entries()) {
      await this.#write("output_text.annotation.added", { ...this.#place(), annotation_index: index, annotation });
    }
    await this.#write("output_text.done", { ...this.#place(), text: part.text, logprobs: part.logprobs });
    await this.#write("content_part.done", { ...this.#place(), part });
    await this.#write("output_item.done", { output_index: this.#messageIndex, item: messageItem(this.#parts) });
  }

  async #closeCall(): Promise<void> {
    const call = this.#call;
    if (call === undefined) return;
    this.#call = undefined;
    const item = callItem(this.#parts, call.index, "completed");
    const { name, arguments: given } = item;
    await this.#write("function_call_arguments.done", { ...this.#callPlace(call), name, arguments: given });
    await this.#write("output_item.done", { output_index: call.output_index, item });
  }

  #place() {
    return { item_id: messageId(this.#parts), output_index: this.#messageIndex, content_index: 0 };
  }

  #thoughtPlace() {
    return { item_id: reasoningId(this.#parts), output_index: this.#reasoningIndex, content_index: 0 };
  }

  #callPlace({ index, output_index }: { readonly index: number; readonly output_index: number }) {
    return { item_id: callItemId(this.#parts, index), output_index };
  }
}

async function writeSearch(write: WriteEvent, parts: ResponseParts): Promise<void> {
  const at = { item_id: searchId(parts), output_index: 0 };
  await write("output_item.added", { output_index: 0, item: searchItem(parts, "in_progress") });
  for (const state of ["in_progress", "searching", "completed"]) await write(`file_search_call.${state}`, at);
  await write("output_item.done", { output_index: 0, item: searchItem(parts, "completed") });
}
