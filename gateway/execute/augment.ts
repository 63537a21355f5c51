/** Retrieval over a document that comes with the query: it is split as an uploaded one is, and BM25 ranks its parts. */

import { Pace } from "../base/pace.ts";
import { streamSafe } from "../base/stream-safe.ts";
import { chunkText } from "../corpus/ingest/chunk.ts";
import { augmentFragments } from "../query/builder.ts";
import type { Augment, Message } from "../query/ir.ts";

export interface AugmentOptions {
  readonly maxTokens: number;
  readonly maxFragments: number;
  readonly countTokens: (text: string) => number;
}

/** A part of a document as the prompt shows it, and where its own text stands in the document, in UTF-16 units. */
export interface FoundPart {
  readonly message: Message;
  readonly bodyAt: number;
  readonly bodyEnd: number;
}

/**
 * The document's best parts for a question, best first, as messages. Each part is numbered by its place in the
 * document, so that it is the same message for every question.
 * @throws the signal's reason
 */
export async function augmentMessages(
  node: Augment,
  question: string,
  options: AugmentOptions,
  signal: AbortSignal,
): Promise<readonly FoundPart[]> {
  const { name, text } = node.doc;
  const pace = new Pace();
  const parts: string[] = [];
  const places: number[] = [];
  const chunking = { maxTokens: options.maxTokens, overlapTokens: 0 };
  const kind = /\.(md|mdx|markdown)$/i.test(name) ? "markdown" : "plain";
  for (const chunk of chunkText(text, kind, chunking, options.countTokens)) {
    const part = chunk?.text.trim() ?? "";
    if (chunk !== undefined && part !== "") {
      parts.push(part);
      places.push(chunk.firstChar + chunk.text.length - chunk.text.trimStart().length);
    }
    await pace.breathe();
    signal.throwIfAborted();
  }
  const messages = augmentFragments(node, parts);
  const best = (await rank(parts, question, pace)).slice(0, options.maxFragments);
  return best.flatMap((index): FoundPart[] => {
    const [message, bodyAt] = [messages[index], places[index]];
    if (message === undefined || bodyAt === undefined) return [];
    return [{ message, bodyAt, bodyEnd: bodyAt + (parts[index]?.length ?? 0) }];
  });
}

/** BM25's usual constants: k1 saturates the count of a word, and b weights the length of a text. */
const saturation = 1.2;
const lengthWeight = 0.75;

/** Indexes of the texts, best first by BM25. Equal texts keep the document's order. */
export async function rank(texts: readonly string[], question: string, pace: Pace): Promise<readonly number[]> {
  /** For each word of the question, how many texts contain it. */
  const having = new Map(wordsOf(question).map((word) => [word, 0]));
  const counted: { readonly counts: ReadonlyMap<string, number>; readonly length: number }[] = [];
  for (const text of texts) {
    const words = wordsOf(text);
    const counts = new Map<string, number>();
    for (const word of words) if (having.has(word)) counts.set(word, (counts.get(word) ?? 0) + 1);
    for (const word of counts.keys()) having.set(word, (having.get(word) ?? 0) + 1);
    counted.push({ counts, length: words.length });
    await pace.breathe();
  }
  const meanLength = counted.reduce((sum, { length }) => sum + length, 0) / Math.max(1, texts.length);
  const scores = counted.map(({ counts, length }) => {
    const norm = saturation * (1 - lengthWeight + lengthWeight * (length / Math.max(1, meanLength)));
    let score = 0;
    for (const [word, count] of counts) {
      const among = having.get(word) ?? 0;
      const weight = Math.log(1 + (texts.length - among + 0.5) / (among + 0.5));
      score += (weight * count * (saturation + 1)) / (count + norm);
    }
    return score;
  });
  return texts.map((_, index) => index).sort((a, b) => (scores[b] ?? 0) - (scores[a] ?? 0) || a - b);
}

/** The words of a text: runs of letters and digits, in one case and without accents. */
function wordsOf(text: string): readonly string[] {
  return (
    streamSafe(text)
      .normalize("NFKD")
      .replace(/\p{M}/gu, "")
      .toLowerCase()
      .match(/[\p{L}\p{N}]+/gu) ?? []
  );
}
