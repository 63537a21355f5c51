/** Runs a planned step by calls of the backend. */
import type { Backend, BegunStep } from "../backend/backend.ts";
import type { Batch, TokenCopies } from "../contract/batch.ts";
import { type BlockMove, launchCopies, planRelocation } from "../relocation/plan.ts";
import { type SampledToken, type SampleRequest, Sampler } from "../sample/sampler.ts";
import { BatchBuilder, tokenCopies } from "./batch.ts";
import { type Draw, StepInFlight, type StepResult } from "./in-flight.ts";
import type { StepPlan } from "./step.ts";

const nothing = new Float32Array(0);
/** Tokens of one launch of moves. */
const launchTokens = 8_192;

/** The calls that a plan asks for. A batch without rows is not called. */
interface StepCalls {
  readonly batch: Batch;
  /** One for each of the batch's logit rows. */
  readonly requests: readonly SampleRequest[];
  readonly probeBatch: Batch;
  /** In order: moves of blocks, then the copies of blended runs. */
  readonly copies: readonly TokenCopies[];
}

export class StepRunner {
  /** Steps that ran, and rows that went through all layers in them. */
  steps = 0;
  computedTokens = 0;
  readonly #backend: Backend;
  readonly #sampler: Sampler;
  readonly #batches: BatchBuilder;
  readonly #probeBatches: BatchBuilder;

  constructor(backend: Backend) {
    this.#backend = backend;
    this.#sampler = new Sampler(backend.shape.vocabSize);
    this.#batches = new BatchBuilder(backend.shape.blockTokens);
    this.#probeBatches = new BatchBuilder(backend.shape.blockTokens);
  }

  /** Begins a step and reads all it needs from the runs now. Throws nothing: an error comes as the step's result. */
  begin(plan: StepPlan): StepInFlight {
    try {
      const calls = this.#callsOf(plan);
      if (this.#backend.beginStep === undefined || !isOneCall(plan)) {
        return new StepInFlight(plan, () => this.#run(calls), false);
      }
      const { batch, requests } = calls;
      const begun = this.#backend.beginStep(batch, requests);
      const [rowCount, drawCount] = [batch.tokenIds.length, requests.length];
      return new StepInFlight(plan, () => this.#resultOf(begun, rowCount, drawCount), begun.drawsOnDevice);
    } catch (error) {
      return new StepInFlight(plan, () => Promise.reject(error), false);
    }
  }

  #callsOf({ pieces, probes, copies, moves }: StepPlan): StepCalls {
    const batch = this.#batches.build(pieces);
    const probeBatch = this.#probeBatches.build(probes);
    const drawn = pieces.filter((piece) => piece.wantsLogits);
    return {
      batch,
      requests: drawn.map(({ request }) => request.sampleRequest),
      probeBatch,
      copies: [...this.#launchesOf(moves), tokenCopies(copies)],
    };
  }

  #launchesOf(moves: readonly BlockMove[]): TokenCopies[] {
    const { blockTokens } = this.#backend.shape;
    const launches = planRelocation(moves, launchTokens);
    return launches.map((launch) => launchCopies(launch, blockTokens));
  }

  /** @throws the backend's error, or Error when its answer has the wrong size */
  async #run({ batch, requests, probeBatch, copies }: StepCalls): Promise<StepResult> {
    const [batchRows, probeRows] = [batch.tokenIds.length, probeBatch.tokenIds.length];
    for (const launch of copies) if (launch.sourceSlots.length > 0) await this.#backend.copyTokens(launch);
    const deviations = probeRows === 0 ? nothing : await this.#backend.deviations(probeBatch);
    const draws = batchRows === 0 ? [] : await this.#forwardAndDraw(batch, requests);
    if (deviations.length !== probeRows) {
      throw new Error(`${deviations.length} deviations came back, not ${probeRows}`);
    }
    if (batchRows > 0) this.#count(batchRows);
    return { draws, deviations };
  }

  async #resultOf(begun: BegunStep, rowCount: number, drawCount: number): Promise<StepResult> {
    const draws = drawsOf(await begun.tokens(), drawCount);
    this.#count(rowCount);
    return { draws, deviations: nothing };
  }

  #count(rowCount: number): void {
    this.steps += 1;
    this.computedTokens += rowCount;
  }

  async #forwardAndDraw(batch: Batch, requests: readonly SampleRequest[]): Promise<Draw[]> {
    // A step of prompts that go on draws nothing, so `forward` is enough.
    if (this.#backend.sampleStep === undefined || requests.length === 0) {
      return this.#drawOnHost(await this.#backend.forward(batch), requests);
    }
    return drawsOf(await this.#backend.sampleStep(batch, requests), requests.length);
  }

  #drawOnHost(logits: Float32Array, requests: readonly SampleRequest[]): Draw[] {
    const { vocabSize } = this.#backend.shape;
    const expected = requests.length * vocabSize;
    if (logits.length !== expected) throw new Error(`${logits.length} logits came back, not ${expected}`);
    const greatest = this.#backend.greatestLogits?.(requests.length);
    return requests.map((request, row) => {
      try {
        return this.#sampler.sample(logits.subarray(row * vocabSize, (row + 1) * vocabSize), request, greatest?.[row]);
      } catch (error) {
        if (error instanceof RangeError) return error;
        throw error;
      }
    });
  }
}

/** Whether the step is a single call of the backend, so that it can begin without waiting. */
function isOneCall({ pieces, probes, copies, moves }: StepPlan): boolean {
  return pieces.length > 0 && probes.length + copies.length + moves.length === 0;
}

/** @throws Error when there are not as many as were asked for */
function drawsOf(tokens: readonly (SampledToken | undefined)[], expected: number): Draw[] {
  if (tokens.length !== expected) throw new Error(`${tokens.length} tokens came back, not ${expected}`);
  return tokens.map((token) => token ?? new RangeError("a logit is NaN, or none is finite"));
}
