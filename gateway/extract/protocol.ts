/** What the gateway and a process that reads a document exchange: one document, one answer. */

export type DocumentKind = "html" | "pdf" | "office" | "csv" | "tsv";

/**
 * The job is the process's only argument, as JSON. The document's bytes come by stdin; the answer is written to stdout.
 */
export interface ExtractJob {
  readonly kind: DocumentKind;
  /** The most UTF-16 units of the text. */
  readonly maxTextChars: number;
  readonly maxPages: number;
  /** The most bytes and parts of an unpacked archive. */
  readonly maxUnpackedBytes: number;
  readonly maxParts: number;
}

export type ExtractAnswer = { readonly text: string } | { readonly refused: string };

/**
 * The answer's first character; the text or the reason follows, in UTF-8. The answer is complete if the process exits
 * with 0.
 */
export const answerSigns = { text: "T", refused: "R" } as const;

/** The document cannot be read. The message is for the document's owner and quotes nothing of the document. */
export class Refused extends Error {}

export function tooMuchText(maxTextChars: number): Refused {
  return new Refused(`The file has more than ${maxTextChars} characters of text.`);
}
