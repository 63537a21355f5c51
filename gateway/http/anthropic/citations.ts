/** Citations in Anthropic's forms: places in the request's documents and search results, pages of files that were found. */
import type { AnswerCitation, CitationView } from "../generation/citations.ts";

/** A block of the request that may be cited. */
export interface CitableSource {
  readonly title: string | undefined;
  /** Source of a search result; undefined for a document. */
  readonly source: string | undefined;
  /** Place among the request's blocks of its kind. */
  readonly index: number;
  /** Place of its text among the prompt's documents. */
  readonly document: number;
  /** The block's parts; undefined: it is one text, or a file. */
  readonly content: readonly string[] | undefined;
}

export interface CitableBlocks {
  /** Those whose citations are asked for. */
  readonly sources: readonly CitableSource[];
  /** Blocks of all documents, and of all search results: the files that are found are counted on from them. */
  readonly documentCount: number;
  readonly resultCount: number;
}

/** Citations of what the request wants cited, and of the files that `file_search` found. */
export function messageCitations(
  citations: readonly AnswerCitation[],
  { sources, documentCount, resultCount }: CitableBlocks,
  { isBatchLine }: CitationView,
  retrieved: readonly { readonly id: string; readonly fileId: string }[],
): object[] {
  const byDocument = new Map(sources.map((source) => [source.document, source]));
  const fileIds = [...new Set(retrieved.map(({ fileId }) => fileId))];
  return citations.flatMap((citation): object[] => {
    const { fragment, page } = citation;
    const source = byDocument.get(citation.source);
    const isStored = citation.document?.fileId !== undefined;
    if (source !== undefined) return isStored && isBatchLine ? [] : blockCitation(citation, source);
    // A batch's file would keep the text of a file that is deleted.
    if (fragment === undefined || isBatchLine) return [];
    const cited = { cited_text: citation.quoted };
    if (page !== undefined) {
      const place = {
        document_index: documentCount + fileIds.indexOf(fragment.fileId),
        document_title: fragment.filename,
      };
      const pages = { start_page_number: page.number, end_page_number: page.number + 1 };
      return [{ type: "page_location", ...cited, ...place, file_id: fragment.fileId, ...pages }];
    }
    const index = resultCount + retrieved.findIndex(({ id }) => id === fragment.id);
    const facts = { search_result_index: index, source: fragment.fileId, title: fragment.filename };
    return [{ type: "search_result_location", ...cited, ...facts, start_block_index: 0, end_block_index: 1 }];
  });
}

/** A text is cited by characters, whose end is exclusive; a source that comes in parts, part by part. */
function blockCitation(citation: AnswerCitation, source: CitableSource): object[] {
  const { content } = source;
  // Places count from where the block's own text begins.
  const { document, quoted, quote, units, page } = citation;
  const bodyAt = document?.bodyAt ?? 0;
  const facts = { ...documentFacts(source), file_id: document?.fileId ?? null };
  if (page !== undefined) {
    const pages = { start_page_number: page.number, end_page_number: page.number + 1 };
    return [{ type: "page_location", cited_text: quoted, ...facts, ...pages }];
  }
  if (content === undefined) {
    const added = [...(document?.text.slice(0, bodyAt) ?? "")].length;
    const range = { start_char_index: quote.start - added, end_char_index: quote.end - added };
    return [{ type: "char_location", cited_text: quoted, ...facts, ...range }];
  }
  const at = partAt(content, units.start - bodyAt);
  const place = { cited_text: content[at] ?? "", start_block_index: at, end_block_index: at + 1 };
  return source.source === undefined
    ? [{ type: "content_block_location", ...facts, ...place }]
    : [{ type: "search_result_location", ...resultFacts(source), ...place }];
}

/** The part that a place is in; a line break stands between two parts. */
function partAt(parts: readonly string[], place: number): number {
  let end = -1;
  return Math.max(
    0,
    parts.findIndex((part) => {
      end += part.length + 1;
      return place <= end;
    }),
  );
}

const documentFacts = ({ index, title }: CitableSource) => {
  return { document_index: index, document_title: title ?? null };
};
const resultFacts = ({ index, title, source }: CitableSource) => {
  return { search_result_index: index, source, title: title ?? null };
};
