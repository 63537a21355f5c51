/** Retrieval over a document that comes with the query: split as an uploaded one, ranked by the words it shares with the question. */
import { chunkText } from "../corpus/chunk.ts";
import { Pace } from "../corpus/pace.ts";
import { augmentFragments } from "../query/augment.ts";
import type { Augment, Message } from "../query/ir.ts";

export interface AugmentOptions {
  readonly maxTokens: number;
  readonly maxFragments: number;
  readonly countTokens: (text: string) => number;
}

/**
 * The document's best parts for a question, best first, as messages. A part's number is its place in the document, so
 * that it is the same message for every question.
 */
export async function augmentMessages(
  node: Augment,
  question: string,
  options: AugmentOptions,
): Promise<readonly Message[]> {
  const { name, text } = node.doc;
  const pace = new Pace();
  const parts: string[] = [];
  const chunking = { maxTokens: options.maxTokens, overlapTokens: 0 };
  const kind = /\.(md|mdx|markdown)$/i.test(name) ? "markdown" : "plain";
  for (const chunk of chunkText(text, kind, chunking, options.countTokens)) {
    const part = chunk.text.trim();
    if (part !== "") parts.push(part);
    await pace.breathe();
  }
  const messages = augmentFragments(node, parts);
  const best = rank(parts, question).slice(0, options.maxFragments);
  return best.flatMap((index) => messages[index] ?? []);
}

/** Saturation of a word's count and weight of the length (Okapi BM25's usual k1 and b). */
const saturation = 1.2;
const lengthWeight = 0.75;

/** Indices of the texts by BM25, best first; ties in the order of the document. */
export function rank(texts: readonly string[], question: string): readonly number[] {
  const wanted = [...new Set(wordsOf(question))];
  const counted = texts.map((text) => {
    const words = wordsOf(text);
    const counts = new Map<string, number>();
    for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
    return { counts, length: words.length };
  });
  const meanLength = counted.reduce((sum, { length }) => sum + length, 0) / Math.max(1, texts.length);
  const weights = wanted.map((word) => {
    const having = counted.filter(({ counts }) => counts.has(word)).length;
    return Math.log(1 + (texts.length - having + 0.5) / (having + 0.5));
  });
  const scores = counted.map(({ counts, length }) => {
    const norm = saturation * (1 - lengthWeight + lengthWeight * (length / Math.max(1, meanLength)));
    return wanted.reduce((sum, word, index) => {
      const count = counts.get(word) ?? 0;
      return sum + ((weights[index] ?? 0) * count * (saturation + 1)) / (count + norm);
    }, 0);
  });
  return texts.map((_, index) => index).sort((a, b) => (scores[b] ?? 0) - (scores[a] ?? 0) || a - b);
}

/** Letters and digits in a row, folded to one case and without accents. */
function wordsOf(text: string): readonly string[] {
  return (
    text
      .normalize("NFKD")
      .replace(/\p{M}/gu, "")
      .toLowerCase()
      .match(/[\p{L}\p{N}]+/gu) ?? []
  );
}
