/**
 * Top-k, top-p and min-p without sorting the vocabulary: candidates go into a heap that is popped, most
 * probable first, until the filters are met. Improbable tokens become candidates only when the rest falls short.
 */
import type { SamplingParams } from "../contract/messages.ts";

type Filters = Pick<SamplingParams, "topK" | "topP" | "minP">;

/** Candidates are first looked for among tokens this probable, relative to the best. */
const usualMinWeight = 1e-5;

export class Shortlist {
  /** [0, heapSize) is a max-heap of token ids; the token of rank r, popped, stands at candidateCount - 1 - r. */
  readonly #heap: Int32Array;
  #heapSize = 0;
  #candidateCount = 0;
  #logits: Float32Array = new Float32Array(0);

  constructor(vocabSize: number) {
    this.#heap = new Int32Array(vocabSize);
  }

  /**
   * @param weights [vocabSize] exp((logit - max) / temperature); `total` is their sum.
   * @param random uniform in [0, 1).
   */
  draw(weights: Float32Array, logits: Float32Array, total: number, filters: Filters, random: number): number {
    this.#logits = logits;
    const { topP, minP } = filters;
    const topK = filters.topK < weights.length ? filters.topK : 0;
    this.#gather(weights, total, { topK, topP, minP });
    const maxCount = topK > 0 ? Math.min(topK, this.#candidateCount) : this.#candidateCount;
    const enough = topP < 1 ? topP * (topK > 0 ? this.#massOfTop(weights, maxCount) : total) : Number.POSITIVE_INFINITY;
    let count = 0;
    let mass = 0;
    while (count < maxCount && mass < enough) {
      const weight = weights[this.#ranked(count)];
      // A token of no weight may be one that must not come.
      if (weight < minP || weight === 0) break;
      mass += weight;
      count += 1;
    }
    let left = random * mass;
    for (let rank = 0; rank < count - 1; rank++) {
      left -= weights[this.#ranked(rank)];
      if (left < 0) return this.#ranked(rank);
    }
    return this.#ranked(Math.max(0, count - 1));
  }

  /** Makes a heap of the tokens that the filters can keep, and of as few others as one look allows. */
  #gather(weights: Float32Array, total: number, { topK, topP, minP }: Filters): void {
    const floor = minP > 0 ? minP : usualMinWeight;
    const mass = this.#takeAbove(weights, floor);
    const minPCutsTheRest = minP > 0 && (topK === 0 || topP === 1);
    const reached = topK > 0 ? this.#candidateCount >= topK : mass >= topP * total;
    if (!minPCutsTheRest && !reached) this.#takeAbove(weights, 0);
    this.#heapSize = this.#candidateCount;
    for (let at = (this.#heapSize >> 1) - 1; at >= 0; at--) this.#siftDown(at);
  }

  /** @returns the mass of the tokens taken. */
  #takeAbove(weights: Float32Array, minWeight: number): number {
    let count = 0;
    let mass = 0;
    for (let tokenId = 0; tokenId < weights.length; tokenId++) {
      if (weights[tokenId] < minWeight) continue;
      this.#heap[count] = tokenId;
      count += 1;
      mass += weights[tokenId];
    }
    this.#candidateCount = count;
    return mass;
  }

  #massOfTop(weights: Float32Array, count: number): number {
    let mass = 0;
    for (let rank = 0; rank < count; rank++) mass += weights[this.#ranked(rank)];
    return mass;
  }

  /** Token id of the rank-th most probable candidate; pops the heap as far as that. */
  #ranked(rank: number): number {
    while (this.#heapSize > this.#candidateCount - 1 - rank) {
      this.#heapSize -= 1;
      const top = this.#heap[0];
      this.#heap[0] = this.#heap[this.#heapSize];
      this.#heap[this.#heapSize] = top;
      this.#siftDown(0);
    }
    return this.#heap[this.#candidateCount - 1 - rank];
  }

  #siftDown(from: number): void {
    const heap = this.#heap;
    const heapSize = this.#heapSize;
    let at = from;
    for (;;) {
      const left = 2 * at + 1;
      const right = left + 1;
      let best = at;
      if (left < heapSize && this.#above(heap[left], heap[best])) best = left;
      if (right < heapSize && this.#above(heap[right], heap[best])) best = right;
      if (best === at) return;
      const moved = heap[at];
      heap[at] = heap[best];
      heap[best] = moved;
      at = best;
    }
  }

  /** By logit, since weights of improbable tokens round to the same number; ties by lowest id. */
  #above(a: number, b: number): boolean {
    return this.#logits[a] > this.#logits[b] || (this.#logits[a] === this.#logits[b] && a < b);
  }
}
