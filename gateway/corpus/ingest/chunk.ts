/**
 * Splits a document into fragments: each has as many whole sentences as fit `maxTokens`, counted by the model's own
 * tokenizer. With overlap 0 the texts of the fragments, joined, are exactly the document. A sentence is cut only when
 * it alone exceeds the maximum.
 */
import { sentenceSteps, type TextKind, type Unit, withoutHalfCharacter } from "./sentences.ts";

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

interface Piece extends Unit {
  readonly tokens: number;
}

/** Characters that are tokenized or scanned between two yields to other work. */
const charsPerSlice = 8_192;

/** Splits lazily, so that the caller decides when to let other work run. It yields undefined where that is possible. */
export function* chunkText(
  text: string,
  kind: TextKind,
  chunking: Chunking,
  countTokens: (text: string) => number,
): Generator<Chunk | undefined> {
  let chars = 0;
  const count = (part: string): number => {
    chars += part.length;
    return countTokens(part);
  };
  const packer = new Packer(text, chunking, count);
  for (const unit of sentenceSteps(text, kind)) {
    if (unit === undefined) {
      yield undefined;
      continue;
    }
    chars += unit.end - unit.start;
    for (const piece of fittingPieces(text, unit, chunking.maxTokens, count)) {
      yield* packer.add(piece);
      if (chars < charsPerSlice) continue;
      chars = 0;
      yield undefined;
    }
  }
  yield* packer.finish();
}

/** Fills one fragment at a time. */
class Packer {
  readonly #text: string;
  readonly #chunking: Chunking;
  readonly #countTokens: (text: string) => number;
  #open: Piece[] = [];
  /** How many of the open pieces repeat pieces of the previous fragment. */
  #repeated = 0;
  /** The sum of the open pieces' tokens. The exact count of the joined text may differ by a token at each seam. */
  #openTokens = 0;

  constructor(text: string, chunking: Chunking, countTokens: (text: string) => number) {
    this.#text = text;
    this.#chunking = chunking;
    this.#countTokens = countTokens;
  }

  *add(piece: Piece): Generator<Chunk> {
    const { maxTokens } = this.#chunking;
    const sectionBreak = piece.startsSection && this.#openTokens * 2 >= maxTokens;
    if (this.#openTokens + piece.tokens > maxTokens || sectionBreak) yield* this.#emit();
    while (this.#repeated > 0 && this.#openTokens + piece.tokens > maxTokens) this.#dropRepeated();
    this.#push(piece);
  }

  *finish(): Generator<Chunk> {
    while (this.#open.length > this.#repeated) yield* this.#emit();
  }

  /** Emits the open pieces, except for those at the end that exceed the maximum by the exact count. */
  *#emit(): Generator<Chunk> {
    if (this.#open.length <= this.#repeated) return;
    const first = this.#open[0];
    if (first === undefined) return;
    let taken = this.#open.length;
    let chunk = this.#chunkOf(first, this.#open[taken - 1] ?? first);
    while (chunk.tokenCount > this.#chunking.maxTokens && taken > 1) {
      // The number of pieces is cut in proportion to the excess, so that only a few counts are needed however many
      // pieces there are.
      taken = Math.max(1, Math.min(taken - 1, Math.floor((taken * this.#chunking.maxTokens) / chunk.tokenCount)));
      chunk = this.#chunkOf(first, this.#open[taken - 1] ?? first);
    }
    const emitted = this.#open.slice(0, taken);
    const left = this.#open.slice(taken);
    if (taken > this.#repeated) yield chunk;
    this.#reset(left.length === 0 || taken > this.#repeated ? this.#tailOf(emitted) : []);
    for (const piece of left) {
      while (this.#repeated > 0 && this.#openTokens + piece.tokens > this.#chunking.maxTokens) this.#dropRepeated();
      this.#push(piece);
    }
  }

  #chunkOf(first: Piece, last: Piece): Chunk {
    const text = this.#text.slice(first.start, last.end);
    return { text, firstChar: first.start, endChar: last.end, tokenCount: this.#countTokens(text) };
  }

  /** The pieces at the end of a fragment that the next one repeats. */
  #tailOf(emitted: readonly Piece[]): Piece[] {
    let tokens = 0;
    let from = emitted.length;
    for (let i = emitted.length - 1; i > 0; i--) {
      tokens += emitted[i]?.tokens ?? 0;
      if (tokens > this.#chunking.overlapTokens) break;
      from = i;
    }
    return emitted.slice(from);
  }

  #reset(repeated: Piece[]): void {
    this.#open = repeated;
    this.#repeated = repeated.length;
    this.#openTokens = repeated.reduce((sum, piece) => sum + piece.tokens, 0);
  }

  #dropRepeated(): void {
    this.#openTokens -= this.#open.shift()?.tokens ?? 0;
    this.#repeated--;
  }

  #push(piece: Piece): void {
    this.#open.push(piece);
    this.#openTokens += piece.tokens;
  }
}

/**
 * If the text that a part was cut from suggests that the part exceeds the maximum by this factor, the part is cut again
 * without being counted.
 */
const surelyTooLong = 1.5;

/**
 * Yields a unit whole, or halves it at the best places until every part fits.
 * @param tokensPerChar tokens per character of the text that this part was cut from
 */
function* fittingPieces(
  text: string,
  unit: Unit,
  maxTokens: number,
  countTokens: (text: string) => number,
  tokensPerChar = 0,
): Generator<Piece> {
  const chars = unit.end - unit.start;
  const isTooLong = chars * tokensPerChar > maxTokens * surelyTooLong;
  const tokens = isTooLong ? Number.POSITIVE_INFINITY : countTokens(text.slice(unit.start, unit.end));
  const cut = tokens > maxTokens ? bestCut(text, unit.start, unit.end) : unit.end;
  if (cut <= unit.start || cut >= unit.end) {
    yield { ...unit, tokens: isTooLong ? countTokens(text.slice(unit.start, unit.end)) : tokens };
    return;
  }
  const density = isTooLong ? tokensPerChar : tokens / chars;
  yield* fittingPieces(text, { ...unit, end: cut }, maxTokens, countTokens, density);
  yield* fittingPieces(text, { start: cut, end: unit.end, startsSection: false }, maxTokens, countTokens, density);
}

/**
 * Cut places in order of preference: after a line break, after a clause, after a word, each nearest to the middle.
 * Otherwise the text is cut between two characters.
 */
const cutPlaces: readonly RegExp[] = [/\n/g, /[,;:、，；：]\s*/g, /\s+/g];

function bestCut(text: string, start: number, end: number): number {
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
