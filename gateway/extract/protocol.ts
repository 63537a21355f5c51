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

/** What a page is called: its number in its file, from 1; sheets and chapters have names too. */
export interface PageName {
  readonly number: number;
  readonly name?: string;
}

/** A page's text. A slide, a sheet and a chapter of a book are pages; a file of another kind is one text without a page. */
export interface PageText {
  readonly text: string;
  readonly page?: PageName;
}

/** Where a page begins in a file's text. It ends where the next one begins. */
export interface PageStart extends PageName {
  readonly at: number;
}

/** A document's text, and its pages in order; none where the format has no pages. */
export interface DocumentText {
  readonly text: string;
  readonly pages: readonly PageStart[];
}

export type ExtractAnswer = DocumentText | { readonly refused: string };

/**
 * The answer's first character; the reason follows, or the pages as one line of JSON and then the text, in UTF-8. The
 * answer is complete if the process exits with 0.
 */
export const answerSigns = { text: "T", refused: "R" } as const;

/** The document cannot be read. The message is for the document's owner and quotes nothing of the document. */
export class Refused extends Error {}

/** Longer names of pages are cut. */
export const maxPageNameChars = 100;

export const answered = ({ text, pages }: DocumentText): string =>
  `${answerSigns.text}${JSON.stringify(pages)}\n${text}`;

export function tooMuchText(maxTextChars: number): Refused {
  return new Refused(`The file has more than ${maxTextChars} characters of text.`);
}
