/**
 * A grammar over bytes, read one byte at a time. What may come next is a set of stacks: a stack is what is still to be
 * read, innermost first. Sets are numbered as they are met, and remembered with where each byte leads from them, so that
 * the grammar is made deterministic only as far as it is used. A text that nests ever deeper meets ever new sets: what is
 * remembered of them can be given up (`keepOnly`).
 */
import { type ByteGrammar, firstRuleSymbol } from "../contract/grammar.ts";

/** No byte leads here. */
export const deadState = -1;
const unknownState = -2;

const endOfAlternative = -1;
/** Nothing is left to be read. */
const emptyStack = 0;
/** A set keeps so many stacks: what an ambiguous grammar has beyond is given up, and what is kept still ends well. */
const maxStacks = 1_024;
/** Stacks looked at in finding a set. Only a grammar with left recursion, or one beyond all use, has more. */
const maxSearchedStacks = 65_536;

export class ByteAutomaton {
  /** Alternatives one after the other, each closed by `endOfAlternative`; an item is a place in it. */
  private readonly symbols: Int32Array;
  /** Of each rule, the items that its alternatives begin with. */
  private readonly alternatives: readonly (readonly number[])[];
  /** Of each stack: where it goes on, and the stack below. */
  private readonly items: number[] = [endOfAlternative];
  private readonly below: number[] = [emptyStack];
  private readonly stackIds = new Map<number, number>();
  /** Of each state: its stacks. Each has a byte range on top, or is empty. */
  private readonly states: (readonly number[])[] = [];
  private readonly stateIds = new Map<string, number>();
  /** Of each state: [256] where a byte leads. */
  private readonly steps: Int32Array[] = [];

  constructor({ rules }: ByteGrammar) {
    const symbols: number[] = [];
    this.alternatives = rules.map((alternatives) =>
      alternatives.map((alternative) => {
        const first = symbols.length;
        symbols.push(...alternative, endOfAlternative);
        return first;
      }),
    );
    this.symbols = Int32Array.from(symbols);
  }

  /** Nothing was read yet. @throws RangeError when the grammar recurs on the left */
  start(): number {
    return this.stateOf(this.alternatives[0].map((item) => this.stack(item, emptyStack)));
  }

  /** @throws RangeError as `start` does */
  next(state: number, byte: number): number {
    const row = this.steps[state];
    const known = row[byte];
    if (known !== unknownState) return known;
    const taken: number[] = [];
    // Bytes around this one that the same stacks take lead where it leads.
    let [low, high] = [0, 255];
    for (const stack of this.states[state]) {
      if (stack === emptyStack) continue;
      const range = this.symbols[this.items[stack]];
      const [first, last] = [range >> 8, range & 255];
      if (byte < first) high = Math.min(high, first - 1);
      else if (byte > last) low = Math.max(low, last + 1);
      else {
        taken.push(this.after(stack));
        low = Math.max(low, first);
        high = Math.min(high, last);
      }
    }
    const next = this.stateOf(taken);
    row.fill(next, low, high + 1);
    return next;
  }

  /** States that are remembered; each takes 1 KiB, and the stacks that it was made with. */
  get stateCount(): number {
    return this.states.length;
  }

  /** All that is wanted has been read. */
  isComplete(state: number): boolean {
    return this.states[state].includes(emptyStack);
  }

  /**
   * Forgets all that was met but this state, with what its stacks hold.
   * @returns its number from now on; every other one means nothing any more
   */
  keepOnly(state: number): number {
    const stacks = this.states[state];
    const [items, below] = [this.items.splice(0), this.below.splice(0)];
    this.states.length = 0;
    this.steps.length = 0;
    this.stateIds.clear();
    this.stackIds.clear();
    this.items.push(endOfAlternative);
    this.below.push(emptyStack);
    const kept = new Map([[emptyStack, emptyStack]]);
    const moved = (stack: number): number => {
      const path: number[] = [];
      let base = kept.get(stack);
      for (let at = stack; base === undefined; base = kept.get(at)) {
        path.push(at);
        at = below[at];
      }
      for (let at = path.pop(); at !== undefined; at = path.pop()) {
        base = this.stack(items[at], base);
        kept.set(at, base);
      }
      return base;
    };
    return this.stateOf(stacks.map(moved));
  }

  /** The state of these stacks once rules on top are replaced by what they begin with. */
  private stateOf(stacks: readonly number[]): number {
    const found = new Set<number>();
    const seen = new Set<number>(stacks);
    // A set is gone through in the order of insertion, with what is added on the way.
    for (const stack of seen) {
      if (seen.size > maxSearchedStacks) throw new RangeError("the grammar recurs on the left");
      const symbol = stack === emptyStack ? endOfAlternative : this.symbols[this.items[stack]];
      if (stack === emptyStack || (symbol >= 0 && symbol < firstRuleSymbol)) found.add(stack);
      else if (symbol === endOfAlternative) seen.add(this.below[stack]);
      else {
        const rest = this.after(stack);
        for (const item of this.alternatives[symbol - firstRuleSymbol]) seen.add(this.stack(item, rest));
      }
    }
    if (found.size === 0) return deadState;
    const kept = [...found].slice(0, maxStacks).sort((a, b) => a - b);
    const key = kept.join();
    const known = this.stateIds.get(key);
    if (known !== undefined) return known;
    this.stateIds.set(key, this.states.length);
    this.steps.push(new Int32Array(256).fill(unknownState));
    return this.states.push(kept) - 1;
  }

  /** The stack without the symbol on top. */
  private after(stack: number): number {
    const item = this.items[stack] + 1;
    // An alternative that has been read is left at once, so that recursion at the end of a rule needs no depth.
    return this.symbols[item] === endOfAlternative ? this.below[stack] : this.stack(item, this.below[stack]);
  }

  private stack(item: number, below: number): number {
    const key = below * this.symbols.length + item;
    const known = this.stackIds.get(key);
    if (known !== undefined) return known;
    this.items.push(item);
    this.below.push(below);
    this.stackIds.set(key, this.items.length - 1);
    return this.items.length - 1;
  }
}
