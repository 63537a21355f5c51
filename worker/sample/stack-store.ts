/** Stacks of items, each stored once: what is still to be read, innermost first. Names are counted from 0. */

import { IntList } from "../base/int-list.ts";
import { endOfAlternative } from "../contract/grammar.ts";

/** Nothing is left to be read. */
export const emptyStack = 0;
const free = 0;

export class StackStore {
  /** Stacks looked at, those met on the way to one among them. */
  lookups = 0;
  /** Of each stack: where it goes on, and the stack below. */
  readonly #itemList = new IntList(64);
  readonly #belowList = new IntList(64);
  /** Names of stacks, at the place that item and stack below come to or behind it; `free` where there is none. */
  #table = new Int32Array(256).fill(free);

  constructor() {
    this.#itemList.push(endOfAlternative);
    this.#belowList.push(emptyStack);
  }

  get count(): number {
    return this.#itemList.length;
  }

  get byteLength(): number {
    return this.#table.byteLength + this.#itemList.memory.byteLength + this.#belowList.memory.byteLength;
  }

  item(stack: number): number {
    return this.#itemList.memory[stack];
  }

  below(stack: number): number {
    return this.#belowList.memory[stack];
  }

  /** The stack that has an item on top of another stack. */
  push(item: number, below: number): number {
    const last = this.#table.length - 1;
    const [items, belows] = [this.#itemList.memory, this.#belowList.memory];
    let place = placeOf(item, below) & last;
    for (let known = this.#table[place]; known !== free; known = this.#table[place]) {
      this.lookups += 1;
      if (items[known] === item && belows[known] === below) return known;
      place = (place + 1) & last;
    }
    const stack = this.count;
    this.#itemList.push(item);
    this.#belowList.push(below);
    this.#table[place] = stack;
    if (2 * stack > this.#table.length) this.#growTable();
    return stack;
  }

  #growTable(): void {
    const last = 4 * this.#table.length - 1;
    this.#table = new Int32Array(last + 1).fill(free);
    for (let stack = 1; stack < this.count; stack++) {
      let place = placeOf(this.item(stack), this.below(stack)) & last;
      while (this.#table[place] !== free) place = (place + 1) & last;
      this.#table[place] = stack;
    }
  }
}

function placeOf(item: number, below: number): number {
  const mixed = Math.imul(item, 0x9e3779b1) ^ Math.imul(below, 0x85ebca6b);
  return (mixed ^ (mixed >>> 15)) >>> 0;
}
