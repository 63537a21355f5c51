/**
 * The automaton of one grammar and the masks of its states, shared by all requests with the grammar. Requests and
 * unfinished masks hold states by name in arrays of their own (`hold`), so that names can be changed in these arrays:
 * when memory runs out, all states are given up but those that are held.
 */
import type { ByteGrammar } from "../contract/grammar.ts";
import { ByteAutomaton, deadState, GrammarTooAmbiguous } from "./byte-automaton.ts";
import { GrammarItems } from "./grammar-items.ts";
import { MaskWalk, type WorkBudget } from "./mask-walk.ts";
import { PlainText } from "./plain-text.ts";
import type { TokenTrie } from "./token-trie.ts";

export interface GrammarLimits {
  /** Work that the mask of one token may take at most, and how much of it each node of the vocabulary's tries adds. */
  readonly maskWork: number;
  readonly maskWorkOfNode: number;
  /** Bytes of the automaton, and of masks that are kept for states that come again. */
  readonly automatonBytes: number;
  readonly maskBytes: number;
}

const mebibyte = 2 ** 20;
export const grammarLimits: GrammarLimits = {
  maskWork: 64_000_000,
  maskWorkOfNode: 100,
  automatonBytes: 12 * mebibyte,
  maskBytes: 4 * mebibyte,
};
/** Held states take this part of the automaton's bytes at most; with more, states would be given up again and again. */
const heldPart = 1 / 4;

/** Words of bits, or token ids where these are fewer. */
interface KeptMask {
  readonly isList: boolean;
  readonly words: Int32Array;
}

export class GrammarMasks {
  readonly trie: TokenTrie;
  readonly vocabSize: number;
  readonly #limits: GrammarLimits;
  readonly #items: GrammarItems;
  readonly #automaton: ByteAutomaton;
  readonly #plain: PlainText;
  readonly #holders = new Set<Int32Array>();
  readonly #walks = new Map<number, MaskWalk>();
  /** States whose masks take more work than a token may: nobody else begins them. */
  readonly #hopeless = new Set<number>();
  /** The mask that was used longest ago comes first. */
  #masks = new Map<number, KeptMask>();
  #maskBytes = 0;
  /** Bytes that were left when states were given up last. */
  #heldBytes = 0;
  /** Even the held states took too many bytes, so one of the holders has to go. */
  #holdsTooMuch = false;

  /** @param vocabSize rows of logits have so many @throws RangeError when the grammar recurs on the left */
  constructor(grammar: ByteGrammar, trie: TokenTrie, vocabSize: number, limits: GrammarLimits = grammarLimits) {
    this.#items = new GrammarItems(grammar);
    if (this.#items.recursOnLeft()) throw new RangeError("the grammar recurs on the left");
    this.trie = trie;
    this.vocabSize = vocabSize;
    this.#limits = limits;
    this.#automaton = new ByteAutomaton(this.#items);
    this.#plain = new PlainText(this.#automaton);
  }

  get stateCount(): number {
    return this.#automaton.stateCount;
  }

  get byteLength(): number {
    const { trie } = this;
    const items = this.#items;
    const automaton = this.#automaton;
    const plain = this.#plain;
    const walks = this.#walks;
    const walkBytes = walks.size * (this.vocabSize / 8 + 4 * trie.maxDepth);
    return items.byteLength + automaton.byteLength + plain.byteLength + walkBytes + this.#maskBytes;
  }

  /** Bytes that giving up states would free, as far as that is known beforehand. */
  get spareBytes(): number {
    return this.byteLength - this.#heldBytes;
  }

  /** Whether nobody holds a state. */
  get isIdle(): boolean {
    return this.#holders.size === 0;
  }

  /** The states in this array stay, under whatever names; `deadState` for none. */
  hold(states: Int32Array): void {
    this.#holders.add(states);
  }

  release(states: Int32Array): void {
    this.#holders.delete(states);
    this.#holdsTooMuch = false;
    if (this.isIdle) this.#walks.clear();
  }

  /** Nothing was read yet; `deadState` when the grammar has no text. @throws GrammarTooAmbiguous */
  start(budget: WorkBudget): number {
    return this.#counted(budget, () => this.#automaton.start());
  }

  /** Where a byte leads, or `deadState`. @throws GrammarTooAmbiguous */
  next(state: number, byte: number, budget: WorkBudget): number {
    return this.#counted(budget, () => this.#automaton.next(state, byte));
  }

  isComplete(state: number): boolean {
    return this.#automaton.isComplete(state);
  }

  /**
   * Writes the state's mask, without tokens that end: one bit a token, tokens 32w … 32w + 31 in word w.
   * @returns false when the budget is used up before
   * @throws GrammarTooAmbiguous
   */
  writeMask(state: number, target: Int32Array, budget: WorkBudget): boolean {
    const kept = this.#masks.get(state) ?? this.#make(state, budget);
    if (kept === undefined) return false;
    this.#masks.delete(state);
    this.#masks.set(state, kept);
    if (!kept.isList) target.set(kept.words);
    else {
      target.fill(0);
      for (const tokenId of kept.words) target[tokenId >> 5] |= 1 << (tokenId & 31);
    }
    return true;
  }

  /**
   * Gives up states over the bound. Held states get new names in the arrays that hold them. @throws GrammarTooAmbiguous
   */
  trim(budget: WorkBudget): void {
    if (this.#automaton.byteLength + this.#plain.byteLength > this.#limits.automatonBytes) {
      const before = this.#automaton.work;
      this.forget();
      budget.left -= this.#automaton.work - before;
    }
    if (this.#holdsTooMuch) throw new GrammarTooAmbiguous("what may come next takes too much memory");
  }

  /** Gives up all states that are not held. */
  forget(): void {
    const holders = [...this.#holders, ...Array.from(this.#walks.values(), ({ path }) => path)];
    const names = this.#automaton.keepOnly(new Set(holders.flatMap((states) => [...states])));
    for (const states of holders) for (const [i, state] of states.entries()) states[i] = names.get(state) ?? deadState;
    const walks = [...this.#walks.values()];
    this.#walks.clear();
    for (const walk of walks) this.#walks.set(walk.path[0], walk);
    const masks = [...this.#masks];
    this.#masks.clear();
    this.#maskBytes = 0;
    for (const [state, mask] of masks) {
      const name = names.get(state);
      if (name !== undefined) this.#keep(name, mask);
    }
    this.#hopeless.clear();
    this.#plain.forget();
    this.#heldBytes = this.byteLength;
    this.#holdsTooMuch = this.#automaton.byteLength > this.#limits.automatonBytes * heldPart;
  }

  #make(state: number, budget: WorkBudget): KeptMask | undefined {
    if (this.#hopeless.has(state)) throw new GrammarTooAmbiguous("a mask takes too much work");
    const walk = this.#walks.get(state) ?? new MaskWalk(state, this.trie, this.vocabSize);
    this.#walks.set(state, walk);
    const isWhole = walk.goOn(this.#automaton, this.#plain, budget);
    const { maskWork, maskWorkOfNode } = this.#limits;
    if (walk.spentWork > maskWork + maskWorkOfNode * this.trie.nodeCount) {
      this.#walks.delete(state);
      this.#hopeless.add(state);
      throw new GrammarTooAmbiguous("a mask takes too much work");
    }
    if (!isWhole) return undefined;
    this.#walks.delete(state);
    const mask = keptMask(walk.mask);
    this.#keep(state, mask);
    return mask;
  }

  #keep(state: number, mask: KeptMask): void {
    this.#masks.set(state, mask);
    this.#maskBytes += mask.words.byteLength;
    for (const [oldest, { words }] of this.#masks) {
      if (this.#maskBytes <= this.#limits.maskBytes || oldest === state) return;
      this.#masks.delete(oldest);
      this.#maskBytes -= words.byteLength;
    }
  }

  #counted(budget: WorkBudget, find: () => number): number {
    const before = this.#automaton.work;
    const found = find();
    budget.left -= 1 + this.#automaton.work - before;
    return found;
  }
}

function keptMask(mask: Int32Array): KeptMask {
  const tokenIds: number[] = [];
  for (let word = 0; word < mask.length; word++) {
    for (let rest = mask[word]; rest !== 0; rest &= rest - 1) tokenIds.push(word * 32 + 31 - Math.clz32(rest & -rest));
    if (tokenIds.length >= mask.length) return { isList: false, words: mask };
  }
  return { isList: true, words: Int32Array.from(tokenIds) };
}
