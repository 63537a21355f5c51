/**
 * Spells answers with calls as the model's own template writes them. A sign is one byte that no text has (see
 * TokenBytes.vocabulary), so the grammar asks for the control token itself.
 */
import { byteRange, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { type Alternative, type GrammarBuilder, literal } from "../grammar/builder.ts";
import { schemaRule } from "../grammar/json-schema.ts";
import { anyObject } from "../grammar/json-values.ts";
import { signedBytes } from "../text/call-syntax.ts";
import type { CallableTool, CallRules } from "./answer-rules.ts";
import { gaps, lastTextByte, textTo } from "./marked-text.ts";

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
  // Any text, then calls behind the first marker in it.
  const behind = [...signed(syntax.before.slice(syntax.marker.length)), calls];
  return textTo(it, signedBytes(syntax.marker), behind, true);
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

/** The symbols of a text that may have signs in it. */
const signed = (text: string): Alternative => signedBytes(text).map((byte) => byteRange(byte, byte));
