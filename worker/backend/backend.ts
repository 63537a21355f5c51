/**
 * What the engine knows of hardware. One backend owns the KV memory, the weights and the streams of one
 * device; the engine owns which block holds what.
 */
import type { Batch, TokenCopies } from "../contract/batch.ts";
import type { ModelCard } from "../contract/model-card.ts";
import type { SampledToken, SampleRequest } from "../sample/sampler.ts";

/** The device does nothing any more: the worker ends, and the next one begins anew. */
export class DeviceLost extends Error {
  override readonly name = "DeviceLost";
}

export type BackendShape = Pick<
  ModelCard,
  "vocabSize" | "contextTokens" | "blockTokens" | "blockCount" | "kvBytesPerBlock"
>;

/** A step that was begun. */
export interface BegunStep {
  /** Its tokens are drawn on the device, so rows of the step that is begun next can name them. */
  readonly drawsOnDevice: boolean;
  /**
   * Waits for the step; answers as `sampleStep` does. Called once, for steps in the order they were begun.
   * @throws DeviceLost, or what made the step fail
   */
  tokens(): Promise<readonly (SampledToken | undefined)[]>;
}

export interface Backend {
  readonly name: string;
  readonly shape: BackendShape;
  /**
   * Runs one step: in each layer writes K and V of every row into its slot and only then attends, so that a
   * piece may see a run that the same step completes. Answers the logits of `logitRows` as float32 [N, vocabSize]; the
   * array is the backend's own and valid until the next call.
   */
  forward(batch: Batch): Promise<Float32Array>;
  /**
   * `forward`, and then draws a token for each of `logitRows` as Sampler does (worker/sample), where the logits are.
   * Answers [N] tokens, undefined where a logit is NaN or none is finite. A backend without it leaves drawing to the
   * engine.
   */
  sampleStep?(batch: Batch, requests: readonly SampleRequest[]): Promise<readonly (SampledToken | undefined)[]>;
  /**
   * Begins a step, without logit rows too, and does not wait for it: what one begun step writes the next one reads.
   * `batch` and `requests` are read before it returns. While a step is in flight one more can be begun, and nothing
   * else is called. A backend without it has its steps one after the other.
   * @throws Error when the step is more than the backend takes; nothing has begun then
   */
  beginStep?(batch: Batch, requests: readonly SampleRequest[]): BegunStep;
  /** Copies K, rotated on by the token's delta, and V as it is. */
  copyTokens(copies: TokenCopies): Promise<void>;
  /**
   * Runs the rows of a batch through layer 0 alone, whose K and V it writes, and compares layer 1's K and V that
   * come of it with what the rows' slots hold. Answers [T] squared L2 distances of K and V together, of no meaning
   * for a slot that holds nothing; 0 for a model of one layer. The array is the backend's own until the next call.
   */
  deviations(batch: Batch): Promise<Float32Array>;
  /** Frees device memory; the backend is not used afterwards. */
  dispose(): Promise<void>;
}
