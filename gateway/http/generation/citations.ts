/** What answers of all APIs say of their sources: pages and literal quotes, for each sentence that rests on one. */
import { type Citation, cite, maxSourceChars } from "../../corpus/search/cite.ts";
import type { AnswerSources, CitedFragment, PromptDocument } from "../../generate/plan-documents.ts";
import type { Choice } from "./choice.ts";

/** A citation and what it cites: a document of the request, by its place among them, or a fragment of a file. */
export interface AnswerCitation extends Citation {
  readonly quoted: string;
  readonly document?: PromptDocument;
  readonly fragment?: CitedFragment;
}

/** For each of the answer's sentences at most one citation. Works in slices. */
export async function citationsOf(
  { question, documents, retrieved }: AnswerSources,
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
  readonly #run: AnswerSources;
  readonly #choice: Pick<Choice, "text">;
  #text = "";
  found: readonly AnswerCitation[] = [];

  constructor(run: AnswerSources, choice: Pick<Choice, "text">) {
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

const hasSources = ({ documents, retrieved }: AnswerSources): boolean => documents.length + retrieved.length > 0;

/** Together, the choices of one answer have no more of their sources looked at than so many times one choice. */
const mostLookedAt = 16;

/**
 * The citations of some choices, each with its choice; undefined: no prompt had anything to cite.
 * @param sources of each choice
 * @param at the choice; absent: all of them
 */
export async function choiceCitations(
  sources: readonly AnswerSources[],
  choices: readonly Pick<Choice, "text">[],
  view: CitationView,
  at?: number,
) {
  if (!sources.some(hasSources)) return undefined;
  const cited: object[] = [];
  let charsLeft = mostLookedAt * maxSourceChars;
  for (const [choice, { text }] of choices.entries()) {
    const of = sources[choice];
    if (of === undefined || (at !== undefined && at !== choice)) continue;
    charsLeft -= Math.min(maxSourceChars, charsOf(of));
    if (charsLeft < 0) break;
    cited.push(...citationBodies(await citationsOf(of, text), view).map((body) => ({ choice, ...body })));
  }
  return cited;
}

const charsOf = ({ documents, retrieved }: AnswerSources): number =>
  [...documents, ...retrieved].reduce((sum, { text }) => sum + text.length, 0);

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
    ...(isBatchLine && (fragment ?? document)?.fileId !== undefined ? {} : { quote: quoted }),
    answer_range: [answer.start, answer.end],
    quote_range: [quote.start, quote.end],
    score: Math.round(share * 1e3) / 1e3,
  }));
}

export type CitationBodies = ReturnType<typeof citationBodies>;

const documentFacts = ({ id, title, fileId, filename }: PromptDocument) => {
  const named = filename === undefined ? {} : { filename };
  if (fileId !== undefined) return { file_id: fileId, ...named };
  return { document_id: id, ...(title === undefined ? {} : { title }), ...named };
};
const fragmentFacts = ({ id, fileId, filename }: CitedFragment) => {
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
  /** Place of the file among the files that the request names and then those that were found, the best first. */
  readonly index: number;
}

/** The files that are cited, in the form of OpenAI's annotations, each once. */
export function fileCitations(
  citations: readonly AnswerCitation[],
  { documents, retrieved }: Pick<AnswerSources, "documents" | "retrieved">,
): FileCitation[] {
  const cited = new Set(citations.map(({ document, fragment }) => (document ?? fragment)?.fileId));
  const files = new Map(
    [...documents, ...retrieved].flatMap(({ fileId, filename = "" }) =>
      fileId === undefined ? [] : [[fileId, filename] as const],
    ),
  );
  return [...files].flatMap(([fileId, filename], index): FileCitation[] =>
    cited.has(fileId) ? [{ type: "file_citation", file_id: fileId, filename, index }] : [],
  );
}
