/** A planned step as the backend's calls. */
import type { Backend, Batch } from "../backend/backend.ts";
import { type SampledToken, type SampleRequest, Sampler } from "../sample/sampler.ts";
import { BatchBuilder } from "./batch.ts";
import { tokenCopies } from "./blend.ts";
import type { Piece, StepPlan } from "./step.ts";

/** What came of a row that wants logits: a token, or why none could be drawn. */
export type Draw = SampledToken | Error;

export interface StepResult {
  /** One of each piece that wants logits, in their order. */
  readonly draws: readonly Draw[];
  /** [rows of all probes], the backend's own and valid until the next step */
  readonly deviations: Float32Array;
}

export interface StepRunnerOptions {
  /** Draws tokens on the host even when the backend could: the plain path, for comparison. */
  readonly hostSampling?: boolean;
}

const nothing = new Float32Array(0);

export class StepRunner {
  /** Steps that ran, and rows that went through all layers in them. */
  steps = 0;
  computedTokens = 0;
  private readonly backend: Backend;
  private readonly hostSampling: boolean;
  private readonly sampler: Sampler;
  private readonly batches: BatchBuilder;
  private readonly probeBatches: BatchBuilder;

  constructor(backend: Backend, { hostSampling = false }: StepRunnerOptions = {}) {
    this.backend = backend;
    this.hostSampling = hostSampling;
    this.sampler = new Sampler(backend.shape.vocabSize);
    this.batches = new BatchBuilder(backend.shape.blockTokens);
    this.probeBatches = new BatchBuilder(backend.shape.blockTokens);
  }

  /** @throws the backend's error, or Error when its answer has the wrong size */
  async run({ pieces, probes, copies }: StepPlan): Promise<StepResult> {
    // All is read from the runs before the backend is awaited: an abort takes their blocks meanwhile.
    const batch = pieces.length > 0 ? this.batches.build(pieces) : undefined;
    const probeBatch = probes.length > 0 ? this.probeBatches.build(probes) : undefined;
    const copied = tokenCopies(copies);
    if (copied.sourceSlots.length > 0) await this.backend.copyTokens(copied);
    const deviations = probeBatch === undefined ? nothing : await this.backend.deviations(probeBatch);
    const draws = batch === undefined ? [] : await this.forwardAndDraw(batch, pieces);
    const rows = probeBatch?.tokenIds.length ?? 0;
    if (deviations.length !== rows) throw new Error(`${deviations.length} deviations came back, not ${rows}`);
    if (batch !== undefined) this.steps += 1;
    this.computedTokens += batch?.tokenIds.length ?? 0;
    return { draws, deviations };
  }

  private async forwardAndDraw(batch: Batch, pieces: readonly Piece[]): Promise<Draw[]> {
    const requests = pieces.filter((piece) => piece.wantsLogits).map((piece) => piece.request.sampleRequest);
    // Without a row to draw for, `forward` does: a chunk of a prompt.
    if (this.backend.sampleStep === undefined || this.hostSampling || requests.length === 0) {
      return this.drawOnHost(await this.backend.forward(batch), requests);
    }
    const tokens = await this.backend.sampleStep(batch, requests);
    if (tokens.length !== requests.length) {
      throw new Error(`${tokens.length} tokens came back, not ${requests.length}`);
    }
    return tokens.map((token) => token ?? new RangeError("a logit is NaN, or none is finite"));
  }

  private drawOnHost(logits: Float32Array, requests: readonly SampleRequest[]): Draw[] {
    const { vocabSize } = this.backend.shape;
    const expected = requests.length * vocabSize;
    if (logits.length !== expected) throw new Error(`${logits.length} logits came back, not ${expected}`);
    return requests.map((request, row) => {
      try {
        return this.sampler.sample(logits.subarray(row * vocabSize, (row + 1) * vocabSize), request);
      } catch (error) {
        if (error instanceof RangeError) return error;
        throw error;
      }
    });
  }
}
