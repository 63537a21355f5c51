/** What the gateway and the process that reads a document say to each other: one document, one answer. */

export type DocumentKind = "html" | "pdf" | "docx";

/** The process's only argument, as JSON; the document's bytes come by stdin, the answer goes out by stdout. */
export interface ExtractJob {
  readonly kind: DocumentKind;
  /** Of the text, in UTF-16 units. */
  readonly maxTextChars: number;
  readonly maxPages: number;
  /** What a DOCX document may be when it is unpacked, all its parts together. */
  readonly maxUnpackedBytes: number;
  readonly maxParts: number;
}

export type ExtractAnswer = { readonly text: string } | { readonly refused: string };

/** The answer's first character; the text or the reason follows, in UTF-8. It is whole when the process ends with 0. */
export const answerSigns = { text: "T", refused: "R" } as const;

/** The document cannot be read; the message is for its owner, and quotes nothing of the document. */
export class Refused extends Error {}

export function tooMuchText(maxTextChars: number): Refused {
  return new Refused(`The file has more than ${maxTextChars} characters of text.`);
}
