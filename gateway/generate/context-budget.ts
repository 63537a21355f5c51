/** How many tokens a plan's completion may have, and whether the token ids that a caller names are the model's. */
import { limits as contractLimits } from "../../worker/contract/limits.ts";
import type { GenerateParams, PlanRun, TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import { blockCountForTokens } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";

export interface AskedTokens {
  /** undefined: as many as there is room for. */
  readonly wanted: number | undefined;
  /** Tokens that follow the completion in its chain. */
  readonly closeTokens?: number;
  /** What an error names: the field with the prompt, the field with the wanted number. */
  readonly promptParam: string;
  readonly wantedParam: string;
}

/** @throws ApiError context_length_exceeded, in the words that clients of other servers look for */
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

/** Tokens of all runs together. */
export const tokenCount = (runs: readonly PlanRun[]): number => runs.reduce((sum, run) => sum + run.tokenIds.length, 0);

/** Tokens that the runs and the completion may have together: by the model's context, and by what the KV pool can hold. */
function contextTokens(card: ModelCard, runs: readonly PlanRun[]): number {
  // Closed runs end in blocks that may be partly filled; the completion goes on in the last run's own blocks.
  const closed = runs.slice(0, -1);
  const closedBlocks = closed.reduce((sum, run) => sum + blockCountForTokens(run.tokenIds.length, card.blockTokens), 0);
  const poolTokens = tokenCount(closed) + (card.blockCount - closedBlocks) * card.blockTokens;
  // Runs may stand beside each other: the completion's positions go on from the last one's.
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
