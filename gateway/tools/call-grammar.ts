/**
 * What an answer with calls may spell, in the words of the model's own template. A sign is one byte that no text has (see
 * TokenBytes.vocabulary), so a grammar asks for the control token itself.
 */
import { type ByteGrammar, byteRange, type GrammarSymbol } from "../../worker/contract/grammar.ts";
import { ApiError } from "../errors.ts";
import { type Alternative, GrammarBuilder, GrammarTooLarge, literal } from "../grammar/builder.ts";
import { schemaRule } from "../grammar/json-schema.ts";
import { anyObject } from "../grammar/json-values.ts";
import { SchemaFault } from "../grammar/schema-parts.ts";
import { type CallSyntax, signByte, signIndex } from "../lower/call-syntax.ts";
import type { OfferedTool, ToolUse } from "./tool-use.ts";

/** Bytes of texts, and more: what is above stands for signs. */
const lastTextByte = signByte(0) - 1;

/**
 * undefined: the answer is free. Where calls must come, or arguments must fit, it is not.
 * @param format what an answer without calls has to be; undefined: any text
 * @throws ApiError invalid_value with the path of what cannot be kept
 */
export function callGrammar(
  syntax: CallSyntax,
  use: ToolUse,
  format: ByteGrammar | undefined,
): ByteGrammar | undefined {
  const callable = use.tools.filter(({ name }) => use.callable.has(name));
  const isFree = use.mode === "auto" && use.parallel && !callable.some(({ strict }) => strict);
  if (isFree && format === undefined) return undefined;
  const it = new GrammarBuilder();
  const whole = it.declare();
  try {
    const calls = callsRule(it, syntax, callable, use);
    const alternatives = [[...signed(syntax.before), calls]];
    if (use.mode === "required") it.define(whole, alternatives);
    else if (format !== undefined) it.define(whole, [[it.embed(format)], ...alternatives]);
    else if (syntax.marker === "") it.define(whole, [[textRule(it)], ...alternatives]);
    else it.define(whole, [[textUntil(it, syntax, calls)]]);
  } catch (error) {
    if (error instanceof GrammarTooLarge) throw refusal("tools", "are too many, or their schemas too large");
    throw error;
  }
  const grammar = it.build();
  if (grammar === undefined) throw refusal("tools", "have no call that is finite");
  return grammar;
}

/** Behind what is before the first name. */
function callsRule(
  it: GrammarBuilder,
  { between, after, separator }: CallSyntax,
  tools: readonly OfferedTool[],
  { mode, parallel }: ToolUse,
): GrammarSymbol {
  const one = it.rule(
    tools.map((tool) => {
      const fits = tool.strict || mode === "required";
      return [...literal(tool.name), ...signed(between), fits ? argumentsRule(it, tool) : anyObject(it)];
    }),
  );
  const calls = it.declare();
  const ends = [[one, ...signed(after)]];
  it.define(calls, separator === undefined || !parallel ? ends : [...ends, [one, ...signed(separator), calls]]);
  return calls;
}

function argumentsRule(it: GrammarBuilder, { parameters, param }: OfferedTool): GrammarSymbol {
  // Arguments are an object, whatever else a schema without a type would allow; one of no properties is empty.
  const isOpen = !("type" in parameters || "$ref" in parameters || "anyOf" in parameters);
  const typed = isOpen ? { ...parameters, type: "object" } : parameters;
  const hasNone = JSON.stringify(typed.properties) === "{}" && !("additionalProperties" in typed);
  try {
    return schemaRule(it, hasNone ? { ...typed, additionalProperties: false } : typed);
  } catch (error) {
    if (!(error instanceof SchemaFault)) throw error;
    const path = error.path.reduce<string>(
      (all, part) => all + (typeof part === "number" ? `[${part}]` : `.${part}`),
      param,
    );
    throw refusal(path.slice(0, 256), error.message);
  }
}

/** Any text that is not taken for a call because of how it begins. */
function textRule(it: GrammarBuilder): GrammarSymbol {
  const any = it.repeat("any", [byteRange(0, lastTextByte)], 0, Number.POSITIVE_INFINITY);
  const spaces = it.rule([literal(" "), literal("\n"), literal("\r"), literal("\t")]);
  const begins = it.rule(gaps([0x09, 0x0a, 0x0d, 0x20, 0x5b, 0x7b]).map((range) => [range]));
  return it.rule([
    [],
    [...it.repeat("spaces", [spaces], 0, Number.POSITIVE_INFINITY), it.rule([[], [begins, ...any]])],
  ]);
}

/** Bytes of texts but for these, in rising order, as ranges. */
function gaps(bytes: readonly number[]): readonly GrammarSymbol[] {
  const starts = [0, ...bytes.map((byte) => byte + 1)];
  const ends = [...bytes.map((byte) => byte - 1), lastTextByte];
  return starts.flatMap((start, index) => {
    const end = ends[index] ?? lastTextByte;
    return start <= end ? [byteRange(start, end)] : [];
  });
}

/**
 * Any text, and from the first marker in it on calls: state i has read i bytes of the marker (Knuth, Morris and Pratt's
 * automaton).
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

/** The bytes of a text with signs. */
const signed = (text: string): Alternative =>
  [...text].flatMap((char) => {
    const sign = signIndex(char);
    return sign < 0 ? literal(char) : [byteRange(signByte(sign), signByte(sign))];
  });

function refusal(param: string, what: string): ApiError {
  return new ApiError("invalid_value", { message: `'${param}' ${what}.`, param });
}
