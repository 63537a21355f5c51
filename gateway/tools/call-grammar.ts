/**
 * Spells answers with calls as the model's own template writes them. A sign is one byte that no text has (see
 * TokenBytes.vocabulary), so the grammar asks for the control token itself.
 */
import { byteRange, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { type Alternative, type GrammarBuilder, literal } from "../grammar/builder.ts";
import { schemaRule } from "../grammar/json-schema.ts";
import { anyObject } from "../grammar/json-values.ts";
import { type CallSyntax, signByte, signIndex } from "../text/call-syntax.ts";
import type { CallableTool, CallRules } from "./answer-rules.ts";

/** Greatest byte that stands in texts; the bytes above it stand for signs. */
const lastTextByte = signByte(0) - 1;

/**
 * The rule of an answer that makes calls, or also of one without calls where calls are optional.
 * @param format rule of an answer without calls; undefined: any text
 * @throws GrammarTooLarge, and as `argumentsOf` does
 */
export function callRule(
  it: GrammarBuilder,
  rules: CallRules,
  format: GrammarSymbol | undefined,
  argumentsOf: (tool: CallableTool) => GrammarSymbol,
): GrammarSymbol {
  const { syntax } = rules;
  const calls = callsRule(it, rules, argumentsOf);
  const answer = [...signed(syntax.before), calls];
  if (rules.mode === "required") return it.rule([answer]);
  if (format !== undefined) return it.rule([[format], answer]);
  if (syntax.marker === "") return it.rule([[textRule(it)], answer]);
  return textUntil(it, syntax, calls);
}

/** The rule of a row of calls, from the first name on. */
function callsRule(
  it: GrammarBuilder,
  { syntax: { between, after, separator }, tools, parallel }: CallRules,
  argumentsOf: (tool: CallableTool) => GrammarSymbol,
): GrammarSymbol {
  const one = it.rule(tools.map((tool) => [...literal(tool.name), ...signed(between), argumentsOf(tool)]));
  const calls = it.declare();
  const ends = [[one, ...signed(after)]];
  it.define(calls, separator === undefined || !parallel ? ends : [...ends, [one, ...signed(separator), calls]]);
  return calls;
}

/** @throws SchemaFault, GrammarTooLarge */
export function argumentsRule(it: GrammarBuilder, { parameters }: CallableTool): GrammarSymbol {
  if (parameters === undefined) return anyObject(it);
  // Arguments are an object, even where a schema without a type would allow more. A schema with an empty `properties`
  // allows only the empty object.
  const isOpen = !("type" in parameters || "$ref" in parameters || "anyOf" in parameters);
  const typed = isOpen ? { ...parameters, type: "object" } : parameters;
  const hasNone = JSON.stringify(typed.properties) === "{}" && !("additionalProperties" in typed);
  return schemaRule(it, hasNone ? { ...typed, additionalProperties: false } : typed);
}

/** Any text that does not begin as a call does. */
function textRule(it: GrammarBuilder): GrammarSymbol {
  const any = it.repeat("any", [byteRange(0, lastTextByte)], 0, Number.POSITIVE_INFINITY);
  const spaces = it.rule([literal(" "), literal("\n"), literal("\r"), literal("\t")]);
  const begins = it.rule(gaps([0x09, 0x0a, 0x0d, 0x20, 0x5b, 0x7b]).map((range) => [range]));
  return it.rule([
    [],
    [...it.repeat("spaces", [spaces], 0, Number.POSITIVE_INFINITY), it.rule([[], [begins, ...any]])],
  ]);
}

/** The bytes of texts without the given ones, which are in rising order, as ranges. */
function gaps(bytes: readonly number[]): readonly GrammarSymbol[] {
  const starts = [0, ...bytes.map((byte) => byte + 1)];
  const ends = [...bytes.map((byte) => byte - 1), lastTextByte];
  return starts.flatMap((start, index) => {
    const end = ends[index] ?? lastTextByte;
    return start <= end ? [byteRange(start, end)] : [];
  });
}

/**
 * Any text, then calls behind the first marker in it. State i has read i bytes of the marker (the automaton of Knuth,
 * Morris and Pratt).
 */
function textUntil(it: GrammarBuilder, { marker, before }: CallSyntax, calls: GrammarSymbol): GrammarSymbol {
  const wanted = signed(marker).map((symbol) => symbol & 255);
  const behind = [...signed(before.slice(marker.length)), calls];
  const states = wanted.map(() => it.declare());
  for (const [read, state] of states.entries()) {
    const next = (byte: number): number => {
      const bytes = [...wanted.slice(0, read), byte];
      let fits = bytes.length;
      while (!bytes.slice(bytes.length - fits).every((each, index) => each === wanted[index])) fits -= 1;
      return fits;
    };
    const special = [...new Set(wanted)].sort((a, b) => a - b);
    const on = (fits: number): Alternative => (fits === wanted.length ? behind : states.slice(fits, fits + 1));
    const others = gaps(special.filter((byte) => byte <= lastTextByte)).map((range) => [range, ...on(0)]);
    it.define(state, [[], ...others, ...special.map((byte) => [byteRange(byte, byte), ...on(next(byte))])]);
  }
  const [start] = states;
  if (start === undefined) throw new Error("a marker has a character");
  return start;
}

/** The bytes of a text that may have signs in it. */
const signed = (text: string): Alternative =>
  [...text].flatMap((char) => {
    const sign = signIndex(char);
    return sign < 0 ? literal(char) : [byteRange(signByte(sign), signByte(sign))];
  });
