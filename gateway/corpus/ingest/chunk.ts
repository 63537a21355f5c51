/**
 * Splits a document into fragments: each has whole sentences of at most `maxTokens`, counted by the model's own
 * tokenizer. Where fragments end, boundaries.ts decides. With overlap 0 the texts of the fragments, joined, are exactly
 * the document. A sentence is cut only when it alone exceeds the maximum.
 */
import { Boundaries, type Piece, rankOf, splitIndex, tokensOf } from "./boundaries.ts";
import { type LongText, sentenceSteps, type TextKind, type Unit, withoutHalfCharacter } from "./sentences.ts";

export interface Chunking {
  readonly maxTokens: number;
  /**
   * Tokens of the previous fragment that the next one repeats, in whole sentences; 0 keeps fragments apart and
   * reusable.
   */
  readonly overlapTokens: number;
}

export interface Chunk {
  readonly text: string;
  /** Half-open range of UTF-16 units in the document. */
  readonly firstChar: number;
  readonly endChar: number;
  /** The exact number of tokens of `text` alone. */
  readonly tokenCount: number;
}

/** Characters that are tokenized or scanned between two yields to other work. */
const charsPerSlice = 8_192;

/** Splits lazily, so that the caller decides when to let other work run. It yields undefined where that is possible. */
export function* chunkText(
  text: LongText,
  kind: TextKind,
  chunking: Chunking,
  countTokens: (text: string) => number,
): Generator<Chunk | undefined> {
  let chars = 0;
  const count = (part: string): number => {
    chars += part.length;
    return countTokens(part);
  };
  const fragments = new Fragments(text, chunking, count);
  const boundaries = new Boundaries(fragments.ownTokens);
  for (const unit of sentenceSteps(text, kind)) {
    if (unit === undefined) {
      yield undefined;
      continue;
    }
    chars += unit.end - unit.start;
    const own = text.slice(unit.start, unit.end);
    const tokens = count(own);
    const fits = tokens <= fragments.ownTokens;
    const pieces = fits ? [pieceOf(unit, own, tokens)] : fittingPieces(text, unit, fragments.ownTokens, count, tokens);
    for (const piece of pieces) {
      for (const stretch of boundaries.add(piece)) yield* fragments.of(stretch);
      if (chars < charsPerSlice) continue;
      chars = 0;
      yield undefined;
    }
  }
  for (const stretch of boundaries.finish()) yield* fragments.of(stretch);
}

/** Makes fragments of the pieces between two cuts. */
class Fragments {
  readonly #text: LongText;
  readonly #overlapTokens: number;
  /** Tokens of a fragment, and of what is its own and not repeated. */
  readonly #maxTokens: number;
  readonly #ownTokens: number;
  readonly #countTokens: (text: string) => number;
  /** Pieces at the end of the last fragment, which the next one repeats. */
  #tail: readonly Piece[] = [];

  constructor(text: LongText, { maxTokens, overlapTokens }: Chunking, countTokens: (text: string) => number) {
    this.#text = text;
    this.#maxTokens = maxTokens;
    this.#overlapTokens = overlapTokens;
    this.#ownTokens = maxTokens - overlapTokens;
    this.#countTokens = countTokens;
  }

  get ownTokens(): number {
    return this.#ownTokens;
  }

  *of(pieces: readonly Piece[]): Generator<Chunk> {
    const [first] = pieces;
    if (first === undefined) return;
    const isSmall = tokensOf(pieces) <= this.#ownTokens || pieces.length === 1;
    const chunk = isSmall ? this.#chunkOf(first, pieces) : undefined;
    // The exact count of the joined text may differ from the sum by a token at each seam.
    if (chunk !== undefined && (chunk.tokenCount <= this.#ownTokens || pieces.length === 1)) {
      yield this.#withOverlap(chunk, pieces);
      return;
    }
    const cut = splitIndex(pieces, this.#ownTokens);
    yield* this.of(pieces.slice(0, cut));
    yield* this.of(pieces.slice(cut));
  }

  /** Puts as many whole sentences of the fragment before in front as the overlap and the maximum allow. */
  #withOverlap(chunk: Chunk, pieces: readonly Piece[]): Chunk {
    let whole = chunk;
    for (let from = 0; from < this.#tail.length; from++) {
      const repeated = this.#chunkOf(this.#tail[from] as Piece, pieces);
      if (repeated.tokenCount > this.#maxTokens) continue;
      whole = repeated;
      break;
    }
    this.#tail = this.#tailOf(pieces);
    return whole;
  }

  #tailOf(pieces: readonly Piece[]): readonly Piece[] {
    let tokens = 0;
    let from = pieces.length;
    while (from > 0 && tokens + (pieces[from - 1]?.tokens ?? 0) <= this.#overlapTokens)
      tokens += pieces[--from]?.tokens ?? 0;
    return pieces.slice(from);
  }

  #chunkOf({ start }: Piece, pieces: readonly Piece[]): Chunk {
    const end = pieces.at(-1)?.end ?? start;
    const text = this.#text.slice(start, end);
    return { text, firstChar: start, endChar: end, tokenCount: this.#countTokens(text) };
  }
}

/**
 * If the text that a part was cut from suggests that the part exceeds the maximum by this factor, the part is cut again
 * without being counted.
 */
const surelyTooLong = 1.5;

const pieceOf = (unit: Unit, own: string, tokens: number): Piece => {
  return { ...unit, rank: rankOf(own, unit.startsSection), tokens };
};

/**
 * Yields a unit whole, or halves it at the best places until every part fits.
 * @param known the unit's tokens
 * @param tokensPerChar tokens per character of the text that this part was cut from
 */
function* fittingPieces(
  text: LongText,
  unit: Unit,
  maxTokens: number,
  countTokens: (text: string) => number,
  known: number | undefined,
  tokensPerChar = 0,
): Generator<Piece> {
  const chars = unit.end - unit.start;
  const own = text.slice(unit.start, unit.end);
  const isTooLong = chars * tokensPerChar > maxTokens * surelyTooLong;
  const tokens = known ?? (isTooLong ? Number.POSITIVE_INFINITY : countTokens(own));
  const cut = tokens > maxTokens ? bestCut(text, unit.start, unit.end) : unit.end;
  if (cut <= unit.start || cut >= unit.end) {
    yield pieceOf(unit, own, isTooLong ? countTokens(own) : tokens);
    return;
  }
  const density = isTooLong ? tokensPerChar : tokens / chars;
  const last = { start: cut, end: unit.end, startsSection: false };
  yield* fittingPieces(text, { ...unit, end: cut }, maxTokens, countTokens, undefined, density);
  yield* fittingPieces(text, last, maxTokens, countTokens, undefined, density);
}

/**
 * Cut places in order of preference: after a line break, after a clause, after a word, each nearest to the middle.
 * Otherwise the text is cut between two characters.
 */
const cutPlaces: readonly RegExp[] = [/\n/g, /[,;:、，；：]\s*/g, /\s+/g];

function bestCut(text: LongText, start: number, end: number): number {
  const middle = start + Math.floor((end - start) / 2);
  const margin = Math.floor((end - start) / 4);
  const low = start + margin;
  const part = text.slice(low, end - margin);
  for (const place of cutPlaces) {
    let best: number | undefined;
    for (const match of part.matchAll(place)) {
      const cut = low + match.index + match[0].length;
      if (best === undefined || Math.abs(cut - middle) < Math.abs(best - middle)) best = cut;
    }
    if (best !== undefined && best < end) return best;
  }
  return withoutHalfCharacter(text, start, middle);
}
