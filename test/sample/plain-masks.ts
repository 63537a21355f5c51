/** The plain way to a mask, as an oracle: every token is read from the start of the grammar on, sets of stacks are lists. */
import { type ByteGrammar, endOfAlternative, endOfRule, firstRuleSymbol } from "../../worker/contract/grammar.ts";

/** No byte leads here. */
const deadState = -1;
const unknownState = -2;

/** Nothing is left to be read. */
const emptyStack = 0;
/** A set keeps so many stacks: what an ambiguous grammar has beyond is given up, and what is kept still ends well. */
const maxStacks = 1_024;
/** Stacks looked at in finding a set. Only a grammar with left recursion, or one beyond all use, has more. */
const maxSearchedStacks = 65_536;

class PlainAutomaton {
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

  constructor({ symbols }: ByteGrammar) {
    this.symbols = symbols;
    this.alternatives = rulesOf([...symbols]);
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

  /** All that is wanted has been read. */
  isComplete(state: number): boolean {
    return this.states[state].includes(emptyStack);
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

function rulesOf(symbols: readonly number[]): number[][] {
  const rules: number[][] = [[]];
  let first = 0;
  for (const [item, symbol] of symbols.entries()) {
    if (symbol >= 0) continue;
    if (symbol === endOfAlternative) rules.at(-1)?.push(first);
    if (symbol === endOfRule) rules.push([]);
    first = item + 1;
  }
  return rules.slice(0, -1);
}

export class PlainMasks {
  private readonly automaton: PlainAutomaton;
  private readonly tokens: readonly Uint8Array[];
  private readonly endTokenId: number;

  constructor(grammar: ByteGrammar, tokens: readonly Uint8Array[], endTokenId: number) {
    this.automaton = new PlainAutomaton(grammar);
    this.tokens = tokens;
    this.endTokenId = endTokenId;
  }

  /** Whether the grammar can be followed; otherwise it recurs on the left. */
  get hasStart(): boolean {
    try {
      this.automaton.start();
      return true;
    } catch (error) {
      if (error instanceof RangeError) return false;
      throw error;
    }
  }

  /** Tokens that may come behind these bytes. */
  allowed(bytes: Uint8Array): number[] {
    const state = this.after(this.automaton.start(), bytes);
    if (state === deadState) return [];
    const isAllowed = (token: Uint8Array, id: number): boolean =>
      (token.length > 0 && this.after(state, token) !== deadState) ||
      (id === this.endTokenId && this.automaton.isComplete(state));
    return this.tokens.flatMap((token, id) => (isAllowed(token, id) ? [id] : []));
  }

  private after(start: number, bytes: Uint8Array): number {
    let state = start;
    for (const byte of bytes) if (state !== deadState) state = this.automaton.next(state, byte);
    return state;
  }
}
