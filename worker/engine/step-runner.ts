/** A planned step as the backend's calls. */
import type { Backend } from "../backend/backend.ts";
import { BatchBuilder } from "./batch.ts";
import { tokenCopies } from "./blend.ts";
import type { StepPlan } from "./step.ts";

/** Both arrays are the backend's own and valid until the next step. */
export interface StepResult {
  /** [pieces that want logits][vocabSize] */
  readonly logits: Float32Array;
  /** [rows of all probes] */
  readonly deviations: Float32Array;
}

const nothing = new Float32Array(0);

export class StepRunner {
  /** Steps that ran, and rows that went through all layers in them. */
  steps = 0;
  computedTokens = 0;
  private readonly backend: Backend;
  private readonly batches: BatchBuilder;
  private readonly probeBatches: BatchBuilder;

  constructor(backend: Backend) {
    this.backend = backend;
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
    const logits = batch === undefined ? nothing : await this.backend.forward(batch);
    const expected = (batch?.logitRows.length ?? 0) * this.backend.shape.vocabSize;
    if (logits.length !== expected) throw new Error(`${logits.length} logits came back, not ${expected}`);
    const rows = probeBatch?.tokenIds.length ?? 0;
    if (deviations.length !== rows) throw new Error(`${deviations.length} deviations came back, not ${rows}`);
    if (batch !== undefined) this.steps += 1;
    this.computedTokens += batch?.tokenIds.length ?? 0;
    return { logits, deviations };
  }
}
