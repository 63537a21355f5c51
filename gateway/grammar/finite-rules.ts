/** Which rules of a grammar some finite text is of. */
import { firstRuleSymbol, type GrammarRules } from "../../worker/contract/grammar.ts";

interface Open {
  readonly rule: number;
  /** Places of rules in it that are not known to be finite. */
  left: number;
}

/** Each alternative is looked at when a rule that it names is found finite: the work is linear in the grammar. */
export function finiteRules(rules: GrammarRules): ReadonlySet<number> {
  const finite = new Set<number>();
  /** Of each rule, the alternatives that name it, as often as they do. */
  const naming = new Map<number, Open[]>();
  for (const [rule, alternatives] of rules.entries()) {
    for (const alternative of alternatives) {
      const named = alternative.filter((symbol) => symbol >= firstRuleSymbol);
      if (named.length === 0) finite.add(rule);
      const open: Open = { rule, left: named.length };
      for (const symbol of named) {
        const others = naming.get(symbol - firstRuleSymbol);
        if (others === undefined) naming.set(symbol - firstRuleSymbol, [open]);
        else others.push(open);
      }
    }
  }
  // A set is gone through in the order of insertion, with what is added on the way.
  for (const rule of finite) {
    for (const open of naming.get(rule) ?? []) {
      open.left -= 1;
      if (open.left === 0) finite.add(open.rule);
    }
  }
  return finite;
}
