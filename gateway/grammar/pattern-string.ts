/**
 * JSON strings whose characters match a pattern: its automaton is made deterministic, and each state becomes a rule.
 */
import type { GrammarSymbol } from "../../worker/contract/grammar.ts";
import type { Budget } from "./budget.ts";
import { type Alternative, type GrammarBuilder, literal } from "./builder.ts";
import { setOf } from "./code-points.ts";
import type { Automaton, Jump } from "./pattern.ts";
import { PatternFault } from "./pattern-syntax.ts";
import { character } from "./spelling.ts";

const maxStates = 2_000;

/**
 * @param minChars in code points, as `maxChars` is
 * @throws PatternFault, GrammarTooLarge when the result is too large
 */
export function patternString(
  it: GrammarBuilder,
  automaton: Automaton,
  minChars: number,
  maxChars: number,
): GrammarSymbol {
  const reader = new Reader(automaton, it.budget);
  const counted = maxChars === Number.POSITIVE_INFINITY ? minChars : maxChars;
  const rules = new Map<string, GrammarSymbol>();
  const open: { readonly states: readonly number[]; readonly chars: number; readonly rule: GrammarSymbol }[] = [];
  const ruleOf = (states: readonly number[], chars: number): GrammarSymbol => {
    const key = `${chars} ${states.join()}`;
    const known = rules.get(key);
    if (known !== undefined) return known;
    if (rules.size >= maxStates) throw new PatternFault("is too large");
    const rule = it.declare();
    rules.set(key, rule);
    open.push({ states, chars, rule });
    return rule;
  };
  const signs = new Map<string, GrammarSymbol>();
  const signOf = (classes: readonly number[]): GrammarSymbol => {
    const key = classes.join();
    const known = signs.get(key);
    if (known !== undefined) return known;
    const ranges = classes.flatMap((id) => automaton.classes[id] ?? []);
    it.budget.spend("looks", ranges.length);
    const sign = character(it, setOf(ranges));
    signs.set(key, sign);
    return sign;
  };
  const first = ruleOf(reader.start(), 0);
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const { states, chars, rule } = next;
    const alternatives: Alternative[] = [];
    if (chars >= minChars && reader.canEnd(states, rule === first)) alternatives.push(literal('"'));
    if (chars < maxChars) {
      for (const { classes, to } of reader.steps(states)) {
        alternatives.push([signOf(classes), ruleOf(to, Math.min(counted, chars + 1))]);
      }
    }
    it.define(rule, alternatives);
  }
  return it.rule([[...literal('"'), first]]);
}

interface Step {
  readonly classes: readonly number[];
  readonly to: readonly number[];
}

/** Reads the automaton in all states at once. Sets of states are sorted lists. */
class Reader {
  readonly #automaton: Automaton;
  readonly #budget: Budget;
  /** The states from which jumps lead to the last state at the end of a text, and at the end of an empty one. */
  readonly #ending: ReadonlySet<number>;
  readonly #endingAtStart: ReadonlySet<number>;

  constructor(automaton: Automaton, budget: Budget) {
    this.#automaton = automaton;
    this.#budget = budget;
    const before = turned(automaton.jumps);
    this.#ending = closure([automaton.last], before, (kind) => kind !== "start", budget);
    this.#endingAtStart = closure([automaton.last], before, () => true, budget);
  }

  start(): readonly number[] {
    return this.#closed([this.#automaton.first], true);
  }

  canEnd(states: readonly number[], isStart: boolean): boolean {
    const ending = isStart ? this.#endingAtStart : this.#ending;
    return states.some((state) => ending.has(state));
  }

  /** The steps that any character can take from these states. No character is in two steps. */
  steps(states: readonly number[]): readonly Step[] {
    const targets = new Map<number, number[]>();
    for (const state of states) {
      const moves = this.#automaton.moves[state] ?? [];
      this.#budget.spend("looks", moves.length + 1);
      for (const { class: id, to } of moves) {
        targets.getOrInsertComputed(id, () => []).push(to);
      }
    }
    // Classes that lead to the same states are merged first, so that the jumps from these states are followed once.
    const byTargets = Map.groupBy(targets, ([, to]) => to.join());
    const steps = Array.from(byTargets.values(), (group) => ({
      classes: group.map(([id]) => id).sort((a, b) => a - b),
      to: this.#closed(group[0]?.[1] ?? [], false),
    }));
    const merged = Map.groupBy(steps, ({ to }) => to.join());
    return Array.from(merged.values(), (same) => ({
      classes: same.flatMap(({ classes }) => classes).sort((a, b) => a - b),
      to: same[0]?.to ?? [],
    }));
  }

  #closed(states: readonly number[], isStart: boolean): readonly number[] {
    const isOpen = (kind: Jump["kind"]): boolean => kind === "always" || (isStart && kind === "start");
    return [...closure(states, this.#automaton.jumps, isOpen, this.#budget)].sort((a, b) => a - b);
  }
}

function closure(
  states: readonly number[],
  jumps: Automaton["jumps"],
  isOpen: (kind: Jump["kind"]) => boolean,
  budget: Budget,
): ReadonlySet<number> {
  const found = new Set(states);
  for (const state of found) {
    const out = jumps[state] ?? [];
    budget.spend("looks", out.length + 1);
    for (const { kind, to } of out) if (isOpen(kind)) found.add(to);
  }
  return found;
}

/** The jumps backwards: for each state, the jumps that lead to it. */
function turned(jumps: Automaton["jumps"]): Automaton["jumps"] {
  const before: Jump[][] = jumps.map(() => []);
  for (const [from, list] of jumps.entries()) for (const { kind, to } of list) before[to]?.push({ kind, to: from });
  return before;
}
