/** JSON strings whose characters match a pattern: the pattern's automaton made deterministic, a rule for each state. */
import { byteRange, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { type Alternative, type GrammarBuilder, literal } from "./builder.ts";
import { type Automaton, PatternFault } from "./pattern.ts";

const maxStates = 2_000;
/** Looks at edges: a pattern of many states that are together costs more than the states that come of it. */
const maxLooks = 2 ** 22;

/** @param minChars code points, as `maxChars` @throws PatternFault when it is too large */
export function patternString(
  it: GrammarBuilder,
  automaton: Automaton,
  minChars: number,
  maxChars: number,
): GrammarSymbol {
  const reader = new Reader(automaton);
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
  const first = ruleOf(reader.start(), 0);
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const { states, chars, rule } = next;
    const alternatives: Alternative[] = [];
    if (chars >= minChars && reader.canEnd(states, rule === first)) alternatives.push(literal('"'));
    if (chars < maxChars) {
      for (const { low, high, to } of reader.steps(states)) {
        const sign = it.shared(`characters ${low} ${high}`, () => spelled(low, high));
        alternatives.push([sign, ruleOf(to, Math.min(counted, chars + 1))]);
      }
    }
    it.define(rule, alternatives);
  }
  return it.rule([[...literal('"'), first]]);
}

interface Step {
  readonly low: number;
  readonly high: number;
  readonly to: readonly number[];
}

/** Sets of the automaton's states, sorted. */
class Reader {
  readonly #automaton: Automaton;
  #looks = 0;

  constructor(automaton: Automaton) {
    this.#automaton = automaton;
  }

  start(): readonly number[] {
    return this.#closed([this.#automaton.first], { start: true, end: false });
  }

  canEnd(states: readonly number[], isStart: boolean): boolean {
    return this.#closed(states, { start: isStart, end: true }).includes(this.#automaton.last);
  }

  /** Where characters lead, in ranges that do not overlap. */
  steps(states: readonly number[]): readonly Step[] {
    const edges = states.flatMap((state) => this.#automaton.edges[state] ?? []).filter((edge) => edge.kind === "some");
    const ranges = edges.flatMap(({ of, to }) => of.map(([low, high]) => ({ low, high, to })));
    const bounds = [...new Set(ranges.flatMap(({ low, high }) => [low, high + 1]))].sort((a, b) => a - b);
    this.#look(bounds.length * ranges.length);
    const steps: Step[] = [];
    for (const [i, low] of bounds.slice(0, -1).entries()) {
      const high = (bounds[i + 1] ?? low + 1) - 1;
      const targets = ranges.filter((range) => range.low <= low && range.high >= high).map(({ to }) => to);
      if (targets.length === 0) continue;
      const to = this.#closed(targets, { start: false, end: false });
      const before = steps.at(-1);
      if (before !== undefined && before.high === low - 1 && before.to.join() === to.join()) {
        steps[steps.length - 1] = { ...before, high };
      } else steps.push({ low, high, to });
    }
    return steps;
  }

  #look(times: number): void {
    this.#looks += times;
    if (this.#looks > maxLooks) throw new PatternFault("is too large");
  }

  #closed(states: readonly number[], at: { readonly start: boolean; readonly end: boolean }): readonly number[] {
    const found = new Set(states);
    for (const state of found) {
      this.#look(1);
      for (const edge of this.#automaton.edges[state] ?? []) {
        if (edge.kind === "empty" || (edge.kind !== "some" && at[edge.kind])) found.add(edge.to);
      }
    }
    return [...found].sort((a, b) => a - b);
  }
}

const shortEscapes: Readonly<Record<number, string>> = {
  8: "\\b",
  9: "\\t",
  10: "\\n",
  12: "\\f",
  13: "\\r",
  34: '\\"',
  92: "\\\\",
};

/** Each character in one way: as UTF-8, or by an escape where JSON needs one. */
function spelled(low: number, high: number): readonly Alternative[] {
  const alternatives: Alternative[] = [];
  let from = low;
  for (let codePoint = low; codePoint <= Math.min(high, 0x5c); codePoint++) {
    if (codePoint >= 0x20 && shortEscapes[codePoint] === undefined) continue;
    if (codePoint > from) alternatives.push(...utf8(from, codePoint - 1));
    alternatives.push(literal(shortEscapes[codePoint] ?? `\\u00${codePoint.toString(16).padStart(2, "0")}`));
    from = codePoint + 1;
  }
  return from <= high ? [...alternatives, ...utf8(from, high)] : alternatives;
}

/** Where encodings become longer. */
const lengthEnds = [0x7f, 0x7ff, 0xffff];

/** Sequences of byte ranges that spell these code points, and no others. */
function utf8(low: number, high: number): readonly Alternative[] {
  const longer = lengthEnds.find((end) => low <= end && high > end);
  if (longer !== undefined) return [...utf8(low, longer), ...utf8(longer + 1, high)];
  const [lowBytes, highBytes] = [bytesOf(low), bytesOf(high)];
  for (let tail = 1; tail < lowBytes.length; tail++) {
    const mask = 2 ** (6 * tail) - 1;
    if ((low & ~mask) === (high & ~mask)) continue;
    if ((low & mask) !== 0) return [...utf8(low, low | mask), ...utf8((low | mask) + 1, high)];
    if ((high & mask) !== mask) return [...utf8(low, (high & ~mask) - 1), ...utf8(high & ~mask, high)];
  }
  return [Array.from(lowBytes, (byte, i) => byteRange(byte, highBytes[i] ?? byte))];
}

const bytesOf = (codePoint: number): Uint8Array => new TextEncoder().encode(String.fromCodePoint(codePoint));
