/** A grammar's rules laid out in arrays: an item is a place in an alternative. */

import { IntList } from "../base/int-list.ts";
import { type ByteGrammar, endOfAlternative, endOfRule, firstRuleSymbol } from "../contract/grammar.ts";

export class GrammarItems {
  /** Alternatives one after the other, each closed by `endOfAlternative`, each rule by `endOfRule`. */
  readonly symbols: Int32Array;
  /** [alternatives] the items that they begin with. */
  readonly firstItems: Int32Array;
  /** [rules + 1] the first of each rule's alternatives, in `firstItems`. */
  readonly firstAlternatives: Int32Array;

  constructor({ symbols }: ByteGrammar) {
    const [firstItems, firstAlternatives] = [new IntList(), new IntList()];
    firstAlternatives.push(0);
    let first = 0;
    for (const [item, symbol] of symbols.entries()) {
      if (symbol >= 0) continue;
      if (symbol === endOfRule) firstAlternatives.push(firstItems.length);
      else firstItems.push(first);
      first = item + 1;
    }
    this.symbols = symbols;
    this.firstItems = firstItems.view().slice();
    this.firstAlternatives = firstAlternatives.view().slice();
  }

  get byteLength(): number {
    return this.symbols.byteLength + this.firstItems.byteLength + this.firstAlternatives.byteLength;
  }

  /**
   * Whether some rule that can be met begins with itself before a byte was taken. Takes time in the number of symbols.
   */
  recursOnLeft(): boolean {
    const leads = this.#leadingRules(this.#emptyRules());
    const [unseen, open, done] = [0, 1, 2];
    const marks = new Uint8Array(leads.length).fill(unseen);
    // The path that is followed, and on it what is still to be followed of each rule.
    const path: { readonly rule: number; at: number }[] = [];
    for (const first of this.#metRules()) {
      if (marks[first] === unseen) path.push({ rule: first, at: 0 });
      for (let top = path.at(-1); top !== undefined; top = path.at(-1)) {
        marks[top.rule] = open;
        const next = leads[top.rule][top.at++];
        if (next === undefined) {
          marks[top.rule] = done;
          path.pop();
        } else if (marks[next] === open) return true;
        else if (marks[next] === unseen) path.push({ rule: next, at: 0 });
      }
    }
    return false;
  }

  /** Rules that the first one leads to. */
  #metRules(): ReadonlySet<number> {
    const met = new Set([0]);
    // A set is gone through in the order of insertion, with what is added on the way.
    for (const rule of met) {
      for (let at = this.firstAlternatives[rule]; at < this.firstAlternatives[rule + 1]; at++) {
        for (let item = this.firstItems[at]; this.symbols[item] !== endOfAlternative; item++) {
          if (this.symbols[item] >= firstRuleSymbol) met.add(this.symbols[item] - firstRuleSymbol);
        }
      }
    }
    return met;
  }

  /** [rules] 1: the rule matches the empty text. */
  #emptyRules(): Uint8Array {
    const ruleCount = this.firstAlternatives.length - 1;
    const empty = new Uint8Array(ruleCount);
    /** Of each rule: the alternatives that name it, one entry for each time. */
    const naming: number[][] = Array.from({ length: ruleCount }, () => []);
    const ruleOf = new Int32Array(this.firstItems.length);
    /** Symbols of an alternative that are not known to be empty. */
    const lacking = new Int32Array(this.firstItems.length);
    const found: number[] = [];
    const note = (alternative: number): void => {
      const rule = ruleOf[alternative];
      if (lacking[alternative] > 0 || empty[rule] === 1) return;
      empty[rule] = 1;
      found.push(rule);
    };
    for (let rule = 0; rule < ruleCount; rule++) {
      for (let at = this.firstAlternatives[rule]; at < this.firstAlternatives[rule + 1]; at++) {
        ruleOf[at] = rule;
        for (let item = this.firstItems[at]; this.symbols[item] !== endOfAlternative; item++) {
          lacking[at] += 1;
          if (this.symbols[item] >= firstRuleSymbol) naming[this.symbols[item] - firstRuleSymbol].push(at);
        }
        note(at);
      }
    }
    for (let rule = found.pop(); rule !== undefined; rule = found.pop()) {
      for (const alternative of naming[rule]) {
        lacking[alternative] -= 1;
        note(alternative);
      }
    }
    return empty;
  }

  /** Of each rule: the rules that may come before its first byte. */
  #leadingRules(empty: Uint8Array): readonly (readonly number[])[] {
    return Array.from(empty, (_, rule) => {
      const leads: number[] = [];
      for (let at = this.firstAlternatives[rule]; at < this.firstAlternatives[rule + 1]; at++) {
        for (let item = this.firstItems[at]; this.symbols[item] >= firstRuleSymbol; item++) {
          const named = this.symbols[item] - firstRuleSymbol;
          leads.push(named);
          if (empty[named] === 0) break;
        }
      }
      return leads;
    });
  }
}
