/** What answers of all APIs say of their sources: pages and literal quotes, for each sentence that rests on one. */
import { type Citation, cite } from "../../corpus/search/cite.ts";
import type { RetrievedFragment } from "../../corpus/search/retrieve.ts";
import type { ChatRun } from "../../generate/pipeline.ts";
import type { PromptDocument } from "../../generate/plan-documents.ts";
import type { Choice } from "./choice.ts";

/** A citation and what it cites: a document of the request, by its place among them, or a fragment of a file. */
export interface AnswerCitation extends Citation {
  readonly quoted: string;
  readonly document?: PromptDocument;
  readonly fragment?: RetrievedFragment;
}

type CitingRun = Pick<ChatRun, "question" | "documents" | "retrieved">;

/** For each of the answer's sentences at most one citation. Works in slices. */
export async function citationsOf(
  { question, documents, retrieved }: CitingRun,
  answer: string,
): Promise<readonly AnswerCitation[]> {
  const found = await cite(answer, question, [...documents, ...retrieved]);
  return found.map((citation) => {
    const { source, units } = citation;
    const [document, fragment] = [documents[source], retrieved[source - documents.length]];
    const quoted = (document ?? fragment)?.text.slice(units.start, units.end) ?? "";
    return { ...citation, quoted, ...(document === undefined ? { fragment } : { document }) } as AnswerCitation;
  });
}

/** What one choice cites. It is looked for once the text is there. */
export class ChoiceCitations {
  readonly #run: CitingRun;
  readonly #choice: Pick<Choice, "text">;
  #text = "";
  found: readonly AnswerCitation[] = [];

  constructor(run: CitingRun, choice: Pick<Choice, "text">) {
    this.#run = run;
    this.#choice = choice;
  }

  /** Call when the text has ended, before `found` is read. A text that is the same still is not looked through again. */
  async find(): Promise<readonly AnswerCitation[]> {
    const { text } = this.#choice;
    if (text === this.#text) return this.found;
    this.#text = text;
    this.found = await citationsOf(this.#run, text);
    return this.found;
  }

  /** `spangate.citations`; undefined: the prompt had nothing to cite. */
  bodies(view: CitationView): CitationBodies | undefined {
    return hasSources(this.#run) ? citationBodies(this.found, view) : undefined;
  }
}

export const hasSources = ({ documents, retrieved }: CitingRun): boolean => documents.length + retrieved.length > 0;

/** How the citations are shown. */
export interface CitationView {
  /** The answer becomes a line of a batch's file, which would keep the text of a file that is deleted. */
  readonly isBatchLine: boolean;
}

/** `spangate.citations` */
export function citationBodies(citations: readonly AnswerCitation[], { isBatchLine }: CitationView) {
  return citations.map(({ document, fragment, quoted, page, answer, quote, share }) => ({
    ...(document === undefined ? {} : documentFacts(document)),
    ...(fragment === undefined ? {} : fragmentFacts(fragment)),
    ...pageFacts(page),
    ...(isBatchLine && fragment !== undefined ? {} : { quote: quoted }),
    answer_range: [answer.start, answer.end],
    quote_range: [quote.start, quote.end],
    score: Math.round(share * 1e3) / 1e3,
  }));
}

export type CitationBodies = ReturnType<typeof citationBodies>;

const documentFacts = ({ id, title }: PromptDocument) => {
  return { document_id: id, ...(title === undefined ? {} : { title }) };
};
const fragmentFacts = ({ id, fileId, filename }: RetrievedFragment) => {
  return { file_id: fileId, filename, fragment_id: id };
};
const pageFacts = (page: AnswerCitation["page"]) => {
  if (page === undefined) return {};
  return { page: page.number, ...(page.name === undefined ? {} : { page_name: page.name }) };
};

export interface FileCitation {
  readonly type: "file_citation";
  readonly file_id: string;
  readonly filename: string;
  /** Place of the file among the retrieved files, the best first. */
  readonly index: number;
}

/** The files that are cited, in the form of OpenAI's annotations, each once. */
export function fileCitations(citations: readonly AnswerCitation[], retrieved: ChatRun["retrieved"]): FileCitation[] {
  const cited = new Set(citations.map(({ fragment }) => fragment?.fileId));
  const files = new Map(retrieved.map(({ fileId, filename }) => [fileId, filename]));
  return [...files].flatMap(([fileId, filename], index): FileCitation[] =>
    cited.has(fileId) ? [{ type: "file_citation", file_id: fileId, filename, index }] : [],
  );
}
