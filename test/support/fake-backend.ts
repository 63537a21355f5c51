/**
 * A deterministic backend without a model, as an oracle for the engine. Like a transformer's KV, what it
 * stores for a token depends on everything that token saw:
 *
 *   state(t) = mix(token id, position, sum over visible u of mix(state(u), distance in the seer's positions))
 *   logits   = pseudo-random numbers from the last row's state
 *
 * Its layer 0 knows a token and its place alone. A copied token keeps the state it had where it was computed, and
 * its deviation is
 *
 *   deviation(t) = pseudo-random number from state(t), sum over visible u and t of mix(mix(token id, position), distance)
 *
 * With `relative` positions, as in a model with RoPE, only distances count: the token's own position is 0 in both.
 *
 * It reads only its own slots through the batch's block tables. So a wrong block, a stale block, a wrong
 * offset or a wrong visibility changes the output, there and in every token after. The sum makes the order of
 * segments irrelevant, as in attention.
 */

import type {
  Backend,
  BackendShape,
  BlockMover,
  FetchedBlocks,
  FilledBlock,
  HostBlocks,
} from "../../worker/backend/backend.ts";
import type { Batch, TokenCopies } from "../../worker/contract/batch.ts";
import type { ChoiceCounts } from "../../worker/contract/sparse.ts";
import { FakeChoices } from "./fake-choices.ts";
import { mix } from "./hash.ts";

export const fakeShape: BackendShape = {
  vocabSize: 97,
  contextTokens: 256,
  blockTokens: 4,
  blockCount: 8,
  kvBytesPerBlock: 4 * 8,
};

/** What a token's KV comes to, given the sum over what it sees of `seenTerm`. */
export function tokenState(tokenId: number, position: number, seenSum: number): number {
  return mix(mix(tokenId, position), seenSum);
}

export function seenTerm(state: number, distance: number): number {
  return mix(state, distance ^ 0x5bd1e995);
}

/** Logit of a token id in a row of this state, in [-4, 4). */
export function fakeLogit(state: number, tokenId: number): number {
  return mix(state, tokenId + 0x1234567) / 536_870_912 - 4;
}

/** How far a token is off that holds `state` where it sees these sums of `seenTerm` in layer 0; in [0, 1). */
export function fakeDeviation(state: number, seenSum: number): number {
  return mix(state, seenSum) / 2 ** 32;
}

export interface FakeOptions {
  /** Whatever is stored can stand anywhere, when its position is moved along (`copyTokens`). */
  readonly relative?: boolean;
  /** Blocks that memory of a host beside it holds. */
  readonly hostSlots?: number;
}

/** Copies take some rounds of the event loop, each another number of them, and touch their slots as late as they may. */
export class FakeHostBlocks implements HostBlocks {
  readonly format;
  readonly slots: readonly Uint8Array[];
  readonly pace = { copiesAtOnce: 2, blocksPerCopy: 3 };
  readonly paceBesideDecodes = { copiesAtOnce: 1, blocksPerCopy: 2 };
  /** Copies in each direction that are under way. */
  underWay = { store: 0, fetch: 0 };
  readonly #mover: BlockMover;
  #calls = 0;

  constructor(mover: BlockMover, slotCount: number) {
    this.#mover = mover;
    this.format = mover.format;
    this.slots = Array.from({ length: slotCount }, () => new Uint8Array(mover.format.bytes).fill(0xee));
  }

  async store(blocks: readonly FilledBlock[], slots: readonly number[]): Promise<void> {
    this.#begin("store", blocks.length);
    const packed = blocks.map(({ blockId, tokenCount }) => {
      const out = new Uint8Array(this.format.bytes);
      this.#mover.pack(blockId, tokenCount, out);
      return out;
    });
    await this.#wait();
    for (const [index, slot] of slots.entries()) this.slots[slot].set(packed[index]);
    this.underWay.store -= 1;
  }

  async fetch(slots: readonly number[]): Promise<FetchedBlocks> {
    this.#begin("fetch", slots.length);
    await this.#wait();
    const packed = slots.map((slot) => this.slots[slot].slice());
    return {
      place: (blockIds) => {
        this.underWay.fetch -= 1;
        if (blockIds.length !== slots.length) throw new RangeError(`${blockIds.length} places of ${slots.length}`);
        for (const [index, blockId] of blockIds.entries()) {
          if (blockId !== undefined) this.#mover.unpack(blockId, packed[index]);
        }
      },
    };
  }

  #begin(direction: "store" | "fetch", count: number): void {
    if (count < 1 || count > this.pace.blocksPerCopy) throw new RangeError(`a copy of ${count} blocks`);
    if (++this.underWay[direction] > this.pace.copiesAtOnce) throw new RangeError("too many copies are under way");
  }

  async #wait(): Promise<void> {
    this.#calls += 1;
    for (let rounds = mix(this.#calls, 7) % 5; rounds >= 0; rounds--) {
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }
}

export class FakeBackend implements Backend {
  readonly name = "fake";
  readonly shape: BackendShape;
  /** Calls of `forward` so far, and rows in them. */
  stepCount = 0;
  rowCount = 0;
  readonly #states: Uint32Array;
  readonly #tokenIds: Int32Array;
  readonly #positions: Int32Array;
  /** Whether a slot holds a state: false before the first write, and from a step's begin until it writes the slot. */
  readonly #written: Uint8Array;
  /** The same of layer 0 alone: a probe writes its token ids and positions, and no state. */
  readonly #probed: Uint8Array;
  readonly mover: BlockMover;
  readonly hostBlocks: HostBlocks | undefined;
  readonly #onForward: ((batch: Batch) => void | Promise<void>) | undefined;
  readonly #relative: boolean;
  readonly #choices: FakeChoices | undefined;
  #logits = new Float32Array(0);

  /** @param onForward called before a step computes; a throw is the step's failure. */
  constructor(
    shape: Partial<BackendShape> = {},
    onForward?: (batch: Batch) => void | Promise<void>,
    { relative = false, hostSlots = 0 }: FakeOptions = {},
  ) {
    this.shape = { ...fakeShape, ...shape };
    const slotCount = this.shape.blockCount * this.shape.blockTokens;
    this.#states = new Uint32Array(slotCount);
    this.#tokenIds = new Int32Array(slotCount);
    this.#positions = new Int32Array(slotCount);
    this.#written = new Uint8Array(slotCount);
    this.#probed = new Uint8Array(slotCount);
    this.mover = this.#moverOf(this.shape.blockTokens);
    if (hostSlots > 0) this.hostBlocks = new FakeHostBlocks(this.mover, hostSlots);
    this.#onForward = onForward;
    this.#relative = relative;
    const { sparse, blockTokens } = this.shape;
    if (sparse !== undefined) {
      const slots = { states: this.#states, tokenIds: this.#tokenIds, positions: this.#positions };
      this.#choices = new FakeChoices(sparse, blockTokens, { ...slots, written: this.#written });
    }
  }

  /** Whether the slot has this token at this position. */
  protected holds(slot: number, tokenId: number, position: number): boolean {
    return this.#written[slot] !== 0 && this.#tokenIds[slot] === tokenId && this.#positions[slot] === position;
  }

  choiceCounts(seat: number): ChoiceCounts {
    if (this.#choices === undefined) throw new Error("counts of choices are asked for, and there are none");
    return this.#choices.counts(seat);
  }

  /** What is stored of the tokens of a block: their ids, positions and states. For tests. */
  contentOf(blockId: number): { tokenIds: number[]; positions: number[]; states: number[] } {
    const { blockTokens } = this.shape;
    const of = (array: ArrayLike<number>): number[] =>
      Array.from({ length: blockTokens }, (_, i) => array[blockId * blockTokens + i]);
    return { tokenIds: of(this.#tokenIds), positions: of(this.#positions), states: of(this.#states) };
  }

  async forward(batch: Batch): Promise<Float32Array> {
    await this.#onForward?.(batch);
    this.stepCount += 1;
    this.rowCount += batch.tokenIds.length;
    checkBatch(batch, this.shape);
    for (const slot of batch.slots) {
      this.#written[slot] = 0;
      this.#probed[slot] = 0;
    }
    if (this.#choices === undefined && batch.choices !== undefined) throw new Error("choices without shape.sparse");
    this.#choices?.run(batch);
    forEachRow(batch, (row, segments) => this.#computeRow(batch, row, segments));
    const { vocabSize } = this.shape;
    const needed = batch.logitRows.length * vocabSize;
    if (this.#logits.length < needed) this.#logits = new Float32Array(2 * needed);
    batch.logitRows.forEach((row, at) => {
      const state = this.#states[batch.slots[row]];
      for (let id = 0; id < vocabSize; id++) this.#logits[at * vocabSize + id] = fakeLogit(state, id);
    });
    return this.#logits.subarray(0, needed);
  }

  async copyTokens({ sourceSlots, targetSlots, deltas }: TokenCopies): Promise<void> {
    const targets = new Set(targetSlots);
    if (targets.size !== targetSlots.length) throw new Error("a slot is copied to twice");
    sourceSlots.forEach((source, i) => {
      const target = targetSlots[i];
      if (source !== target && targets.has(source)) throw new Error(`slot ${source} is copied from and to`);
      if (this.#written[source] === 0) throw new Error(`slot ${source} is copied before it is written`);
      this.#states[target] = this.#states[source];
      this.#place(target, this.#tokenIds[source], this.#positions[source] + deltas[i]);
      this.#written[target] = 1;
    });
  }

  async deviations(batch: Batch): Promise<Float32Array> {
    await this.#onForward?.(batch);
    checkBatch(batch, this.shape);
    const deviations = new Float32Array(batch.tokenIds.length);
    for (const [row, slot] of batch.slots.entries()) this.#place(slot, batch.tokenIds[row], batch.positions[row]);
    forEachRow(batch, (row, segments) => {
      let sum = seenTerm(mix(batch.tokenIds[row], this.#ownPosition(batch.positions[row])), 0);
      for (const { index, tokenCount } of segments) {
        sum += this.#sumSegment(batch, index, tokenCount, batch.positions[row], this.#probed, (slot) =>
          mix(this.#tokenIds[slot], this.#ownPosition(this.#positions[slot])),
        );
      }
      deviations[row] = fakeDeviation(this.#states[batch.slots[row]], sum | 0);
    });
    return deviations;
  }

  async dispose(): Promise<void> {
    // There is no device memory to free.
  }

  /** A packed block: state, token id and position of each slot. */
  #moverOf(blockTokens: number): BlockMover {
    const arrays = [this.#states, this.#tokenIds, this.#positions];
    const format = {
      name: "fake",
      bytes: 12 * blockTokens,
      layers: 3,
      kvHeads: 1,
      headDim: 1,
      layout: 0,
      element: 3,
      codec: 0,
    };
    return {
      format,
      pack: (blockId, tokenCount, out) => {
        const words = new Int32Array(3 * blockTokens);
        arrays.forEach((array, index) => {
          const first = blockId * blockTokens;
          words.set(Int32Array.from(array.subarray(first, first + tokenCount)), index * blockTokens);
        });
        out.set(new Uint8Array(words.buffer));
      },
      unpack: (blockId, packed) => {
        const words = new Int32Array(packed.slice().buffer);
        arrays.forEach((array, index) => {
          array.set(words.subarray(index * blockTokens, (index + 1) * blockTokens), blockId * blockTokens);
        });
        this.#written.fill(1, blockId * blockTokens, (blockId + 1) * blockTokens);
        this.#probed.fill(1, blockId * blockTokens, (blockId + 1) * blockTokens);
      },
    };
  }

  #ownPosition(position: number): number {
    return this.#relative ? 0 : position;
  }

  #place(slot: number, tokenId: number, position: number): void {
    this.#tokenIds[slot] = tokenId;
    this.#positions[slot] = position;
    this.#probed[slot] = 1;
  }

  #computeRow(batch: Batch, row: number, segments: readonly SeenSegment[]): void {
    const position = batch.positions[row];
    let sum = 0;
    for (const { index, tokenCount } of segments) {
      sum += this.#sumSegment(batch, index, tokenCount, position, this.#written, (slot) => this.#states[slot]);
    }
    const slot = batch.slots[row];
    this.#states[slot] = tokenState(batch.tokenIds[row], this.#ownPosition(position), sum | 0);
    this.#place(slot, batch.tokenIds[row], position);
    this.#written[slot] = 1;
  }

  /** Sum over a segment's tokens of what a row at `position` sees of them; `there` says which slots may be read. */
  #sumSegment(
    batch: Batch,
    segment: number,
    tokenCount: number,
    position: number,
    there: Uint8Array,
    stateOf: (slot: number) => number,
  ): number {
    const { blockTokens } = this.shape;
    const offsetPosition = position - batch.segmentOffsets[segment];
    const end = batch.segmentFirstTokens[segment] + tokenCount;
    let block = batch.segmentBlockStarts[segment];
    let sum = 0;
    for (let token = batch.segmentFirstTokens[segment]; token < end; block++) {
      const firstSlot = batch.blockIds[block] * blockTokens;
      const endSlot = firstSlot + Math.min(blockTokens, (token % blockTokens) + end - token);
      for (let slot = firstSlot + (token % blockTokens); slot < endSlot; slot++, token++) {
        if (there[slot] === 0) throw new Error(`slot ${slot} is read before it is written`);
        sum = (sum + seenTerm(stateOf(slot), offsetPosition - this.#positions[slot])) | 0;
      }
    }
    return sum;
  }
}

/** What a row sees of a segment. Its own token is the last of its own run; it is the one being written. */
interface SeenSegment {
  readonly index: number;
  readonly tokenCount: number;
}

function forEachRow(batch: Batch, visit: (row: number, segments: readonly SeenSegment[]) => void): void {
  for (let piece = 0; piece + 1 < batch.pieceRows.length; piece++) {
    const ownSegment = batch.pieceSegments[piece + 1] - 1;
    const seen: SeenSegment[] = [];
    for (let index = batch.pieceSegments[piece]; index < ownSegment; index++) {
      seen.push({ index, tokenCount: batch.segmentTokenCounts[index] });
    }
    const endRow = batch.pieceRows[piece + 1];
    for (let row = batch.pieceRows[piece]; row < endRow; row++) {
      const before = batch.segmentTokenCounts[ownSegment] - (endRow - row);
      visit(row, [...seen, { index: ownSegment, tokenCount: before }]);
    }
  }
}

/** Throws when the arrays contradict each other or the shape. */
function checkBatch(batch: Batch, shape: BackendShape): void {
  const rowCount = batch.tokenIds.length;
  const pieceCount = batch.pieceRows.length - 1;
  const segmentCount = batch.segmentOffsets.length;
  const expect = (holds: boolean, text: string): void => {
    if (!holds) throw new Error(`bad batch: ${text}`);
  };
  expect(rowCount > 0 && pieceCount > 0, "it is empty");
  expect(batch.positions.length === rowCount && batch.slots.length === rowCount, "row arrays differ in length");
  expect(batch.pieceRows[pieceCount] === rowCount, "the pieces do not end with the last row");
  expect(batch.pieceSegments.length === pieceCount + 1, "piece arrays differ in length");
  expect(batch.pieceSegments[pieceCount] === segmentCount, "the pieces do not end with the last segment");
  for (let piece = 0; piece < pieceCount; piece++) {
    expect(batch.pieceRows[piece] < batch.pieceRows[piece + 1], `piece ${piece} has no row`);
    expect(batch.pieceSegments[piece] < batch.pieceSegments[piece + 1], `piece ${piece} has no segment`);
  }
  for (let segment = 0; segment < segmentCount; segment++) {
    const first = batch.segmentFirstTokens[segment];
    const end = first + batch.segmentTokenCounts[segment];
    expect(first >= 0 && first < shape.blockTokens && end > first, `segment ${segment} has a bad range`);
    const lastBlock = batch.segmentBlockStarts[segment] + Math.ceil(end / shape.blockTokens);
    expect(lastBlock <= batch.blockIds.length, `segment ${segment} has too few blocks`);
  }
  const inRange = (values: Int32Array, end: number): boolean => values.every((value) => value >= 0 && value < end);
  expect(inRange(batch.blockIds, shape.blockCount), "a block id is out of range");
  expect(inRange(batch.tokenIds, shape.vocabSize), "a token id is out of range");
  expect(inRange(batch.positions, shape.contextTokens), "a position is out of range");
  expect(inRange(batch.slots, shape.blockCount * shape.blockTokens), "a slot is out of range");
  expect(new Set(batch.slots).size === rowCount, "a slot is written twice");
  expect(inRange(batch.logitRows, rowCount), "a logit row is out of range");
  expect(
    batch.logitRows.every((row, at) => at === 0 || row > batch.logitRows[at - 1]),
    "logit rows do not rise",
  );
}
