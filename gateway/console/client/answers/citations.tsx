/** What an answer rests on: file, page and quote. */
import { Name } from "../kit/name.tsx";
import type { Citation } from "./chat.ts";
import type { Mark } from "./markdown-tree.ts";

/** Marks at the ends of the sentences that have a source. */
export const marksOf = (citations: readonly Citation[]): readonly Mark[] =>
  citations.map(({ answer_range: [, end] }, index) => ({ at: end, source: index + 1 }));

export const CitationMark = ({ source, within }: { readonly source: number; readonly within: string }) => (
  <sup>
    <button
      type="button"
      class="quiet mark"
      aria-label={`Source ${source}`}
      onClick={() => document.getElementById(`${within}-${source}`)?.focus()}
    >
      [{source}]
    </button>
  </sup>
);

const pageText = ({ page, page_name: name }: Citation): string =>
  page === undefined ? "" : name === undefined ? `, p. ${page}` : `, p. ${page} (${name})`;

interface CitationListProps {
  readonly citations: readonly Citation[];
  /** Beginning of the entries' ids, of which there are several lists on a page. */
  readonly within: string;
}

export function CitationList({ citations, within }: CitationListProps) {
  if (citations.length === 0) return null;
  return (
    <ol class="citations" aria-label="Sources">
      {citations.map((citation, index) => (
        // A mark in the answer puts the focus here.
        <li key={index} id={`${within}-${index + 1}`} tabIndex={-1}>
          <span>[{index + 1}] </span>
          <Name text={citation.filename ?? citation.title ?? citation.document_id ?? null} absent="a document" />
          {pageText(citation)}
          {citation.quote !== undefined && <q>{citation.quote}</q>}
        </li>
      ))}
    </ol>
  );
}
