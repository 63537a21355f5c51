/** Numbers between bounds as a byte grammar: plain decimals, in which each digit is checked against the bounds. */
import type { GrammarSymbol } from "../../worker/contract/grammar.ts";
import { type Alternative, type GrammarBuilder, literal, range } from "./builder.ts";

/** Most decimal digits that a double holds exactly. A number with more could be rounded beyond a bound. */
const maxDigits = 15;
const greatest = 10 ** maxDigits - 1;

export interface Bound {
  readonly value: number;
  /** true: the bound itself is not in the range. */
  readonly exclusive: boolean;
}

/** A range of numbers. undefined: there is no bound on that side. */
export interface NumberRange {
  readonly least: Bound | undefined;
  readonly greatest: Bound | undefined;
}

/** @returns undefined when no such integer exists */
export function integerBetween(it: GrammarBuilder, bounds: NumberRange): GrammarSymbol | undefined {
  const { least: low, greatest: high } = bounds;
  const least = low === undefined ? -greatest : low.exclusive ? Math.floor(low.value) + 1 : Math.ceil(low.value);
  const most = high === undefined ? greatest : high.exclusive ? Math.ceil(high.value) - 1 : Math.floor(high.value);
  const from = Math.max(least, -greatest);
  const to = Math.min(most, greatest);
  if (from > to) return undefined;
  const alternatives: Alternative[] = [];
  if (from < 0) alternatives.push([...literal("-"), wholes(it, Math.max(1, -to), -from)]);
  if (to >= 0) alternatives.push([wholes(it, Math.max(0, from), to)]);
  return it.rule(alternatives);
}

/**
 * @param bounds integers
 * @returns undefined when no such number of at most 15 digits before its point exists
 */
export function numberBetween(it: GrammarBuilder, bounds: NumberRange): GrammarSymbol | undefined {
  if ((bounds.least?.value ?? 0) > greatest || (bounds.greatest?.value ?? 0) < -greatest) return undefined;
  const least = within(bounds.least ?? { value: -greatest, exclusive: false });
  const most = within(bounds.greatest ?? { value: greatest, exclusive: false });
  if (least.value > most.value) return undefined;
  if (least.value === most.value && (least.exclusive || most.exclusive)) return undefined;
  const zero = { value: 0, exclusive: false };
  const alternatives: Alternative[] = [];
  if (least.value < 0) {
    const nearest = most.value < 0 ? { ...most, value: -most.value } : { value: 0, exclusive: true };
    alternatives.push([...literal("-"), decimals(it, nearest, { ...least, value: -least.value })]);
  }
  if (most.value > 0) alternatives.push([decimals(it, least.value < 0 ? zero : least, most)]);
  else if (most.value === 0 && !most.exclusive) alternatives.push(literal("0"));
  return it.rule(alternatives);
}

/** The bound, moved to the nearest number of at most 15 digits. */
const within = ({ value, exclusive }: Bound): Bound =>
  Math.abs(value) > greatest ? { value: Math.sign(value) * greatest, exclusive: false } : { value, exclusive };

/** Decimals from a bound of 0 or more to a greater or equal one. Equal bounds must both include their number. */
function decimals(it: GrammarBuilder, least: Bound, most: Bound): GrammarSymbol {
  const alternatives: Alternative[] = [];
  if (least.value < most.value) {
    const [text, places] = [literal(String(least.value)), placesBehind(String(least.value).length)];
    alternatives.push([...text, least.exclusive ? fractionAboveZero(it, places) : fraction(it, places)]);
  }
  for (const [digits, from, to] of byDigits(least.value + 1, most.value - 1)) {
    const whole = it.rule(sameLength(it, String(from), String(to)));
    alternatives.push([whole, fraction(it, placesBehind(digits))]);
  }
  if (!most.exclusive) alternatives.push(literal(String(most.value)));
  return it.rule(alternatives);
}

/** Most places behind the point. A number of 15 digits may have one: even this does not round to the next integer. */
const placesBehind = (digits: number): number => Math.max(1, maxDigits - digits);

/** Nothing, or a point and digits. */
const fraction = (it: GrammarBuilder, places: number): GrammarSymbol =>
  it.shared(`fraction ${places}`, () => [[], [...literal("."), ...it.repeat("digit", [range("0", "9")], 1, places)]]);

/** A point and digits, not all of them 0. */
const fractionAboveZero = (it: GrammarBuilder, places: number): GrammarSymbol =>
  it.shared(`fraction above 0 ${places}`, () => [[...literal("."), digitsAboveZero(it, places)]]);

function digitsAboveZero(it: GrammarBuilder, most: number): GrammarSymbol {
  return it.shared(`digits above 0 ${most}`, () => [
    [range("1", "9"), ...it.repeat("digit", [range("0", "9")], 0, most - 1)],
    ...(most > 1 ? [[...literal("0"), digitsAboveZero(it, most - 1)]] : []),
  ]);
}

/** Integers of 0 or more without leading zeros. */
function wholes(it: GrammarBuilder, from: number, to: number): GrammarSymbol {
  return it.rule([...byDigits(from, to)].flatMap(([, least, most]) => sameLength(it, String(least), String(most))));
}

/** Cuts a range of integers of 0 or more where their texts become longer. */
function* byDigits(from: number, to: number): Generator<readonly [digits: number, from: number, to: number]> {
  for (let digits = String(from).length; from <= to && digits <= String(to).length; digits++) {
    yield [digits, Math.max(from, digits === 1 ? 0 : 10 ** (digits - 1)), Math.min(to, 10 ** digits - 1)];
  }
}

/** The texts of the digits from one number to another of the same length. */
function sameLength(it: GrammarBuilder, from: string, to: string): readonly Alternative[] {
  if (/^0*$/.test(from) && /^9*$/.test(to)) return [it.repeat("digit", [range("0", "9")], from.length, from.length)];
  const [low = "", high = ""] = [from[0], to[0]];
  const [lowRest, highRest] = [from.slice(1), to.slice(1)];
  if (low === high) return [[...literal(low), it.rule(sameLength(it, lowRest, highRest))]];
  const [zeros, nines] = ["0".repeat(lowRest.length), "9".repeat(lowRest.length)];
  const next = (sign: string, step: number): string => String(Number(sign) + step);
  const alternatives: Alternative[] = [[...literal(low), it.rule(sameLength(it, lowRest, nines))]];
  if (Number(high) - Number(low) > 1) {
    const between = range(next(low, 1), next(high, -1));
    alternatives.push([between, ...it.repeat("digit", [range("0", "9")], lowRest.length, lowRest.length)]);
  }
  return [...alternatives, [...literal(high), it.rule(sameLength(it, zeros, highRest))]];
}
