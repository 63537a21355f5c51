/** From a file's bytes to its text, or a reason for its owner why there is none. */
import type { CorpusFileErrorCode } from "../../db/schema.ts";
import { corpusLimits } from "./limits.ts";
import type { TextKind } from "./sentences.ts";

/** A fault of the file itself; its message is for the owner. */
export class FileError extends Error {
  readonly code: CorpusFileErrorCode;

  constructor(code: CorpusFileErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}

const kindByExtension: Readonly<Record<string, TextKind>> = {
  txt: "plain",
  text: "plain",
  log: "plain",
  md: "markdown",
  markdown: "markdown",
  mdx: "markdown",
};
const kindByMediaType: Readonly<Record<string, TextKind>> = {
  "text/plain": "plain",
  "text/markdown": "markdown",
  "text/x-markdown": "markdown",
};

/** By the name's extension, or for a name without one by the media type. @throws FileError unsupported_file */
export function textKindOf(filename: string, mediaType: string): TextKind {
  const extension = /\.([^./\\]{1,16})$/.exec(filename)?.[1]?.toLowerCase();
  const essence = mediaType.split(";")[0]?.trim().toLowerCase() ?? "";
  const kind = extension === undefined ? kindByMediaType[essence] : kindByExtension[extension];
  if (kind !== undefined) return kind;
  const what = extension === undefined ? `media type ${essence || "unknown"}` : `extension .${extension}`;
  throw new FileError(
    "unsupported_file",
    `Files of this type are not supported (${what}). Plain text (.txt) and Markdown (.md) in UTF-8 are.`,
  );
}

/** @throws FileError invalid_file */
export function decodeText(bytes: Uint8Array): string {
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new FileError("invalid_file", "The file is not valid UTF-8 text.");
  }
  if (text.includes("\0")) throw new FileError("invalid_file", "The file has NUL characters, so it is not text.");
  if (text.trim() === "") throw new FileError("invalid_file", "The file has no text.");
  if (text.length > corpusLimits.maxTextChars) {
    throw new FileError("invalid_file", `The file has more than ${corpusLimits.maxTextChars} characters of text.`);
  }
  return text;
}
