/**
 * The fake backend as a device: it draws tokens where its logits are, and takes a step while one is in flight. A step is
 * computed when its answer is waited for, so late that whatever the host does too early shows:
 *
 *   a block that is given to a run while a step in flight has it for another one is a fault (`faults`)
 *   a name of a token that the step before does not draw is one too, and one in a row whose draw depends on that token
 */

import type { BackendShape, BegunStep } from "../../worker/backend/backend.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import { type SampledToken, type SampleRequest, Sampler } from "../../worker/sample/sampler.ts";
import { FakeBackend, type FakeOptions } from "./fake-backend.ts";

type Draws = readonly (SampledToken | undefined)[];

interface FakeStep {
  readonly batch: Batch;
  readonly requests: readonly SampleRequest[];
}

export interface FakeDeviceOptions extends FakeOptions {
  readonly shape?: Partial<BackendShape>;
  /** Called before a step computes; a throw is the step's failure. */
  readonly onForward?: (batch: Batch) => void | Promise<void>;
  /** Called when a step begins; a throw refuses it. */
  readonly onBegin?: (batch: Batch) => void;
}

export class FakeDevice extends FakeBackend {
  /** What a device could not have known, and would have computed wrongly. */
  readonly faults: string[] = [];
  /** Steps that began while another was in flight, and rows of them whose token was not known. */
  stepsAhead = 0;
  namedRows = 0;
  /** Changes what is drawn. */
  spoil: (draws: Draws) => Draws = (draws) => draws;
  readonly #sampler = new Sampler(this.shape.vocabSize);
  readonly #onBegin: ((batch: Batch) => void) | undefined;
  readonly #inFlight: FakeStep[] = [];
  /** Of the step that began last, whose draws may be named; and the draws of the one that computed last. */
  #namedDraws = 0;
  #draws: Draws = [];

  constructor({ shape, onForward, onBegin, ...options }: FakeDeviceOptions = {}) {
    super(shape, onForward, options);
    this.#onBegin = onBegin;
  }

  beginStep(batch: Batch, requests: readonly SampleRequest[]): BegunStep {
    this.#onBegin?.(batch);
    const step = { batch: structuredClone(batch), requests };
    if (requests.length !== batch.logitRows.length) this.#fault(`${requests.length} draws of other rows`);
    if (this.#inFlight.length > 1) this.#fault("three steps are in flight");
    const named = batch.tokenIds.filter((tokenId) => tokenId < 0);
    for (const name of named) if (-1 - name >= this.#namedDraws) this.#fault(`token ${name} is of no draw`);
    for (const [at, row] of batch.logitRows.entries()) {
      const dependent = requests[at]?.constraint !== undefined || requests[at]?.history !== undefined;
      if (dependent && batch.tokenIds[row] < 0) this.#fault("a draw depends on a token that is not known");
    }
    for (const before of this.#inFlight) this.#checkBlocks(before.batch, batch);
    this.stepsAhead += this.#inFlight.length;
    this.namedRows += named.length;
    this.#namedDraws = requests.length;
    this.#inFlight.push(step);
    return { drawsOnDevice: true, tokens: () => this.#compute(step) };
  }

  override forward(batch: Batch): Promise<Float32Array> {
    if (this.#inFlight.length > 0) this.#fault("forward is called while a step is in flight");
    return super.forward(batch);
  }

  override copyTokens(...[copies]: Parameters<FakeBackend["copyTokens"]>): Promise<void> {
    if (this.#inFlight.length > 0) this.#fault("tokens are copied while a step is in flight");
    return super.copyTokens(copies);
  }

  override deviations(batch: Batch): Promise<Float32Array> {
    if (this.#inFlight.length > 0) this.#fault("a probe runs while a step is in flight");
    return super.deviations(batch);
  }

  async #compute(step: FakeStep): Promise<Draws> {
    if (this.#inFlight[0] !== step) this.#fault("steps are waited for in another order than they began");
    const { batch, requests } = step;
    try {
      // A row that failed reads some token; nobody asks what came of it.
      const tokenIds = batch.tokenIds.map((id) => (id < 0 ? (this.#draws[-1 - id]?.tokenId ?? 0) : id));
      const logits = await super.forward({ ...batch, tokenIds });
      const { vocabSize } = this.shape;
      const rowOf = (row: number) => logits.subarray(row * vocabSize, (row + 1) * vocabSize);
      this.#draws = this.spoil(requests.map((request, row) => this.#sampler.sample(rowOf(row), request)));
      return this.#draws;
    } finally {
      this.#inFlight.splice(this.#inFlight.indexOf(step), 1);
    }
  }

  /**
   * A run writes a block that it was given from the block's first slot on. Of a step in flight no other run may have it:
   * only the same one, whose last token turned out to be another, writes its first slot again, or one that computes its
   * tokens anew. A buffer that is filled is of the seat that has it in the step in flight, if any has.
   */
  #checkBlocks(before: Batch, batch: Batch): void {
    const { blockTokens } = this.shape;
    const inUse = readBlocks(before, blockTokens);
    const positions = new Map(Array.from(before.slots, (slot, row) => [slot, before.positions[row]]));
    batch.slots.forEach((slot, row) => {
      if (slot % blockTokens !== 0 || !inUse.has(slot / blockTokens)) return;
      const again = positions.get(slot) === batch.positions[row] && !positions.has(slot + 1);
      if (!again && !this.holds(slot, batch.tokenIds[row], batch.positions[row]))
        this.#fault(`block ${slot / blockTokens} is given away while a step in flight has it`);
    });
    const seats = buffersOf(before);
    for (const [block, seat] of buffersOf(batch)) {
      if (inUse.has(block) && seats.get(block) !== seat)
        this.#fault(`block ${block} of a buffer is in a step in flight`);
    }
  }

  #fault(text: string): void {
    this.faults.push(text);
  }
}

/** Blocks that a step reads or writes. */
function readBlocks(batch: Batch, blockTokens: number): ReadonlySet<number> {
  const blocks = new Set<number>();
  for (const [segment, start] of batch.segmentBlockStarts.entries()) {
    const tokens = batch.segmentFirstTokens[segment] + batch.segmentTokenCounts[segment];
    for (const block of batch.blockIds.subarray(start, start + Math.ceil(tokens / blockTokens))) blocks.add(block);
  }
  for (const block of batch.choices?.blockIds ?? []) blocks.add(block);
  return blocks;
}

/** Blocks of buffers, and whose they are. */
function buffersOf({ choices, pieceSegments, segmentBlockStarts, blockIds }: Batch): Map<number, number> {
  const seats = new Map<number, number>();
  for (const [entry, piece] of (choices?.pieces ?? []).entries()) {
    if (choices === undefined || choices.tokens[entry] === 0) continue;
    const [start, end] = [0, 1].map((segment) => segmentBlockStarts[pieceSegments[piece] + segment]);
    for (const block of blockIds.subarray(start, end)) seats.set(block, choices.seats[entry]);
  }
  return seats;
}
