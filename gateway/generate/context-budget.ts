/** Computes how many tokens a completion may have, and checks that token ids given by the caller exist in the model. */
import { limits as contractLimits } from "../../worker/contract/limits.ts";
import type { GenerateParams, PlanRun, TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { blockCountForTokens } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";

export interface AskedTokens {
  /** The number of tokens that the caller asks for; undefined: as many as fit. */
  readonly wanted: number | undefined;
  /** Tokens that are added to the chain after the completion. */
  readonly closeTokens?: number;
  /** The names that errors use for the field with the prompt and for the field with the wanted number. */
  readonly promptParam: string;
  readonly wantedParam: string;
}

/** @throws ApiError context_length_exceeded, worded as clients of other servers expect it */
export function completionTokens(card: ModelCard, plan: TokenPlan, asked: AskedTokens): number {
  const { wanted, closeTokens = 0 } = asked;
  const prompt = tokenCount(plan.runs);
  const context = contextTokens(card, plan.runs);
  const room = context - prompt - closeTokens;
  if (room >= (wanted ?? 1)) return wanted ?? room;
  const numbers =
    wanted === undefined
      ? `your messages resulted in ${prompt} tokens`
      : `you requested ${prompt + wanted} tokens (${prompt} in the messages, ${wanted} in the completion)`;
  throw new ApiError("context_length_exceeded", {
    message: `This model's maximum context length is ${context} tokens. However, ${numbers}.`,
    param: wanted !== undefined && prompt < context ? asked.wantedParam : asked.promptParam,
  });
}

/** The number of tokens of all runs together. */
export const tokenCount = (runs: readonly PlanRun[]): number => runs.reduce((sum, run) => sum + run.tokenIds.length, 0);

/**
 * The most tokens that the runs and the completion may have together, given the model's context and the size of the KV
 * pool.
 */
function contextTokens(card: ModelCard, runs: readonly PlanRun[]): number {
  // A closed run may end in a partly filled block; the completion continues in the last run's blocks.
  const closed = runs.slice(0, -1);
  const closedBlocks = closed.reduce((sum, run) => sum + blockCountForTokens(run.tokenIds.length, card.blockTokens), 0);
  const poolTokens = tokenCount(closed) + (card.blockCount - closedBlocks) * card.blockTokens;
  // Several runs may begin at the same position. The completion continues from the position at which the last run ends.
  const last = runs.at(-1);
  const besideTokens = tokenCount(runs) - (last === undefined ? 0 : last.position + last.tokenIds.length);
  return Math.min(card.contextTokens + besideTokens, contractLimits.maxRequestTokens, poolTokens);
}

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
