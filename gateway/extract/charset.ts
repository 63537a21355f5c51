/** Decodes a document's text by its byte order mark. */
import { Refused } from "./protocol.ts";

/** The character set that the byte order mark names; undefined: there is none. */
export function markedCharset([first, second, third]: Uint8Array): "utf-8" | "utf-16le" | "utf-16be" | undefined {
  if (first === 0xef && second === 0xbb && third === 0xbf) return "utf-8";
  if (first === 0xff && second === 0xfe) return "utf-16le";
  return first === 0xfe && second === 0xff ? "utf-16be" : undefined;
}

/** Decodes text by its byte order mark, else as UTF-8. The mark is no part of the text. @throws Refused */
export function decodeMarked(bytes: Uint8Array): string {
  const charset = markedCharset(bytes) ?? "utf-8";
  let text: string;
  try {
    text = new TextDecoder(charset, { fatal: true }).decode(bytes);
  } catch {
    throw new Refused(`The file is not valid ${charset.toUpperCase()} text.`);
  }
  if (text.includes("\0")) throw new Refused("The file has NUL characters, so it is not text.");
  return text;
}
