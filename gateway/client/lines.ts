/** Longest line taken, in characters: a server that never ends one must not fill our memory. */
const maxLineChars = 64 * 1024 * 1024;

/** Lines of a byte stream in UTF-8, without their ends; blank ones, which keep a connection alive, are passed over. */
export async function* readLines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let pending = "";
  for await (const chunk of body) {
    const parts = decoder.decode(chunk, { stream: true }).split("\n");
    parts[0] = pending + (parts[0] ?? "");
    pending = parts.pop() ?? "";
    if (pending.length > maxLineChars) throw new Error("the server sent a line without an end");
    for (const line of parts) if (line.trim() !== "") yield line;
  }
  pending += decoder.decode();
  if (pending.trim() !== "") yield pending;
}
