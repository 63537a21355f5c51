/**
 * A grammar over bytes, read one byte at a time. What may come next is a set of stacks (stack-store.ts). Sets are
 * numbered as they are met, and remembered with where each byte leads from them, so that the grammar is made
 * deterministic only as far as it is used. A text that nests ever deeper meets ever new sets: what is not in use can be
 * given up (`keepOnly`).
 *
 * `work` counts all work and depends on nothing but the grammar and the text that was read: a grammar can be so
 * ambiguous that one byte takes as long as a whole mask of another grammar.
 */

import { IntList } from "../base/int-list.ts";
import { endOfAlternative, firstRuleSymbol } from "../contract/grammar.ts";
import type { GrammarItems } from "./grammar-items.ts";
import { emptyStack, StackStore } from "./stack-store.ts";

/** No byte leads here. */
export const deadState = -1;
/** In `steps`: not worked out yet. */
export const unknownState = -2;

/**
 * A set keeps so many stacks at most. An ambiguous grammar may have more, which are given up; the kept ones still lead
 * to an end.
 */
const maxStacks = 1_024;
/** Stacks looked at in finding a set; all of it is done at once. */
const maxSearchedStacks = 16_384;
/** Work of a stack that is looked at, and of a state that is made; 1 is about a nanosecond. */
const stackWork = 16;
const stateWork = 512;
/** Work of a stack that is moved to another store. */
const moveWork = 128;
const mapEntryBytes = 48;

/** A grammar cannot be followed within the bounds on work and memory. */
export class GrammarTooAmbiguous extends RangeError {
  override readonly name = "GrammarTooAmbiguous";
}

export class ByteAutomaton {
  /** [256] for each state: where a byte leads. Another array once a state was added. */
  steps = new Int32Array(16 * 256);
  readonly #grammar: GrammarItems;
  #stacks = new StackStore();
  /**
   * Stacks of all states, in rising order of each; state s has those before memberEnds[s]. Each has a byte range on
   * top, or is empty.
   */
  readonly #members = new IntList(64);
  readonly #memberEnds = new IntList(16);
  /** States by what their stacks come to; the last that came to the same before each. */
  readonly #latest = new Map<number, number>();
  readonly #earlier = new IntList(16);
  /** The set that is being found, and of each stack the last search that met it. */
  readonly #found = new IntList(64);
  readonly #searches = new IntList(64);
  #search = 0;
  #otherWork = 0;

  /** @param grammar without left recursion */
  constructor(grammar: GrammarItems) {
    this.#grammar = grammar;
  }

  /** Work done so far; it only rises. */
  get work(): number {
    return this.#otherWork + this.#stacks.lookups * stackWork;
  }

  get stateCount(): number {
    return this.#memberEnds.length;
  }

  /** Bytes of all that is remembered. */
  get byteLength(): number {
    const lists = [this.#members, this.#memberEnds, this.#earlier, this.#found, this.#searches];
    const listBytes = lists.reduce((sum, { memory }) => sum + memory.byteLength, 0);
    return this.steps.byteLength + this.#stacks.byteLength + listBytes + this.#latest.size * mapEntryBytes;
  }

  /** The state before anything was read. @throws GrammarTooAmbiguous */
  start(): number {
    this.#beginSearch();
    this.#meetAlternatives(0, emptyStack);
    return this.#foundState();
  }

  /** Where a byte leads, or `deadState`. @throws GrammarTooAmbiguous */
  next(state: number, byte: number): number {
    const known = this.steps[state * 256 + byte];
    return known === unknownState ? this.#step(state, byte) : known;
  }

  /** Whether the text read so far is complete. */
  isComplete(state: number): boolean {
    // The empty stack has the lowest name.
    return this.#members.memory[this.#membersStart(state)] === emptyStack;
  }

  /**
   * Forgets all that was met but these states, with what their stacks hold.
   * @returns the new name of each of them; all other names mean nothing any more
   */
  keepOnly(states: Iterable<number>): ReadonlyMap<number, number> {
    const stacks = new StackStore();
    const moved = new Map([[emptyStack, emptyStack]]);
    const kept = new Map<number, readonly number[]>();
    for (const state of states) if (state >= 0 && !kept.has(state)) kept.set(state, this.#membersOf(state));
    const members = Array.from(
      kept,
      ([state, list]) => [state, list.map((at) => this.#move(at, stacks, moved))] as const,
    );
    this.#otherWork = this.work;
    this.#stacks = stacks;
    this.steps = new Int32Array(16 * 256);
    for (const list of [this.#members, this.#memberEnds, this.#earlier, this.#found, this.#searches]) list.release();
    this.#latest.clear();
    this.#search = 0;
    this.#otherWork += moved.size * moveWork;
    return new Map(
      members.map(([state, list]) => {
        this.#found.clear();
        for (const stack of list) this.#found.push(stack);
        return [state, this.#stateOfFound()];
      }),
    );
  }

  /** A stack in another store. */
  #move(stack: number, target: StackStore, moved: Map<number, number>): number {
    const path: number[] = [];
    let base = moved.get(stack);
    for (let at = stack; base === undefined; base = moved.get(at)) {
      path.push(at);
      at = this.#stacks.below(at);
    }
    for (let at = path.pop(); at !== undefined; at = path.pop()) {
      base = target.push(this.#stacks.item(at), base);
      moved.set(at, base);
    }
    return base;
  }

  #step(state: number, byte: number): number {
    this.#beginSearch();
    // Bytes around this one that the same stacks take lead where it leads.
    let [low, high] = [0, 255];
    const { symbols } = this.#grammar;
    const end = this.#memberEnds.memory[state];
    for (let at = this.#membersStart(state); at < end; at++) {
      const stack = this.#members.memory[at];
      if (stack === emptyStack) continue;
      const range = symbols[this.#stacks.item(stack)];
      const [first, last] = [range >> 8, range & 255];
      if (byte < first) high = Math.min(high, first - 1);
      else if (byte > last) low = Math.max(low, last + 1);
      else {
        this.#meet(this.#after(stack));
        low = Math.max(low, first);
        high = Math.min(high, last);
      }
    }
    this.#otherWork += (end - this.#membersStart(state)) * stackWork;
    const next = this.#foundState();
    this.steps.fill(next, state * 256 + low, state * 256 + high + 1);
    return next;
  }

  #beginSearch(): void {
    this.#search += 1;
    this.#found.clear();
  }

  /** Adds a stack to what the search has met. */
  #meet(stack: number): void {
    this.#searches.resize(this.#stacks.count, 0);
    if (this.#searches.memory[stack] === this.#search) return;
    this.#searches.memory[stack] = this.#search;
    this.#found.push(stack);
  }

  #meetAlternatives(rule: number, rest: number): void {
    const { firstAlternatives, firstItems } = this.#grammar;
    for (let at = firstAlternatives[rule]; at < firstAlternatives[rule + 1]; at++) {
      this.#meet(this.#stacks.push(firstItems[at], rest));
    }
  }

  /** The state of the stacks that were met, once rules on top are replaced by what they begin with. */
  #foundState(): number {
    const found = this.#found;
    let kept = 0;
    // The loop also visits stacks that are added while it runs.
    for (let at = 0; at < found.length; at++) {
      if (found.length > maxSearchedStacks) throw new GrammarTooAmbiguous("a byte can be read in too many ways");
      const stack = found.memory[at];
      const symbol = stack === emptyStack ? 0 : this.#grammar.symbols[this.#stacks.item(stack)];
      if (symbol >= firstRuleSymbol) this.#meetAlternatives(symbol - firstRuleSymbol, this.#after(stack));
      else if (symbol === endOfAlternative) this.#meet(this.#stacks.below(stack));
      else found.memory[kept++] = stack;
    }
    this.#otherWork += found.length * stackWork;
    if (kept === 0) return deadState;
    found.length = Math.min(kept, maxStacks);
    return this.#stateOfFound();
  }

  /** The state that has just the stacks of `found`. */
  #stateOfFound(): number {
    const stacks = this.#found.view();
    stacks.sort();
    let key = stacks.length;
    for (const stack of stacks) key = Math.imul(key ^ stack, 0x9e3779b1) ^ (key >>> 15);
    const latest = this.#latest.get(key) ?? deadState;
    for (let state = latest; state !== deadState; state = this.#earlier.memory[state]) {
      if (this.#hasMembers(state, stacks)) return state;
    }
    const state = this.stateCount;
    this.#latest.set(key, state);
    this.#earlier.push(latest);
    this.#members.append(stacks);
    this.#memberEnds.push(this.#members.length);
    this.#addSteps(state);
    return state;
  }

  #hasMembers(state: number, stacks: Int32Array): boolean {
    const start = this.#membersStart(state);
    const count = this.#memberEnds.memory[state] - start;
    this.#otherWork += count;
    if (count !== stacks.length) return false;
    for (let i = 0; i < count; i++) if (this.#members.memory[start + i] !== stacks[i]) return false;
    return true;
  }

  #addSteps(state: number): void {
    this.#otherWork += stateWork;
    const start = state * 256;
    if (start === this.steps.length) {
      const grown = new Int32Array(2 * start);
      grown.set(this.steps);
      this.steps = grown;
    }
    this.steps.fill(unknownState, start, start + 256);
  }

  /** The stack without the symbol on top. */
  #after(stack: number): number {
    const item = this.#stacks.item(stack) + 1;
    const below = this.#stacks.below(stack);
    // An alternative that has been read is left at once, so that recursion at the end of a rule needs no depth.
    return this.#grammar.symbols[item] === endOfAlternative ? below : this.#stacks.push(item, below);
  }

  #membersStart(state: number): number {
    return state === 0 ? 0 : this.#memberEnds.memory[state - 1];
  }

  #membersOf(state: number): number[] {
    return Array.from(this.#members.memory.subarray(this.#membersStart(state), this.#memberEnds.memory[state]));
  }
}
