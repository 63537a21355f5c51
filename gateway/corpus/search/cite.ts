/**
 * Ties each sentence of an answer to the sentence of the prompt's documents that it most likely rests on. A model does
 * not name its sources, so words tell them: a source counts by the share of the answer's words that it holds, each by
 * how rare it is in the documents, and numbers twice.
 */
import type { FragmentPage } from "../../../db/schema.ts";
import { Pace, yieldToOthers } from "../../base/pace.ts";
import { textKindOf } from "../ingest/file-kinds.ts";
import { pageAt } from "../ingest/pages.ts";
import { sentenceSteps } from "../ingest/sentences.ts";
import { isNumber, WordSearch, wordsOf } from "./words.ts";

/** A text of the prompt that may be cited. */
export interface CitableText {
  readonly text: string;
  /** Where the document's own text begins: before it stands what an API added. Absent: at its start. */
  readonly bodyAt?: number | undefined;
  /** Where the part of it ends that may be cited. Absent: at its end. */
  readonly bodyEnd?: number | undefined;
  /** Tells what a sentence is: a line of a log, or prose. Absent: prose. */
  readonly filename?: string | undefined;
  /** Absent where the text has no pages. */
  readonly pages?: readonly FragmentPage[];
}

/** A half-open range. */
export interface TextRange {
  readonly start: number;
  readonly end: number;
}

export interface Citation {
  /** Place of the text among those that were given. */
  readonly source: number;
  /** The cited sentence, in the UTF-16 units of its text. */
  readonly units: TextRange;
  /** The same in characters, as clients in every language count them. */
  readonly quote: TextRange;
  /** The page that it begins on; undefined where its text has none. */
  readonly page: FragmentPage | undefined;
  /** The sentence of the answer, in characters. */
  readonly answer: TextRange;
  /** In 0..1: the share of the answer's sentence that the source holds. */
  readonly share: number;
}

/**
 * A source that holds less of a sentence is not cited. Chosen where precision and recall over the sentences of
 * test/corpus/search/citation-set.ts are best together; test/corpus/search/cite.test.ts holds it there.
 */
export const leastShare = 0.5;
/** What the question said already tells little about where the answer is from. */
const askedWeight = 0.25;
const numberWeight = 2;
/** How much the words of the question decide between sources that hold the same of the answer. */
const questionWeight = 0.2;

const maxAnswerChars = 32_768;
const maxClaims = 128;
/** Texts after so many characters of texts, and sentences after so many, are not looked at. */
export const maxSourceChars = 1_000_000;
const maxSentences = 20_000;
/** A word that stands in more sentences tells nothing. */
const maxSentencesPerWord = 2_000;
const sentencesPerBreath = 32;

interface Sentence extends TextRange {
  readonly source: number;
}

interface Claim extends TextRange {
  readonly words: ReadonlySet<string>;
}

/** For each of the answer's sentences at most one citation, in their order. Works in slices. */
export async function cite(
  answer: string,
  question: string,
  sources: readonly CitableText[],
  bar = leastShare,
): Promise<readonly Citation[]> {
  // The choices of a request end together: each begins in a turn of its own.
  await yieldToOthers();
  const claims = claimsOf(answer);
  if (claims.length === 0 || sources.length === 0) return [];
  const asked = new Set(wordsOf(question.slice(0, maxAnswerChars)));
  const pace = new Pace();
  const index = await indexOf(sources, new Set([...asked, ...claims.flatMap(({ words }) => [...words])]), pace);
  const citations: Citation[] = [];
  for (const claim of claims) {
    const best = bestSource(claim, asked, index);
    await pace.breathe();
    const { text, pages } = sources[best?.sentence.source ?? -1] ?? {};
    if (best === undefined || text === undefined || best.share < bar) continue;
    const { source, start, end } = best.sentence;
    citations.push({
      ...{ source, units: { start, end }, page: pageAt(pages, start), quote: charRange(text, best.sentence) },
      ...{ answer: charRange(answer, claim), share: best.share },
    });
    await pace.breathe();
  }
  return citations;
}

function claimsOf(answer: string): readonly Claim[] {
  const claims: Claim[] = [];
  for (const unit of sentenceSteps(answer.slice(0, maxAnswerChars), "markdown")) {
    if (unit === undefined) continue;
    const range = withoutFrame(answer, unit);
    const words = new Set(wordsOf(answer.slice(range.start, range.end)));
    if (words.size > 0) claims.push({ ...range, words });
    if (claims.length === maxClaims) break;
  }
  return claims;
}

/** Leaves headings above a sentence, the mark of a list's entry and blank space around both out. */
function withoutFrame(text: string, { start, end }: TextRange): TextRange {
  const unit = text.slice(start, end);
  const whole = /^(?:\s*#{1,6} [^\n]*\n)*\s*(?:(?:[-*+•]|\d{1,9}[.)])\s+)?/.exec(unit)?.[0].length ?? 0;
  const before = unit.slice(whole).trim() === "" ? unit.length - unit.trimStart().length : whole;
  return { start: start + before, end: Math.max(start + before, start + unit.trimEnd().length) };
}

/** The sentences of all texts, and for each word that is looked for the sentences that hold it. */
interface SourceIndex {
  readonly sentences: readonly Sentence[];
  readonly holders: ReadonlyMap<string, readonly number[]>;
}

async function indexOf(sources: readonly CitableText[], wanted: ReadonlySet<string>, pace: Pace): Promise<SourceIndex> {
  const sentences: Sentence[] = [];
  const holders = new Map<string, number[]>();
  const search = new WordSearch(wanted);
  let charsLeft = maxSourceChars;
  for (const [source, { text, bodyAt = 0, bodyEnd = text.length, filename }] of sources.entries()) {
    const body = text.slice(bodyAt, Math.min(bodyEnd, bodyAt + charsLeft));
    charsLeft -= body.length;
    let unitCount = 0;
    for (const unit of sentenceSteps(body, filename === undefined ? "markdown" : textKindOf(filename))) {
      if (unit === undefined || ++unitCount % sentencesPerBreath === 0) await pace.breathe();
      if (unit === undefined) continue;
      if (sentences.length === maxSentences) return { sentences, holders };
      const { start, end } = withoutFrame(body, unit);
      // The headings above tell what a sentence is about, so their words count for it.
      for (const word of search.in(body.slice(unit.start, unit.end))) {
        const held = holders.getOrInsertComputed(word, () => []);
        if (held.length <= maxSentencesPerWord) held.push(sentences.length);
      }
      sentences.push({ source, start: bodyAt + start, end: bodyAt + end });
    }
  }
  return { sentences, holders };
}

/** Inverse document frequency over the sentences, as BM25 has it. A word that none holds counts as a rare one. */
function weightOf(word: string, { sentences, holders }: SourceIndex): number {
  const count = Math.max(1, holders.get(word)?.length ?? 0);
  if (count > maxSentencesPerWord) return 0;
  const rarity = Math.log(1 + (sentences.length - count + 0.5) / (count + 0.5));
  return isNumber(word) ? rarity * numberWeight : rarity;
}

/** The sentence that holds most of the claim; of equal ones the one nearest to the question, then the shortest. */
function bestSource(
  { words }: Claim,
  asked: ReadonlySet<string>,
  index: SourceIndex,
): { readonly sentence: Sentence; readonly share: number } | undefined {
  const claimed = [...words].map(
    (word) => [word, weightOf(word, index) * (asked.has(word) ? askedWeight : 1)] as const,
  );
  const held = heldBy(claimed, index);
  const askedHeld = heldBy(
    [...asked].map((word) => [word, weightOf(word, index)] as const),
    index,
    held,
  );
  // Numbers that the answer adds have to be the source's: one of them at least, since an answer may join two sources.
  const added = [...words].filter((word) => isNumber(word) && !asked.has(word));
  const holdingNumber = new Set(added.flatMap((word) => index.holders.get(word) ?? []));
  const total = sumOf(claimed);
  const askedTotal = sumOf([...asked].map((word) => [word, weightOf(word, index)] as const)) || 1;
  let best: { readonly sentence: Sentence; readonly share: number; readonly rank: number } | undefined;
  for (const [at, sum] of held) {
    const sentence = index.sentences[at];
    if (sentence === undefined || (added.length > 0 && !holdingNumber.has(at))) continue;
    const share = sum / total;
    const rank = share + (questionWeight * (askedHeld.get(at) ?? 0)) / askedTotal;
    const isShorter = best !== undefined && rank === best.rank && lengthOf(sentence) < lengthOf(best.sentence);
    if (best === undefined || rank > best.rank || isShorter) best = { sentence, share, rank };
  }
  return best;
}

type Weighted = readonly (readonly [word: string, weight: number])[];

const sumOf = (weighted: Weighted): number => weighted.reduce((sum, [, weight]) => sum + weight, 0);
const lengthOf = ({ start, end }: TextRange): number => end - start;

/** The weight that each sentence holds. @param among only these sentences count; absent: all */
function heldBy(
  weighted: Weighted,
  { holders }: SourceIndex,
  among?: ReadonlyMap<number, number>,
): ReadonlyMap<number, number> {
  const held = new Map<number, number>();
  for (const [word, weight] of weighted) {
    if (weight <= 0) continue;
    for (const at of holders.get(word) ?? []) {
      if (among?.has(at) !== false) held.set(at, (held.get(at) ?? 0) + weight);
    }
  }
  return held;
}

/** Counts the characters of a range of UTF-16 units. */
function charRange(text: string, { start, end }: TextRange): TextRange {
  const first = charCount(text, 0, start);
  return { start: first, end: first + charCount(text, start, end) };
}

function charCount(text: string, start: number, end: number): number {
  let count = 0;
  for (let at = start; at < end; at++) if ((text.charCodeAt(at) & 0xfc00) !== 0xdc00) count += 1;
  return count;
}
