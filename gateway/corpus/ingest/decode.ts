/** Decodes the text of a file's bytes, or tells the file's owner why that is not possible. */
import type { CorpusFileErrorCode } from "../../../db/schema.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { corpusLimits } from "../base/limits.ts";

/** A fault of the file itself. Its message is for the file's owner. */
export class FileError extends Error {
  readonly code: CorpusFileErrorCode;

  constructor(code: CorpusFileErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}

/** The document needs more time or memory than it may have. */
export class OverBounds extends FileError {
  constructor(message: string) {
    super("invalid_file", message);
  }
}

/** Bytes that are decoded in one turn of the event loop: two milliseconds' work where few are ASCII. */
const bytesPerTurn = 256 * 1024;

/** Decodes a text in slices, between which other work runs. @throws FileError invalid_file */
export async function decodeText(bytes: Uint8Array): Promise<string> {
  // A UTF-16 unit takes three bytes at most, so this is too much whatever it says.
  if (bytes.byteLength > corpusLimits.maxTextChars * 3) throw tooLong();
  const decoder = new TextDecoder("utf-8", { fatal: true });
  const parts: string[] = [];
  try {
    for (let at = 0; at < bytes.byteLength; at += bytesPerTurn) {
      if (at > 0) await yieldToOthers();
      parts.push(decoder.decode(bytes.subarray(at, at + bytesPerTurn), { stream: true }));
    }
    parts.push(decoder.decode());
  } catch {
    throw new FileError("invalid_file", "The file is not valid UTF-8 text.");
  }
  const text = parts.join("");
  if (text.includes("\0")) throw new FileError("invalid_file", "The file has NUL characters, so it is not text.");
  return checkedText(text);
}

/** @throws FileError invalid_file */
export function checkedText(text: string): string {
  if (!/\S/.test(text)) throw new FileError("invalid_file", "The file has no text.");
  if (text.length > corpusLimits.maxTextChars) throw tooLong();
  return text;
}

const tooLong = (): FileError =>
  new FileError("invalid_file", `The file has more than ${corpusLimits.maxTextChars} characters of text.`);
