/** Log-probabilities of the model's own distribution: softmax of the raw logits, before any sampling rule. */
import type { TokenLogprob } from "../contract/messages.ts";

/**
 * Id of the highest logit, the lowest id of equal ones.
 * @throws RangeError when a logit is NaN or no logit is finite.
 */
export function argmax(logits: Float32Array): number {
  let best = -1;
  let max = Number.NEGATIVE_INFINITY;
  for (let tokenId = 0; tokenId < logits.length; tokenId++) {
    const logit = logits[tokenId];
    if (logit <= max) continue; // false for NaN too
    if (Number.isNaN(logit)) throw new RangeError(`logit of token ${tokenId} is NaN`);
    max = logit;
    best = tokenId;
  }
  if (!Number.isFinite(max)) throw new RangeError(`the highest logit is ${max}`);
  return best;
}

function logSumExp(logits: Float32Array): number {
  const max = logits[argmax(logits)];
  let sum = 0;
  for (let tokenId = 0; tokenId < logits.length; tokenId++) sum += Math.exp(logits[tokenId] - max);
  return max + Math.log(sum);
}

/** Ids of the `count` highest logits, highest first, ties by lowest id; by insertion, since count is small. */
function topTokenIds(logits: Float32Array, count: number): number[] {
  const top: number[] = [];
  let lowest = Number.NEGATIVE_INFINITY; // logit of the last of a full list
  for (let tokenId = 0; tokenId < logits.length; tokenId++) {
    const logit = logits[tokenId];
    if (top.length === count && logit <= lowest) continue;
    let at = top.length;
    while (at > 0 && logits[top[at - 1]] < logit) at -= 1;
    top.splice(at, 0, tokenId);
    if (top.length > count) top.pop();
    if (top.length === count) lowest = logits[top[count - 1]];
  }
  return top;
}

/** @param topCount alternatives to report, the chosen token among them when it is one. */
export function tokenLogprob(logits: Float32Array, tokenId: number, topCount: number): TokenLogprob {
  const normalizer = logSumExp(logits);
  const top = topCount === 0 ? [] : topTokenIds(logits, topCount);
  return {
    tokenId,
    logprob: logits[tokenId] - normalizer,
    top: top.map((id) => [id, logits[id] - normalizer] as const),
  };
}
