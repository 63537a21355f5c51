/** Finds the passages of a request's documents and search results that an answer cites. */
import { sentenceUnits } from "../../corpus/ingest/sentences.ts";
import { heldWords } from "../generation/citations.ts";

/** A block that may be cited. */
export interface CitableSource {
  readonly title: string | undefined;
  /** Source of a search result; undefined for a document. */
  readonly source: string | undefined;
  /** Place among the request's blocks of its kind. */
  readonly index: number;
  /** The document as one text, or the block's parts. */
  readonly content: string | readonly string[];
}

interface Passage {
  readonly text: string;
  readonly citation: () => object;
}

const maxCitations = 16;
/** Most passages that are looked at, so that documents of megabytes cost no more. */
const maxPassages = 20_000;

/**
 * A model does not name its sources, so words tell them, as with file citations: a passage is cited when it
 * holds at least half as many of the answer's own words as the passage that holds most.
 */
export function messageCitations(answer: string, question: string, sources: readonly CitableSource[]): object[] {
  const heldIn = heldWords(answer, question);
  const held = passagesOf(sources).flatMap((passage) => {
    const words = heldIn(passage.text);
    return words === 0 ? [] : [{ ...passage, words }];
  });
  const most = held.reduce((greatest, { words }) => Math.max(greatest, words), 0);
  return held
    .filter(({ words }) => words * 2 >= most)
    .slice(0, maxCitations)
    .map(({ citation }) => citation());
}

function passagesOf(sources: readonly CitableSource[]): readonly Passage[] {
  const passages: Passage[] = [];
  for (const source of sources) {
    for (const passage of typeof source.content === "string" ? sentences(source, source.content) : parts(source)) {
      if (passages.length === maxPassages) return passages;
      passages.push(passage);
    }
  }
  return passages;
}

/** Sentences of a document that is one text; indices count characters, the end is exclusive. */
function* sentences(source: CitableSource, content: string): Generator<Passage> {
  for (const { start, end } of sentenceUnits(content, "plain")) {
    const text = content.slice(start, end);
    const citation = (): object => {
      const first = [...content.slice(0, start)].length;
      return {
        ...{ type: "char_location", cited_text: text, ...documentFacts(source) },
        ...{ start_char_index: first, end_char_index: first + [...text].length },
      };
    };
    yield { text, citation };
  }
}

/** A source that comes in parts is cited part by part; the end is exclusive. */
function* parts(source: CitableSource): Generator<Passage> {
  for (const [at, text] of [...source.content].entries()) {
    const place = { start_block_index: at, end_block_index: at + 1 };
    const citation = (): object =>
      source.source === undefined
        ? { type: "content_block_location", cited_text: text, ...documentFacts(source), ...place }
        : { type: "search_result_location", cited_text: text, ...resultFacts(source), ...place };
    yield { text, citation };
  }
}

const documentFacts = ({ index, title }: CitableSource) => {
  return { document_index: index, document_title: title ?? null, file_id: null };
};
const resultFacts = ({ index, title, source }: CitableSource) => {
  return { search_result_index: index, source, title: title ?? null };
};
