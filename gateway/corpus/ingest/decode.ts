/** Reads the text of a file's bytes, or tells the file's owner why that is not possible. */
import type { CorpusFileErrorCode } from "../../../db/schema.ts";
import type { DocumentKind } from "../../extract/protocol.ts";
import { corpusLimits } from "../base/limits.ts";
import type { TextKind } from "./sentences.ts";

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

export type FileKind = TextKind | DocumentKind;

// A Map, because a plain object would also find inherited names such as "constructor".
const kindByExtension: ReadonlyMap<string, FileKind> = new Map([
  ["txt", "plain"],
  ["text", "plain"],
  ["log", "plain"],
  ["md", "markdown"],
  ["markdown", "markdown"],
  ["mdx", "markdown"],
  ["html", "html"],
  ["htm", "html"],
  ["xhtml", "html"],
  ["pdf", "pdf"],
  ["docx", "docx"],
]);
const kindByMediaType: ReadonlyMap<string, FileKind> = new Map([
  ["text/plain", "plain"],
  ["text/markdown", "markdown"],
  ["text/x-markdown", "markdown"],
  ["text/html", "html"],
  ["application/xhtml+xml", "html"],
  ["application/pdf", "pdf"],
  ["application/vnd.openxmlformats-officedocument.wordprocessingml.document", "docx"],
]);

/** The kind of a file by its first bytes. "old": a Word document from before DOCX, or one with a password. */
function signatureOf(bytes: Uint8Array): "pdf" | "docx" | "old" | "html" | undefined {
  const head = Buffer.from(bytes.subarray(0, 1_024)).toString("latin1");
  if (head.startsWith("PK\x03\x04")) return "docx";
  if (head.startsWith("\xd0\xcf\x11\xe0")) return "old";
  // Some programs write blank space before the signature.
  if (/^(?:\xef\xbb\xbf)?\s*%PDF-/.test(head)) return "pdf";
  return /^(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html)\b/i.test(head) ? "html" : undefined;
}

/**
 * The kind of a file. PDF and DOCX are recognized by their content, whatever the name. Text has no signature, so it is
 * recognized by the name's extension, or by the media type if the name has none.
 * @throws FileError unsupported_file, invalid_file
 */
export function fileKindOf(filename: string, mediaType: string, bytes: Uint8Array): FileKind {
  const signature = signatureOf(bytes);
  if (signature === "pdf" || signature === "docx") return signature;
  if (signature === "old") {
    throw new FileError("unsupported_file", "Old Word files (.doc) and those with a password are not supported.");
  }
  const extension = /\.([^./\\]{1,16})$/.exec(filename)?.[1]?.toLowerCase();
  const essence = mediaType.split(";")[0]?.trim().toLowerCase() ?? "";
  const named = extension === undefined ? kindByMediaType.get(essence) : kindByExtension.get(extension);
  if (named === "pdf" || named === "docx") {
    const what = named.toUpperCase();
    throw new FileError(
      "invalid_file",
      `The file is named ${extension ? `.${extension}` : essence}, but it is no ${what}.`,
    );
  }
  const kind = named ?? signature;
  if (kind !== undefined) return kind;
  const what = extension === undefined ? `media type ${essence || "unknown"}` : `extension .${extension}`;
  const supported = "Plain text (.txt) and Markdown (.md) in UTF-8, HTML, PDF and DOCX are.";
  throw new FileError("unsupported_file", `Files of this type are not supported (${what}). ${supported}`);
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
  return checkedText(text);
}

/** @throws FileError invalid_file */
export function checkedText(text: string): string {
  if (text.trim() === "") throw new FileError("invalid_file", "The file has no text.");
  if (text.length > corpusLimits.maxTextChars) {
    throw new FileError("invalid_file", `The file has more than ${corpusLimits.maxTextChars} characters of text.`);
  }
  return text;
}
