/** Token ids that callers name are the model's. */
import type { GenerateParams } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { ApiError } from "../base/errors.ts";

/** @throws ApiError invalid_value */
export function checkPromptIds(card: ModelCard, tokenIds: readonly number[]): void {
  if (tokenIds.every((tokenId) => tokenId < card.vocabSize)) return;
  const message = "prompt has a token that the model does not have.";
  throw new ApiError("invalid_value", { message, param: "prompt" });
}

/** @throws ApiError invalid_value */
export function checkTokenIds(card: ModelCard, params: Pick<GenerateParams, "sampling" | "stopTokenIds">): void {
  const refuse = (param: string): never => {
    throw new ApiError("invalid_value", { message: `${param} names a token that the model does not have.`, param });
  };
  if (params.sampling.logitBias.some(([tokenId]) => tokenId >= card.vocabSize)) refuse("logit_bias");
  if (params.stopTokenIds.some((tokenId) => tokenId >= card.vocabSize)) refuse("stop_token_ids");
}
