/** What a row of a step costs a model, in its attention against all else. */
import type { ModelConfig } from "./config.ts";

type Shape = Pick<ModelConfig, "hiddenSize" | "headCount" | "kvHeadCount" | "headDim" | "ffnSize">;

/**
 * Tokens of context whose attention takes a row as many multiplications as a layer's products do: q times K and the
 * scores times V against the projections and the gated MLP.
 */
export function rowCostTokens({ hiddenSize, headCount, kvHeadCount, headDim, ffnSize }: Shape): number {
  const projections = hiddenSize * headDim * (2 * headCount + 2 * kvHeadCount);
  return (projections + 3 * hiddenSize * ffnSize) / (2 * headCount * headDim);
}
