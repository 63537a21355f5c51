/**
 * JSON values as byte grammars. Whatever a model could write without end is bounded where no useful value is lost: the
 * digits of a number, white space, and the depth of values that no schema describes.
 */
import { byteRange, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { type Alternative, type GrammarBuilder, literal, range } from "./builder.ts";

/** Deepest nesting of arrays and objects in a value without a schema. */
const anyDepth = 12;
const indentChars = 24;
const integerDigits = 15;
const fractionDigits = 16;
const exponentDigits = 2;

const digit = range("0", "9");

/** White space in a value: none, a space, or a line break with an indent. */
export const space = (it: GrammarBuilder): GrammarSymbol =>
  it.shared("space", () => [
    [],
    literal(" "),
    [...literal("\n"), ...it.repeat("indent", literal(" "), 0, indentChars)],
  ]);

/** Integers. The number of digits is bounded, so that a double holds every value exactly. */
export const integer = (it: GrammarBuilder): GrammarSymbol =>
  it.shared("integer", () => {
    const whole = it.shared("whole", () => [
      literal("0"),
      [range("1", "9"), ...it.repeat("digit", [digit], 0, integerDigits - 1)],
    ]);
    return [[whole], [...literal("-"), whole]];
  });

export const number = (it: GrammarBuilder): GrammarSymbol =>
  it.shared("number", () => {
    const fraction = it.rule([[], [...literal("."), ...it.repeat("digit", [digit], 1, fractionDigits)]]);
    const sign = it.rule([[], literal("+"), literal("-")]);
    const mark = it.rule([literal("e"), literal("E")]);
    const exponent = it.rule([[], [mark, sign, ...it.repeat("digit", [digit], 1, exponentDigits)]]);
    return [[integer(it), fraction, exponent]];
  });

/** A string of `minChars` to `maxChars` code points. */
export const string = (it: GrammarBuilder, minChars = 0, maxChars = Number.POSITIVE_INFINITY): GrammarSymbol =>
  it.shared(`string ${minChars} ${maxChars}`, () => [
    [...literal('"'), ...it.repeat("char", [char(it)], minChars, maxChars), ...literal('"')],
  ]);

export const boolean = (it: GrammarBuilder): GrammarSymbol =>
  it.shared("boolean", () => [literal("true"), literal("false")]);

export const nothing = (it: GrammarBuilder): GrammarSymbol => it.shared("null", () => [literal("null")]);

/** Any value, with at most `depth` nested arrays and objects. */
export const anyValue = (it: GrammarBuilder, depth = anyDepth): GrammarSymbol =>
  it.shared(`any ${depth}`, () => {
    const scalars: Alternative[] = [[string(it)], [number(it)], [boolean(it)], [nothing(it)]];
    return depth === 0 ? scalars : [...scalars, [anyObject(it, depth)], [anyArray(it, depth)]];
  });

export const anyObject = (it: GrammarBuilder, depth = anyDepth): GrammarSymbol =>
  it.shared(`object ${depth}`, () => mapOf(it, `member ${depth}`, anyValue(it, depth - 1)));

export const anyArray = (it: GrammarBuilder, depth = anyDepth): GrammarSymbol =>
  it.shared(`array ${depth}`, () => arrayOf(it, `item ${depth}`, anyValue(it, depth - 1)));

/** Objects with any names, whose values all fit one rule. @param name of the value's rule, for sharing parts */
export function mapOf(it: GrammarBuilder, name: string, value: GrammarSymbol): readonly Alternative[] {
  const member = [string(it), ...literal(":"), space(it), value];
  const more = it.repeat(name, [...literal(","), space(it), ...member], 0, Number.POSITIVE_INFINITY);
  return [literal("{}"), [...literal("{"), space(it), ...member, ...more, space(it), ...literal("}")]];
}

/** @param name of the entries' rule, under which parts are shared */
export function arrayOf(
  it: GrammarBuilder,
  name: string,
  item: GrammarSymbol,
  minItems = 0,
  maxItems = Number.POSITIVE_INFINITY,
): readonly Alternative[] {
  const alternatives: Alternative[] = minItems === 0 ? [literal("[]")] : [];
  if (maxItems > 0) {
    const next = [...literal(","), space(it), item];
    const more = it.repeat(name, next, Math.max(0, minItems - 1), maxItems - 1);
    alternatives.push([...literal("["), space(it), item, ...more, space(it), ...literal("]")]);
  }
  return alternatives;
}

/** One character of a string: in UTF-8, or as an escape that stands for a whole character. */
const char = (it: GrammarBuilder): GrammarSymbol =>
  it.shared("char", () => {
    const hex = it.rule([[digit], [range("a", "f")], [range("A", "F")]]);
    const one = (chars: string): GrammarSymbol => it.rule([...chars].map(literal));
    const plain = one("0123456789abcefABCEF");
    const surrogateSide = one("dD");
    const escapes = it.rule([
      [one('"\\/bfnrt')],
      [...literal("u"), plain, hex, hex, hex],
      [...literal("u"), surrogateSide, range("0", "7"), hex, hex],
      [
        ...[...literal("u"), surrogateSide, one("89abAB"), hex, hex],
        ...[...literal("\\u"), surrogateSide, one("cdefCDEF"), hex, hex],
      ],
    ]);
    return [
      ...[[byteRange(0x20, 0x21)], [byteRange(0x23, 0x5b)], [byteRange(0x5d, 0x7f)]],
      [...literal("\\"), escapes],
      ...wideChars,
    ];
  });

const tail = byteRange(0x80, 0xbf);
/** Well-formed UTF-8 of more than one byte (Unicode 15, table 3-7). */
const wideChars: readonly Alternative[] = [
  [byteRange(0xc2, 0xdf), tail],
  [byteRange(0xe0, 0xe0), byteRange(0xa0, 0xbf), tail],
  [byteRange(0xe1, 0xec), tail, tail],
  [byteRange(0xed, 0xed), byteRange(0x80, 0x9f), tail],
  [byteRange(0xee, 0xef), tail, tail],
  [byteRange(0xf0, 0xf0), byteRange(0x90, 0xbf), tail, tail],
  [byteRange(0xf1, 0xf3), tail, tail, tail],
  [byteRange(0xf4, 0xf4), byteRange(0x80, 0x8f), tail, tail],
];
