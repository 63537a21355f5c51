/** What one row of a step costs: its attention compared with its matrix products. */
import type { ModelConfig } from "./config.ts";

type Shape = Pick<ModelConfig, "hiddenSize" | "headCount" | "kvHeadCount" | "headDim" | "ffnSize">;

/**
 * The number of context tokens at which a row's attention (q times K, scores times V) takes as many multiplications as
 * a layer's matrix products (the projections and the gated MLP).
 */
export function rowCostTokens({ hiddenSize, headCount, kvHeadCount, headDim, ffnSize }: Shape): number {
  const projections = hiddenSize * headDim * (2 * headCount + 2 * kvHeadCount);
  return (projections + 3 * hiddenSize * ffnSize) / (2 * headCount * headDim);
}
