/**
 * Finds out how a chat template writes an assistant's calls, by rendering probes. So the server reads a model's calls,
 * and spells the place of a call in a grammar, exactly as the template shows calls to the model.
 *
 * In a syntax, a control token (`[TOOL_CALLS]`, Qwen's `<tool_call>`) stands as a sign: a character that Unicode keeps
 * out of texts, and that the detokenizer keeps out of decoded text. So text in which a model merely quotes a control
 * token is never taken for a call.
 */
import type { AddedToken } from "./model-text.ts";
import { probe, type Render, type TemplateCall, type TemplateTool } from "./template-probe.ts";
import { patternOf } from "./tokenizer.ts";

export interface CallSign {
  /** The control token. */
  readonly content: string;
  /** true: where this token stands outside calls, the answer shows it as text. */
  readonly isText: boolean;
}

export interface CallSyntax {
  /** "object": a call is {"name": …, "arguments": …}. "named": a call is the name, a sign, then the arguments. */
  readonly kind: "object" | "named";
  /** Text that begins a call or a list of calls. "": none; an answer that begins as a call does is a call. */
  readonly marker: string;
  /** Text that ends a call or a list of calls. "": there is none. */
  readonly closer: string;
  /**
   * All text around a row of calls: before the first name, between a name and its arguments, and behind the last call.
   */
  readonly before: string;
  readonly between: string;
  readonly after: string;
  /** Text between a call's arguments and the next call's name. undefined: a message holds only one call. */
  readonly separator: string | undefined;
  /** The control tokens; the syntax writes number i as the character `signChar(i)`. */
  readonly signs: readonly CallSign[];
}

/** Most signs of one syntax: `signByte` has eight bytes for them. */
const maxSigns = 8;
/** The first of the noncharacters U+FDD0 … U+FDEF (Unicode 15, section 23.7). */
const firstSign = 0xfdd0;
export const signChar = (index: number): string => String.fromCharCode(firstSign + index);
/** The byte that stands for a sign in a grammar. No text in UTF-8 contains it. */
export const signByte = (index: number): number => 0xf8 + index;
/** Number of the sign that this character is. Below 0: the character is no sign. */
export function signIndex(char: string): number {
  const index = char.charCodeAt(0) - firstSign;
  return index >= 0 && index < maxSigns ? index : -1;
}
/** The bytes of a text that may have signs in it, as the vocabulary that grammars are matched with spells it. */
export const signedBytes = (text: string): readonly number[] =>
  [...text].flatMap((char) => {
    const sign = signIndex(char);
    return sign < 0 ? [...new TextEncoder().encode(char)] : [signByte(sign)];
  });
/** The text with signs written as their tokens, where these tokens are text, and left out elsewhere. */
export const withSignsShown = (text: string, signs: readonly CallSign[]): string =>
  text.replace(/[\uFDD0-\uFDD7]/g, (char) => {
    const sign = signs[signIndex(char)];
    return sign?.isText === true ? sign.content : "";
  });
/**
 * The template's own text with its control tokens as signs. Tokens that are no sign yet are added to `signs`.
 * undefined: there would be more signs than there may be.
 */
export function signed(text: string, controls: readonly AddedToken[], signs: CallSign[]): string | undefined {
  const pattern = patternOf(controls);
  if (pattern === undefined) return text;
  const made = text.replace(new RegExp(pattern, "g"), (content) => {
    const known = signs.findIndex((sign) => sign.content === content);
    const isText = controls.some((control) => control.content === content && !control.special);
    return signChar(known < 0 ? signs.push({ content, isText }) - 1 : known);
  });
  return signs.length > maxSigns ? undefined : made;
}
/** Replaces characters in decoded text that could be taken for signs. */
export const withoutSigns = (text: string): string => text.replace(/[\uFDD0-\uFDD7]/g, "\uFFFD");

const names = ["probe_tool_a", "probe_tool_b"] as const;
const ids = ["probe0000", "probe0001"] as const;
const given = { probe_key: "probe-value" };
const givenPattern = /\{\s*"probe_key":\s*"probe-value"\s*\}/;
const tools: readonly TemplateTool[] = names.map((name) => {
  const parameters = { type: "object", properties: { probe_key: { type: "string", description: "probe" } } };
  return { type: "function", function: { name, description: "probe", parameters } };
});
const calls: readonly TemplateCall[] = names.map((name, index) => {
  return { id: ids[index] ?? "", type: "function", function: { name, arguments: given } };
});
const callPattern = new RegExp(`${names[0]}([\\s\\S]*?)${givenPattern.source}`);

/** How this template writes calls. undefined: it shows no tools, or writes calls in a way that cannot be read. */
export function findCallSyntax(render: Render, controls: readonly AddedToken[]): CallSyntax | undefined {
  const { question, system } = probe;
  for (const context of [[question], [system, question]]) {
    if (render(context, true, tools)?.includes(names[0]) !== true) continue;
    const plain = render([...context, { role: "assistant", content: probe.content }], false, tools);
    const write = (count: number): string | undefined =>
      render([...context, { role: "assistant", content: "", tool_calls: calls.slice(0, count) }], false, tools);
    const one = write(1);
    if (plain === undefined || one === undefined) continue;
    const cut = cutOut(plain, one);
    const syntax = cut === undefined ? undefined : syntaxOf(cut, separatorOf(write(2), cut), controls);
    if (syntax !== undefined) return syntax;
  }
  return undefined;
}

/** The text around the name and the arguments in a message with one call. */
interface Cut {
  readonly before: string;
  readonly between: string;
  readonly after: string;
  /** Text that ends every message of the assistant. */
  readonly end: string;
}

function cutOut(plain: string, one: string): Cut | undefined {
  const contentAt = plain.indexOf(probe.content);
  if (contentAt < 0) return undefined;
  const end = plain.slice(contentAt + probe.content.length);
  let start = 0;
  while (start < contentAt && plain[start] === one[start]) start += 1;
  const message = one.slice(start);
  const match = callPattern.exec(message);
  if (match === null) return undefined;
  const rest = message.slice(match.index + match[0].length);
  // A message that ends otherwise than a plain one has text behind its calls, which cannot be read.
  if (!rest.endsWith(end)) return undefined;
  const before = message.slice(0, match.index).trimStart();
  return { before, between: match[1] ?? "", after: withoutId(rest.slice(0, rest.length - end.length)).trimEnd(), end };
}

/** Removes a call's id. The server gives ids to calls, so the model need not write any. */
const withoutId = (text: string): string => text.replace(/,\s*"id"\s*:\s*"probe000\d"/, "");

function separatorOf(two: string | undefined, { between, end }: Cut): string | undefined {
  if (two === undefined) return undefined;
  const match = new RegExp(`${givenPattern.source}([\\s\\S]*?)${names[1]}`).exec(two);
  const separator = match?.[1];
  if (separator === undefined || two.indexOf(names[1] + between.replaceAll(ids[0], ids[1])) < 0) return undefined;
  // The template writes each call as a message of its own, so one answer cannot hold two.
  return end.trim() !== "" && separator.includes(end.trim()) ? undefined : withoutId(separator);
}

function syntaxOf(cut: Cut, separator: string | undefined, controls: readonly AddedToken[]): CallSyntax | undefined {
  const signs: CallSign[] = [];
  const [before, between, after] = [cut.before, cut.between, cut.after].map((text) => signed(text, controls, signs));
  const next = separator === undefined ? undefined : signed(separator, controls, signs);
  if (before === undefined || between === undefined || after === undefined || signs.length > maxSigns) return undefined;
  const read = asObject(before, between, after) ?? asNamed(before, between, after);
  return read === undefined ? undefined : { before, after, separator: next, signs, ...read };
}

type Read = Pick<CallSyntax, "kind" | "marker" | "closer" | "between">;

function asObject(before: string, between: string, after: string): Read | undefined {
  const opening = /^([^{}"[\]]*)(\[?)\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"$/.exec(before);
  const isKeyed = /^"\s*,\s*"(?:arguments|parameters)"\s*:\s*$/.test(between);
  const closing = /^\s*\}\s*(\]?)([^{}"[\]]*)$/.exec(after);
  if (opening === null || !isKeyed || closing === null) return undefined;
  const isList = opening[2] === "[";
  if (isList !== (closing[1] === "]")) return undefined;
  const [marker, closer] = [(opening[1] ?? "").trim(), (closing[2] ?? "").trim()];
  return { kind: "object", marker, closer, between };
}

function asNamed(before: string, between: string, after: string): Read | undefined {
  const marker = before.trim();
  // `[CALL_ID]` and an id may stand between the name and the last sign.
  const sign = between.trim().slice(-1);
  if (signIndex(marker.slice(-1)) < 0 || signIndex(sign) < 0 || /[{}"]/.test(before + after)) return undefined;
  return { kind: "named", marker, closer: after.trim(), between: sign };
}
