/** Makes one mask by a walk over the vocabulary's tries from a state on. The walk can be interrupted and continued. */
import { type ByteAutomaton, deadState, unknownState } from "./byte-automaton.ts";
import type { PlainText } from "./plain-text.ts";
import type { TokenTrie } from "./token-trie.ts";

/** Work that may still be done; below 0 where the last piece of it took more. 1 is about a nanosecond. */
export interface WorkBudget {
  left: number;
}

export class MaskWalk {
  /** One bit a token, tokens 32w … 32w + 31 in word w: set when the token may come next. */
  readonly mask: Int32Array;
  /** [depth] states on the path that is followed, the first at 0; `deadState` where there is none. */
  readonly path: Int32Array;
  spentWork = 0;
  readonly #trie: TokenTrie;
  #node = 0;
  /** Undefined before the walk has begun. */
  #endNode: number | undefined;

  constructor(start: number, trie: TokenTrie, vocabSize: number) {
    this.#trie = trie;
    this.mask = new Int32Array(Math.ceil(vocabSize / 32));
    this.path = new Int32Array(trie.maxDepth + 1).fill(deadState);
    this.path[0] = start;
  }

  /**
   * Goes on until the mask is whole or the budget is used up. @returns whether it is whole @throws GrammarTooAmbiguous
   */
  goOn(automaton: ByteAutomaton, plain: PlainText, budget: WorkBudget): boolean {
    const before = budget.left;
    try {
      this.#endNode ??= this.#begin(plain, budget);
      this.#walk(this.#endNode, automaton, budget);
    } finally {
      this.spentWork += before - budget.left;
    }
    return this.#node >= this.#endNode;
  }

  #begin(plain: PlainText, budget: WorkBudget): number {
    const before = plain.work;
    const length = plain.lengthAt(this.path[0]);
    budget.left -= plain.work - before;
    const tokens = this.#trie.plain.find(({ mostCharacters }) => mostCharacters <= length);
    if (tokens === undefined) return this.#trie.nodeCount;
    this.mask.set(tokens.mask.subarray(0, this.mask.length));
    return tokens.firstNode;
  }

  #walk(endNode: number, automaton: ByteAutomaton, budget: WorkBudget): void {
    const { path, mask } = this;
    const { nodeBytes, depths, skips, firstTokens, tokenIds } = this.#trie;
    let { steps } = automaton;
    let node = this.#node;
    let { left } = budget;
    for (; node < endNode && left > 0; left--) {
      const depth = depths[node];
      let state = steps[path[depth - 1] * 256 + nodeBytes[node]];
      if (state === unknownState) {
        const before = automaton.work;
        state = automaton.next(path[depth - 1], nodeBytes[node]);
        left -= automaton.work - before;
        steps = automaton.steps;
      }
      if (state < 0) {
        node = skips[node];
        continue;
      }
      path[depth] = state;
      node += 1;
      for (let at = firstTokens[node - 1]; at < firstTokens[node]; at++) {
        const tokenId = tokenIds[at];
        mask[tokenId >> 5] |= 1 << (tokenId & 31);
      }
    }
    this.#node = node;
    budget.left = left;
    // States deeper than the next node are not in use any more.
    path.fill(deadState, node < endNode ? depths[node] : 1);
  }
}
