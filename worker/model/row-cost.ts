/** What one row of a step costs: its attention compared with its matrix products. */
import type { ModelConfig } from "./config.ts";
import type { Experts } from "./experts.ts";

type Shape = Pick<ModelConfig, "hiddenSize" | "headCount" | "kvHeadCount" | "headDim" | "ffnSize"> & {
  readonly experts?: Pick<Experts, "perToken" | "ffnSize"> | undefined;
};

/**
 * The number of context tokens at which a row's attention (q times K, scores times V) takes as many multiplications as
 * a layer's matrix products (the projections and the gated MLP, or the experts that a row takes).
 */
export function rowCostTokens({ hiddenSize, headCount, kvHeadCount, headDim, ffnSize, experts }: Shape): number {
  const mlpSize = experts ? experts.perToken * experts.ffnSize : ffnSize;
  const projections = hiddenSize * headDim * (2 * headCount + 2 * kvHeadCount);
  return (projections + 3 * hiddenSize * mlpSize) / (2 * headCount * headDim);
}
