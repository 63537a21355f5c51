/** What callers ask of sparse decoding, as what the worker takes. */
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { ServedMode, SparseParams } from "../../worker/contract/sparse.ts";
import { ApiError } from "../base/errors.ts";

/** true: as the server has it; false: every row reads all it sees. */
export type SparseWish = boolean | { readonly tokens?: number | undefined; readonly mode?: ServedMode | undefined };

/** @throws ApiError invalid_value, when this server or its model cannot do what is asked for */
export function checkSparse({ sparse }: Pick<ModelCard, "sparse">, wish: SparseWish | undefined, param: string): void {
  if (wish === undefined || wish === false) return;
  const refuse = (field: string, problem: string): never => {
    throw new ApiError("invalid_value", { message: `'${field}': ${problem}.`, param: field });
  };
  if (sparse === undefined) return refuse(param, "this server decodes densely (SPANGATE_SPARSE is off)");
  if (wish === true) return;
  const { tokens, mode } = wish;
  if (mode !== undefined && !sparse.modes.includes(mode)) {
    return refuse(`${param}.mode`, `this server has ${sparse.modes.join(" and ")}, not ${mode} (SPANGATE_SPARSE)`);
  }
  if (tokens !== undefined && tokens > sparse.mostTokens) {
    return refuse(`${param}.tokens`, `is ${tokens}, and this server chooses at most ${sparse.mostTokens} tokens`);
  }
}

/**
 * @param wish checked by `checkSparse`; undefined: the caller leaves it to the server
 * @returns undefined: every row reads all it sees
 */
export function sparseParams(
  { sparse }: Pick<ModelCard, "sparse">,
  wish: SparseWish | undefined,
  plan: TokenPlan,
): SparseParams | undefined {
  if (sparse === undefined || wish === false) return undefined;
  // KV of blended runs is approximate already.
  if (plan.runs.some(({ blend }) => blend !== undefined)) return undefined;
  const { mode = sparse.mode, tokens = sparse.mostTokens } = typeof wish === "object" ? wish : {};
  return { mode, tokens };
}
