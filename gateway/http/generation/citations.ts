/** Tells which of the retrieved files an answer rests on: the files whose fragments hold the words that the answer adds to the question. */
import type { RetrievedFragment } from "../../corpus/search/retrieve.ts";

export interface FileCitation {
  readonly type: "file_citation";
  readonly file_id: string;
  readonly filename: string;
  /** Place of the file among the retrieved files, the best first. */
  readonly index: number;
}

export type CitedFragment = Pick<RetrievedFragment, "fileId" | "filename" | "text">;

/**
 * A model does not name its sources, so words tell them: a file is cited when one of its fragments holds at least half
 * as many of the answer's own words as the fragment that holds most. When no fragment holds any, nothing is cited.
 */
export function fileCitations(answer: string, question: string, fragments: readonly CitedFragment[]): FileCitation[] {
  const heldIn = heldWords(answer, question);
  const files = new Map<string, { filename: string; held: number }>();
  for (const { fileId, filename, text } of fragments) {
    files.set(fileId, { filename, held: Math.max(heldIn(text), files.get(fileId)?.held ?? 0) });
  }
  const most = Math.max(0, ...[...files.values()].map(({ held }) => held));
  if (most === 0) return [];
  return [...files].flatMap(([fileId, { filename, held }], index): FileCitation[] =>
    held * 2 >= most ? [{ type: "file_citation", file_id: fileId, filename, index }] : [],
  );
}

/** Counts how many of the words that the answer adds to the question a text holds. */
export function heldWords(answer: string, question: string): (text: string) => number {
  const asked = wordsOf(question);
  const own = [...wordsOf(answer)].filter((word) => !asked.has(word));
  return (text) => {
    const words = wordsOf(text);
    return own.filter((word) => words.has(word)).length;
  };
}

const leastChars = 4;

/** Numbers, and words that are long enough to mean something, in lower case. */
function wordsOf(text: string): ReadonlySet<string> {
  const words = text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return new Set(words.filter((word) => word.length >= leastChars || /\p{N}/u.test(word)));
}
