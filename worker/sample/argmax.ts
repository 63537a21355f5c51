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
