/** Completions that spell what a grammar says: which tokens may come next, step by step. */
import { deadState, GrammarTooAmbiguous } from "./byte-automaton.ts";
import type { GrammarMasks } from "./grammar-masks.ts";
import type { WorkBudget } from "./mask-walk.ts";

export interface TokenConstraint {
  /** Whether the mask is ready. */
  readonly isReady: boolean;
  /**
   * Works on the mask until it is there or the budget is used up.
   * @throws GrammarTooAmbiguous, or another RangeError when no token may come
   */
  prepare(budget: WorkBudget): void;
  /**
   * One bit a token, tokens 32w … 32w + 31 in word w: set when the token may come next. Valid until `accept`.
   * @throws as `prepare`
   */
  mask(): Int32Array;
  /** Goes on behind this token. @throws RangeError when it may not come next */
  accept(tokenId: number): void;
  /** Gives the masks back: the constraint is not used any more. */
  release(): void;
}

/** Says that no state is known yet. */
const notBegun = deadState;
/** A budget for callers that nobody waits for. */
const unhurriedWork = 1_000_000;

export class GrammarConstraint implements TokenConstraint {
  readonly #masks: GrammarMasks;
  readonly #endTokenIds: readonly number[];
  /** [1] the state behind what was read; its name may change. */
  readonly #state = Int32Array.of(notBegun);
  readonly #bits: Int32Array;
  #ready = false;
  /** Bytes that come behind the state, and how many of them were read. */
  #bytes: Uint8Array = new Uint8Array(0);
  #readBytes = 0;

  readonly #released: () => void;

  /**
   * @param endTokenIds may come when all that is wanted has been spelled
   * @param released called when the masks are not needed any more
   */
  constructor(masks: GrammarMasks, endTokenIds: readonly number[], released: () => void = () => undefined) {
    this.#masks = masks;
    this.#endTokenIds = endTokenIds;
    this.#released = released;
    this.#bits = new Int32Array(Math.ceil(masks.vocabSize / 32));
    masks.hold(this.#state);
  }

  get isReady(): boolean {
    return this.#ready;
  }

  prepare(budget: WorkBudget): void {
    if (this.#ready) return;
    const masks = this.#masks;
    const bits = this.#bits;
    const bytes = this.#bytes;
    masks.trim(budget);
    if (this.#state[0] === notBegun) this.#begin(budget);
    for (; this.#readBytes < bytes.length && budget.left > 0; this.#readBytes++) {
      this.#go(masks.next(this.#state[0], bytes[this.#readBytes], budget));
    }
    if (this.#readBytes < bytes.length || !masks.writeMask(this.#state[0], bits, budget)) return;
    if (masks.isComplete(this.#state[0])) for (const id of this.#endTokenIds) bits[id >> 5] |= 1 << (id & 31);
    if (isEmpty(bits)) throw new RangeError("no token of the vocabulary may come next");
    this.#ready = true;
  }

  mask(): Int32Array {
    while (!this.#ready) this.prepare({ left: unhurriedWork });
    return this.#bits;
  }

  accept(tokenId: number): void {
    if (((this.mask()[tokenId >> 5] >> (tokenId & 31)) & 1) === 0)
      throw new RangeError(`token ${tokenId} may not come here`);
    this.#bytes = this.#masks.trie.spelling(tokenId);
    this.#readBytes = 0;
    this.#ready = false;
  }

  release(): void {
    this.#masks.release(this.#state);
    this.#released();
  }

  #begin(budget: WorkBudget): void {
    this.#state[0] = this.#masks.start(budget);
    if (this.#state[0] === deadState) throw new RangeError("no text is of the grammar");
  }

  /** A token that may come leads somewhere, but for what an ambiguous grammar had to give up. */
  #go(state: number): void {
    if (state === deadState) throw new GrammarTooAmbiguous("what was given up is needed");
    this.#state[0] = state;
  }
}

function isEmpty(mask: Int32Array): boolean {
  for (const word of mask) if (word !== 0) return false;
  return true;
}

/** Makes every token that may not come impossible. */
export function restrict(logits: Float32Array, constraint: TokenConstraint): void {
  const mask = constraint.mask();
  for (let word = 0; 32 * word < logits.length; word++) {
    const bits = mask[word];
    if (bits === -1) continue;
    const first = 32 * word;
    if (bits === 0) logits.fill(Number.NEGATIVE_INFINITY, first, first + 32);
    else {
      for (let i = 0; i < 32; i++) if (((bits >> i) & 1) === 0) logits[first + i] = Number.NEGATIVE_INFINITY;
    }
  }
}
