/** Longest line taken, in characters: a server that never ends one must not fill our memory. */
const maxLineChars = 64 * 1024 * 1024;

/**
 * Lines of a byte stream in UTF-8, without their LF, as many at a time as a chunk completes; the last one also when it
 * has none. @throws Error for a longer one
 */
export async function* lineBatches(
  body: ReadableStream<Uint8Array>,
  maxChars = maxLineChars,
): AsyncGenerator<readonly string[]> {
  const decoder = new TextDecoder();
  let pending = "";
  for await (const chunk of body) {
    const parts = decoder.decode(chunk, { stream: true }).split("\n");
    parts[0] = pending + (parts[0] ?? "");
    pending = parts.pop() ?? "";
    if (pending.length > maxChars) throw new Error("the server sent a line without an end");
    yield parts;
  }
  pending += decoder.decode();
  if (pending !== "") yield [pending];
}

/** `lineBatches`, line by line. */
export async function* linesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  for await (const lines of lineBatches(body)) yield* lines;
}

/** Gives all lines but blank ones, which servers send to keep a connection alive. */
export async function* readLines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  for await (const line of linesOf(body)) if (line.trim() !== "") yield line;
}
