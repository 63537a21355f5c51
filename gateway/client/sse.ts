import { lineBatches } from "./lines.ts";

/** Server-sent events out of a byte stream (the WHATWG event stream format; `data`, `event` and `id`; lines end in
 * LF or CRLF, as every server of today ends them). */
export interface SseEvent {
  readonly event: string;
  readonly data: string;
  readonly id?: string;
}

/** Longest event taken, in characters: a server that never ends one must not fill our memory. */
const maxEventChars = 16 * 1024 * 1024;

/** @throws Error for a longer event */
export async function* readSse(body: ReadableStream<Uint8Array>): AsyncGenerator<SseEvent> {
  let lines: string[] = [];
  let charCount = 0;
  for await (const batch of lineBatches(body, maxEventChars)) {
    for (const line of batch) {
      const text = line.endsWith("\r") ? line.slice(0, -1) : line;
      if (text !== "") {
        lines.push(text);
        charCount += text.length;
        if (charCount > maxEventChars) throw new Error("the server sent an event without an end");
        continue;
      }
      const event = parseEvent(lines);
      lines = [];
      charCount = 0;
      if (event !== undefined) yield event;
    }
  }
}

/** @returns undefined for a block without data, such as a comment that keeps the connection alive. */
function parseEvent(lines: readonly string[]): SseEvent | undefined {
  const data: string[] = [];
  let event = "message";
  let id: string | undefined;
  for (const line of lines) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "event") event = value;
    else if (field === "id") id = value;
  }
  if (data.length === 0) return undefined;
  return { event, data: data.join("\n"), ...(id === undefined ? {} : { id }) };
}
