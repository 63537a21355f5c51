/**
 * Sparse decoding for the fake backend, in plain loops: a row chooses by a pseudo-random score of its own token, of what
 * each candidate's slot holds and of how far away it stands, and chosen states are copied into the buffer. What a backend
 * could not know, and would have computed wrongly, is an error.
 */
import type { SparseShape } from "../../worker/backend/backend.ts";
import type { Batch, Choices } from "../../worker/contract/batch.ts";
import { type ChoiceCounts, choiceFlags, choiceModes, looksBack } from "../../worker/contract/sparse.ts";
import { mix } from "./hash.ts";

/** What the fake pool has in its slots. */
export interface FakeSlots {
  readonly states: Uint32Array;
  readonly tokenIds: Int32Array;
  readonly positions: Int32Array;
  readonly written: Uint8Array;
}

/** A token that may be chosen: its slot, and where it stands in the row's own positions. */
interface Candidate {
  readonly slot: number;
  readonly position: number;
  readonly offset: number;
  readonly forced: boolean;
}

interface Seat {
  /** By slot of the buffer, forced ones left out: the number of the token in it. */
  chosen: number[];
  /** Newest position whose query the seat has. */
  position: number;
  counts: Record<keyof ChoiceCounts, number>;
}

const noCounts = () => ({ lists: 0, chosen: 0, chosenAgain: 0, changed: 0, mass: 0, overlap: 0, measured: 0 });

/** The score of a candidate; few different ones, so that there are ties. */
export function fakeScore(tokenId: number, position: number, state: number, distance: number): number {
  return mix(mix(tokenId, position), mix(state, distance)) >>> 27;
}

/** Places of the `count` greatest scores, of equal ones the earlier, in rising order. */
export function greatestScores(scores: readonly number[], count: number): number[] {
  const order = scores.map((_, index) => index).sort((a, b) => scores[b] - scores[a] || a - b);
  return order.slice(0, count).sort((a, b) => a - b);
}

function expect(holds: boolean, text: string): asserts holds {
  if (!holds) throw new Error(`bad choices: ${text}`);
}

export class FakeChoices {
  readonly #shape: SparseShape;
  readonly #blockTokens: number;
  readonly #slots: FakeSlots;
  readonly #seats = new Map<number, Seat>();

  constructor(shape: SparseShape, blockTokens: number, slots: FakeSlots) {
    this.#shape = shape;
    this.#blockTokens = blockTokens;
    this.#slots = slots;
  }

  counts(seat: number): ChoiceCounts {
    return { ...(this.#seats.get(seat)?.counts ?? noCounts()) };
  }

  /** Chooses for every entry of the step, and fills the buffers. */
  run(batch: Batch): void {
    const { choices } = batch;
    if (choices === undefined) return;
    this.#check(batch, choices);
    for (const entry of choices.pieces.keys()) this.#runEntry(batch, choices, entry);
  }

  #runEntry(batch: Batch, choices: Choices, entry: number): void {
    const piece = choices.pieces[entry];
    const [row, endRow] = [batch.pieceRows[piece], batch.pieceRows[piece + 1]];
    const flags = choices.flags[entry];
    const mode = choiceModes[choices.modes[entry]];
    const fresh = (flags & choiceFlags.fresh) !== 0;
    const before = fresh ? undefined : this.#seats.get(choices.seats[entry]);
    expect(fresh || before !== undefined, "a seat that was never fresh is used");
    const seat = before ?? { chosen: [], position: -1, counts: noCounts() };
    this.#seats.set(choices.seats[entry], seat);
    const follows = fresh || !looksBack(mode) || batch.positions[row] <= seat.position + 1;
    expect(follows, `seat ${choices.seats[entry]} missed the query of a row`);
    seat.position = batch.positions[endRow - 1];
    if ((flags & choiceFlags.watch) !== 0) return;
    if ((flags & choiceFlags.stale) !== 0) seat.chosen = [];
    this.#choose(batch, choices, entry, seat);
  }

  #choose(batch: Batch, choices: Choices, entry: number, seat: Seat): void {
    const piece = choices.pieces[entry];
    const row = batch.pieceRows[piece];
    const [tokenId, position] = [batch.tokenIds[row], batch.positions[row]];
    const tokens = this.#tokensOf(choices, entry);
    const forced = tokens.flatMap((token, number) => (token.forced ? [number] : []));
    const candidates = tokens.flatMap((token, number) => (token.forced ? [] : [number]));
    const scores = candidates.map((number) => {
      const { slot, position: at } = tokens[number];
      expect(this.#slots.written[slot] !== 0, `slot ${slot} is chosen from before it is written`);
      return fakeScore(tokenId, position, this.#slots.states[slot], position - at);
    });
    const chosen = greatestScores(scores, choices.tokens[entry]).map((index) => candidates[index]);
    const segment = batch.pieceSegments[piece];
    expect(batch.segmentTokenCounts[segment] === forced.length + chosen.length, "the buffer has another length");
    const slotOf = this.#bufferSlots(batch, segment);
    for (const [place, number] of forced.entries()) this.#copy(tokens[number], slotOf(place));
    seat.counts.lists += 1;
    seat.counts.chosen += 1;
    const kept = new Set(seat.chosen.filter((number) => chosen.includes(number)));
    const added = chosen.filter((number) => !kept.has(number));
    for (const [place, number] of Array.from({ length: chosen.length }, (_, i) => [i, seat.chosen[i]] as const)) {
      const slot = slotOf(forced.length + place);
      if (number !== undefined && kept.has(number)) {
        this.#assertHolds(slot, tokens[number]);
        continue;
      }
      const next = added.shift();
      expect(next !== undefined, "a place of the buffer stays empty");
      seat.chosen[place] = next;
      seat.counts.changed += 1;
      this.#copy(tokens[next], slot);
    }
  }

  /** All tokens of an entry's segments, by their numbers. */
  #tokensOf(choices: Choices, entry: number): Candidate[] {
    const tokens: Candidate[] = [];
    for (let segment = choices.segments[entry]; segment < choices.segments[entry + 1]; segment++) {
      const first = choices.segmentFirstTokens[segment];
      const offset = choices.segmentOffsets[segment];
      for (let i = 0; i < choices.segmentTokenCounts[segment]; i++) {
        const block =
          choices.blockIds[choices.segmentBlockStarts[segment] + Math.floor((first + i) / this.#blockTokens)];
        const slot = block * this.#blockTokens + ((first + i) % this.#blockTokens);
        const position = this.#slots.positions[slot] + offset;
        tokens.push({ slot, position, offset, forced: i < choices.segmentForced[segment] });
      }
    }
    return tokens;
  }

  #bufferSlots(batch: Batch, segment: number): (place: number) => number {
    const start = batch.segmentBlockStarts[segment];
    return (place) =>
      batch.blockIds[start + Math.floor(place / this.#blockTokens)] * this.#blockTokens + (place % this.#blockTokens);
  }

  #copy({ slot, position }: Candidate, target: number): void {
    const { states, tokenIds, positions, written } = this.#slots;
    states[target] = states[slot];
    tokenIds[target] = tokenIds[slot];
    positions[target] = position;
    written[target] = 1;
  }

  /** A token that is kept is not copied again, so it must be there as it is now. */
  #assertHolds(target: number, { slot, position }: Candidate): void {
    const { states, positions, written } = this.#slots;
    const holds = written[target] !== 0 && states[target] === states[slot] && positions[target] === position;
    expect(holds, `slot ${target} of a buffer does not hold what was copied there, or it was computed anew since`);
  }

  #check(batch: Batch, choices: Choices): void {
    const count = choices.pieces.length;
    const { seats, flags, modes, tokens, refreshSteps, leastCosines, segments } = choices;
    const lists = [seats, flags, modes, tokens, refreshSteps, leastCosines];
    expect(count > 0 && lists.every(({ length }) => length === count), "arrays of entries differ in length");
    expect(segments.length === count + 1 && segments[0] === 0, "segments do not begin at 0, or are of other entries");
    const segmentArrays = [choices.segmentBlockStarts, choices.segmentFirstTokens, choices.segmentTokenCounts];
    for (const array of [...segmentArrays, choices.segmentOffsets, choices.segmentForced]) {
      expect(array.length === segments[count], "arrays of segments differ in length");
    }
    expect(new Set(seats).size === count, "a seat is used twice");
    for (let entry = 0; entry < count; entry++) {
      const [piece, seat] = [choices.pieces[entry], seats[entry]];
      expect(piece >= 0 && piece + 1 < batch.pieceRows.length, "a piece is out of range");
      expect(entry === 0 || piece > choices.pieces[entry - 1], "pieces do not rise");
      expect(seat >= 0 && seat < this.#shape.seats, "a seat is out of range");
      expect(this.#shape.modes.includes(choiceModes[modes[entry]]), "a mode is not of the shape");
      if ((flags[entry] & choiceFlags.watch) !== 0) {
        expect(tokens[entry] === 0 && segments[entry] === segments[entry + 1], "what is watched chooses");
        continue;
      }
      const [first, end] = [batch.pieceSegments[piece], batch.pieceSegments[piece + 1]];
      expect(end - first === 2, "a row that chooses has other segments than buffer and tail");
      expect(batch.segmentFirstTokens[first] === 0 && batch.segmentOffsets[first] === 0, "the buffer stands elsewhere");
      expect(batch.segmentTokenCounts[first] <= this.#shape.listTokens, "the buffer is longer than lists");
      expect(tokens[entry] > 0, "nothing is to be chosen");
    }
  }
}
