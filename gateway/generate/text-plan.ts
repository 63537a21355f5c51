/** The plan of a prompt that is a text, or token ids, without a template. */
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import type { Lowerer } from "../lower/plan.ts";
import { completionTokens, tokenCount } from "./context-budget.ts";
import { checkPromptIds } from "./token-checks.ts";

interface TextPlanParts {
  readonly card: ModelCard;
  readonly lowerer: Pick<Lowerer, "lowerText">;
  readonly salt: CacheSalt;
}

/**
 * @param wanted tokens of the completion; undefined: as many as there is room for
 * @throws ApiError invalid_value; context_length_exceeded here, before other prompts of the request are encoded
 */
export async function textPlan(
  prompt: string | readonly number[],
  { card, lowerer, salt }: TextPlanParts,
  wanted: number | undefined,
): Promise<TokenPlan> {
  if (typeof prompt !== "string") checkPromptIds(card, prompt);
  const plan = await lowerer.lowerText(prompt, salt);
  if (tokenCount(plan.runs) === 0) {
    throw new ApiError("invalid_value", { message: "A prompt needs at least one token.", param: "prompt" });
  }
  completionTokens(card, plan, { wanted, promptParam: "prompt", wantedParam: "max_tokens" });
  return plan;
}
