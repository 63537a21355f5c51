/**
 * Finds out how a chat template writes an assistant's calls, by rendering probes: so a model's calls are read, and
 * where they must come are spelled, in the way that its template shows them to it.
 *
 * Control tokens (`[TOOL_CALLS]`, Qwen's `<tool_call>`) stand in a syntax as signs: characters that Unicode keeps out of
 * texts, and the detokenizer out of decoded ones. So what a model merely quotes is never taken for one.
 */
import type { AddedToken } from "./model-text.ts";
import { probe, type Render, type TemplateCall, type TemplateTool } from "./template-probe.ts";
import { patternOf } from "./tokenizer.ts";

export interface CallSign {
  /** The control token. */
  readonly content: string;
  /** It is shown where it stands in a text. */
  readonly isText: boolean;
}

export interface CallSyntax {
  /** "object": {"name": …, "arguments": …}; "named": the name, a sign, the arguments. */
  readonly kind: "object" | "named";
  /** What a call begins with, or the list of them; "": an answer that begins as a call does is one. */
  readonly marker: string;
  /** What ends a call. "": nothing but itself. */
  readonly closer: string;
  /** The whole of a row of calls: before the first name, between a name and its arguments, and after the last. */
  readonly before: string;
  readonly between: string;
  readonly after: string;
  /** From a call's arguments to the next call's name. undefined: a message holds one call. */
  readonly separator: string | undefined;
  /** Sign i is the character `signChar(i)`. */
  readonly signs: readonly CallSign[];
}

/** As many as `signByte` has bytes for. */
const maxSigns = 8;
/** The first of the noncharacters U+FDD0 … U+FDEF (Unicode 15, section 23.7). */
const firstSign = 0xfdd0;
export const signChar = (index: number): string => String.fromCharCode(firstSign + index);
/** How a sign is spelled for a grammar: these bytes are part of no text. */
export const signByte = (index: number): number => 0xf8 + index;
/** Index of the sign that a character is; below 0: it is none. */
export function signIndex(char: string): number {
  const index = char.charCodeAt(0) - firstSign;
  return index >= 0 && index < maxSigns ? index : -1;
}
/** Decoded text without what could be taken for a sign. */
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

/** undefined: the template shows no tools, or writes calls in a way that cannot be read. */
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

/** What stands around the name and the arguments of a message's one call. */
interface Cut {
  readonly before: string;
  readonly between: string;
  readonly after: string;
  /** What ends every message of the assistant. */
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
  // A row of calls that ends in another way than a text does goes on after it.
  if (!rest.endsWith(end)) return undefined;
  const before = message.slice(0, match.index).trimStart();
  return { before, between: match[1] ?? "", after: withoutId(rest.slice(0, rest.length - end.length)).trimEnd(), end };
}

/** The id of a call is the server's: a model has none to write. */
const withoutId = (text: string): string => text.replace(/,\s*"id"\s*:\s*"probe000\d"/, "");

function separatorOf(two: string | undefined, { between, end }: Cut): string | undefined {
  if (two === undefined) return undefined;
  const match = new RegExp(`${givenPattern.source}([\\s\\S]*?)${names[1]}`).exec(two);
  const separator = match?.[1];
  if (separator === undefined || two.indexOf(names[1] + between.replaceAll(ids[0], ids[1])) < 0) return undefined;
  // Calls of several messages are several answers.
  return end.trim() !== "" && separator.includes(end.trim()) ? undefined : withoutId(separator);
}

function syntaxOf(cut: Cut, separator: string | undefined, controls: readonly AddedToken[]): CallSyntax | undefined {
  const signs: CallSign[] = [];
  const pattern = patternOf(controls);
  const signed = (text: string): string =>
    pattern === undefined
      ? text
      : text.replace(new RegExp(pattern, "g"), (content) => {
          const known = signs.findIndex((sign) => sign.content === content);
          const isText = controls.some((control) => control.content === content && !control.special);
          return signChar(known < 0 ? signs.push({ content, isText }) - 1 : known);
        });
  const [before, between, after] = [signed(cut.before), signed(cut.between), signed(cut.after)];
  const next = separator === undefined ? undefined : signed(separator);
  if (signs.length > maxSigns) return undefined;
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
  // `[CALL_ID]` and an id may stand between.
  const sign = between.trim().slice(-1);
  if (signIndex(marker.slice(-1)) < 0 || signIndex(sign) < 0 || /[{}"]/.test(before + after)) return undefined;
  return { kind: "named", marker, closer: after.trim(), between: sign };
}
