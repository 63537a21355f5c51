/**
 * What a step's rows choose from, as the words that kernels/cuda/sparse/choice_plan.cuh describes. Indices count from the
 * start of the step's buffer, as those of attention plans do (staging.ts).
 *
 *   head | entries | units | segments | block ids
 */
import type { Batch, Choices } from "../../../contract/batch.ts";
import { choiceFlags } from "../../../contract/sparse.ts";

/** A unit has at most so many tokens (kUnitTokens). */
export const unitTokens = 256;
/** Scores of a row begin at multiples of so many (choose_tokens.cu reads them so). */
const scoreAlignment = 8;
const [headWords, entryWords, unitWords, segmentWords] = [8, 16, 8, 4];

/** What a step's choices take. */
export interface ChoiceSizes {
  readonly entries: number;
  readonly units: number;
  /** Places for scores, of each query head. */
  readonly scoreTokens: number;
  /** What one row chooses from, the most of all. */
  readonly mostCandidates: number;
  /** Of all parts of the encoding together. */
  readonly words: number;
}

export const noChoices: ChoiceSizes = { entries: 0, units: 0, scoreTokens: 0, mostCandidates: 0, words: 0 };

export function choiceSizes(choices: Choices | undefined): ChoiceSizes {
  if (choices === undefined) return noChoices;
  const entries = choices.pieces.length;
  let [units, scoreTokens, mostCandidates] = [0, 0, 0];
  for (let entry = 0; entry < entries; entry++) {
    let candidates = 0;
    for (let s = choices.segments[entry]; s < choices.segments[entry + 1]; s++) {
      candidates += choices.segmentTokenCounts[s];
      units += Math.ceil(choices.segmentTokenCounts[s] / unitTokens);
    }
    scoreTokens += aligned(candidates);
    mostCandidates = Math.max(mostCandidates, candidates);
  }
  const segments = choices.segmentOffsets.length;
  return {
    entries,
    units,
    scoreTokens,
    mostCandidates,
    words: choiceWords({ entries, units, segments }, choices.blockIds.length),
  };
}

/** Words of the encoding of so many of each. */
export const choiceWords = (
  counts: Readonly<Record<"entries" | "units" | "segments", number>>,
  blockIds: number,
): number =>
  headWords + entryWords * counts.entries + unitWords * counts.units + segmentWords * counts.segments + blockIds;

const aligned = (tokens: number): number => Math.ceil(tokens / scoreAlignment) * scoreAlignment;

/**
 * Writes the choices of a step from word `at` on, a multiple of 8.
 * @param blockIds where the batch's own block ids begin, in which tails are
 */
export function putChoices(words: Int32Array, batch: Batch, choices: Choices, at: number, blockIds: number): void {
  const { entries, units } = choiceSizes(choices);
  const entriesAt = at + headWords;
  const unitsAt = entriesAt + entryWords * entries;
  const segmentsAt = unitsAt + unitWords * units;
  const ownIds = segmentsAt + segmentWords * choices.segmentOffsets.length;
  words.set([entries, entriesAt, units, unitsAt], at);
  words.set(choices.blockIds, ownIds);
  const done = { unit: 0, scoreTokens: 0 };
  for (let entry = 0; entry < entries; entry++) {
    const firstUnit = done.unit;
    const [first, end] = [choices.segments[entry], choices.segments[entry + 1]];
    const { candidates, forced } = putSegments(words, choices, entry, { unitsAt, segmentsAt, ownIds }, done);
    const piece = choices.pieces[entry];
    const row = batch.pieceRows[piece];
    const tail = batch.pieceSegments[piece + 1] - 1;
    const take = forced + Math.min(choices.tokens[entry], candidates - forced);
    const isFresh = (choices.flags[entry] & choiceFlags.fresh) === 0 ? 0 : 1;
    const stride = aligned(candidates);
    words.set(
      [
        ...[row, batch.positions[row], choices.seats[entry], isFresh, take, candidates, done.scoreTokens, stride],
        ...[firstUnit, done.unit - firstUnit, segmentsAt + segmentWords * first, end - first],
        ...[blockIds + batch.segmentBlockStarts[tail], batch.segmentFirstTokens[tail]],
        ...[batch.segmentTokenCounts[tail], batch.segmentOffsets[tail]],
      ],
      entriesAt + entryWords * entry,
    );
    done.scoreTokens += stride;
  }
}

interface Places {
  readonly unitsAt: number;
  readonly segmentsAt: number;
  readonly ownIds: number;
}

/** The segments of an entry, and their units. @returns how many tokens they have, and how many of these are forced */
function putSegments(words: Int32Array, choices: Choices, entry: number, places: Places, done: { unit: number }) {
  const { unitsAt, segmentsAt, ownIds } = places;
  let [number, allForced] = [0, 0];
  for (let s = choices.segments[entry]; s < choices.segments[entry + 1]; s++) {
    const [firstToken, tokens] = [choices.segmentFirstTokens[s], choices.segmentTokenCounts[s]];
    const [offset, forced] = [choices.segmentOffsets[s], choices.segmentForced[s]];
    const ids = ownIds + choices.segmentBlockStarts[s];
    words.set([number, ids, firstToken, offset], segmentsAt + segmentWords * s);
    for (let start = 0; start < tokens; start += unitTokens) {
      const count = Math.min(unitTokens, tokens - start);
      const ownForced = Math.max(0, forced - start);
      const unit = [entry, number + start, count, ids, firstToken + start, offset, ownForced, 0];
      words.set(unit, unitsAt + unitWords * done.unit);
      done.unit += 1;
    }
    number += tokens;
    allForced += forced;
  }
  return { candidates: number, forced: allForced };
}

/** The step as an attention plan is made for it: rows that choose have a kernel of their own, and read nothing here. */
export function withoutChosen(batch: Batch): Batch {
  const { choices } = batch;
  if (choices === undefined) return batch;
  const segmentTokenCounts = batch.segmentTokenCounts.slice();
  for (const piece of choices.pieces) {
    segmentTokenCounts.fill(0, batch.pieceSegments[piece], batch.pieceSegments[piece + 1]);
  }
  return { ...batch, segmentTokenCounts };
}
