/** Server-sent events out of a byte stream (the WHATWG event stream format; `data`, `event` and `id`; lines end in
 * LF or CRLF, as every server of today ends them). */
export interface SseEvent {
  readonly event: string;
  readonly data: string;
  readonly id?: string;
}

/** Longest line and longest event taken, in characters: a server that never ends one must not fill our memory. */
const maxEventChars = 16 * 1024 * 1024;

export async function* readSse(body: ReadableStream<Uint8Array>): AsyncGenerator<SseEvent> {
  const decoder = new TextDecoder();
  let pending = "";
  let lines: string[] = [];
  for await (const chunk of body) {
    pending += decoder.decode(chunk, { stream: true });
    const parts = pending.split(/\r?\n/);
    pending = parts.pop() ?? "";
    if (pending.length > maxEventChars) throw new Error("the server sent an event without an end");
    for (const line of parts) {
      if (line !== "") {
        lines.push(line);
        continue;
      }
      const event = parseEvent(lines);
      lines = [];
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
