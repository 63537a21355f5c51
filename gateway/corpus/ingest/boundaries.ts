/**
 * Decides where a text is cut into fragments, by what stands around each place and not by how far it is from the
 * text's beginning: so a changed sentence moves the cuts near it, and all others stay where they were. Their fragments
 * keep their texts, and with them their KV and their vectors.
 *
 * Every place between two sentences has a rank: headings first, then by a hash of the sentence that follows. A place is
 * a cut when no other within some tokens before and after it has a higher rank (local maxima, as in content-defined
 * chunking of files). Two short stretches between such cuts may be joined, and a long one is split, once more by rank.
 */
import type { Unit } from "./sentences.ts";

/** A sentence, or a part of one, that is not cut again. */
export interface Piece extends Unit {
  readonly tokens: number;
  /** How good a place to end a fragment the one before the piece is. */
  readonly rank: number;
}

/**
 * A cut is the highest place within this part of a fragment's tokens, before and after it. With more, fragments are
 * fuller, and more of them change with a sentence: in 14,000 single edits of random texts 4 at most with 0.3, and 5 with
 * 0.4. Fragments are filled to about 62 %.
 */
const radiusPart = 0.3;
/** Fragments' worth of tokens that are looked at together at most; repeated lines have equal ranks and no cut. */
const maxFragmentsAtOnce = 16;
/** Neither part of a split is smaller than this part of a fragment, where there is such a place. */
const smallestPart = 1 / 4;

const none: readonly never[] = [];

/** Headings outrank all other places. */
const headingRank = 2 ** 32;

/** Ranks the place before a unit by FNV-1a of the unit's text, mixed so that similar texts have unlike ranks. */
export function rankOf(own: string, startsSection: boolean): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < own.length; i++) hash = Math.imul(hash ^ own.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) >>> 0) + (startsSection ? headingRank : 0);
}

interface Place {
  /** Index of the piece after it among the open ones. */
  readonly index: number;
  /** Tokens before it, from the text's beginning. */
  readonly at: number;
  readonly rank: number;
}

/** Gathers pieces, and gives back those between two cuts as soon as the second one is certain. */
export class Boundaries {
  readonly #maxTokens: number;
  readonly #radius: number;
  #open: Piece[] = [];
  #openTokens = 0;
  /** Tokens of all pieces so far. */
  #at = 0;
  /** The highest places of the last `radius` tokens, ranks falling. */
  #highest: Place[] = [];
  /** The last two stretches between cuts, which may be joined. */
  #before: readonly Piece[] = [];
  #last: readonly Piece[] = [];
  /** The place that is a cut unless a higher one follows soon. */
  #candidate: Place | undefined;

  /** @param maxTokens of a fragment */
  constructor(maxTokens: number) {
    this.#maxTokens = maxTokens;
    this.#radius = maxTokens * radiusPart;
  }

  /** @returns the pieces of stretches that are certain by now, in order; no fragment is of two stretches */
  add(piece: Piece): readonly (readonly Piece[])[] {
    const stretch = this.#close(piece);
    return stretch === undefined ? none : this.#joined(stretch);
  }

  /** What is left at the text's end. */
  finish(): readonly (readonly Piece[])[] {
    const last = this.#take(this.#open.length);
    return [...this.#joined(last), ...this.#joined([]), ...this.#joined([])].filter(({ length }) => length > 0);
  }

  /**
   * Joins a stretch with the one before it when both fit into one fragment and the place between them has a lower rank
   * than the places at their other ends: so a short section is not parted, and few fragments are small.
   */
  #joined(next: readonly Piece[]): readonly (readonly Piece[])[] {
    const [before, last] = [this.#before, this.#last];
    const place = rankBefore(last);
    const isLow = before.length > 0 && last.length > 0 && place < rankBefore(before) && place < rankBefore(next);
    const joins = isLow && tokensOf(before) + tokensOf(last) <= this.#maxTokens;
    this.#before = joins ? [] : last;
    this.#last = next;
    return joins ? [[...before, ...last]] : before.length > 0 ? [before] : [];
  }

  #close(piece: Piece): readonly Piece[] | undefined {
    this.#rank({ index: this.#open.length, at: this.#at, rank: piece.rank });
    this.#open.push(piece);
    this.#at += piece.tokens;
    this.#openTokens += piece.tokens;
    const candidate = this.#candidate;
    if (candidate !== undefined && this.#at - candidate.at >= this.#radius) return this.#take(candidate.index);
    if (this.#openTokens < this.#maxTokens * maxFragmentsAtOnce) return undefined;
    return this.#take(candidate?.index ?? this.#open.length);
  }

  #rank(place: Place): void {
    const from = place.at - this.#radius;
    while (this.#highest.length > 0 && (this.#highest.at(-1)?.rank ?? 0) < place.rank) this.#highest.pop();
    while (this.#highest.length > 0 && (this.#highest[0]?.at ?? 0) <= from) this.#highest.shift();
    const isHighest = this.#highest.length === 0;
    this.#highest.push(place);
    // A text's beginning counts as a cut.
    if (isHighest && place.at >= this.#radius) this.#candidate = place;
    else if (isHighest) this.#candidate = undefined;
  }

  #take(count: number): readonly Piece[] {
    const taken = this.#open.slice(0, count);
    this.#open = this.#open.slice(count);
    this.#openTokens = tokensOf(this.#open);
    this.#highest = this.#highest.map((place) => ({ ...place, index: place.index - count }));
    this.#candidate = undefined;
    return taken;
  }
}

/** A text's beginning and its end rank highest. */
const rankBefore = ([first]: readonly Piece[]): number =>
  first === undefined || first.start === 0 ? Number.POSITIVE_INFINITY : first.rank;

export const tokensOf = (pieces: readonly Piece[]): number => pieces.reduce((sum, { tokens }) => sum + tokens, 0);

/**
 * The index of the piece before which pieces that are too much for one fragment are split: of the places that leave
 * enough on both sides the highest, of equal ones that nearest to the middle.
 */
export function splitIndex(pieces: readonly Piece[], maxTokens: number): number {
  const total = tokensOf(pieces);
  const least = Math.max(maxTokens * smallestPart, total <= 2 * maxTokens ? total - maxTokens : maxTokens / 2);
  let best = { index: 1, isFair: false, rank: -1, offCentre: Number.POSITIVE_INFINITY };
  let before = 0;
  for (let index = 1; index < pieces.length; index++) {
    before += pieces[index - 1]?.tokens ?? 0;
    const isFair = before >= least && total - before >= least;
    const rank = isFair ? (pieces[index]?.rank ?? 0) : -1;
    const offCentre = Math.abs(total / 2 - before);
    const isBetter =
      isFair !== best.isFair ? isFair : rank !== best.rank ? rank > best.rank : offCentre < best.offCentre;
    if (isBetter) best = { index, isFair, rank, offCentre };
  }
  return best.index;
}
