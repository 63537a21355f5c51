/** Trees for tests in the form that clients send, with what only a server makes: `{retrieved: […]}`, joins of nothing. */
import type { Generate, Query } from "../../gateway/query/ir.ts";
import { parseQuery } from "../../gateway/query/parse.ts";

/** A node as JSON: not checked by types, so that tests can write it plainly. */
export type Json = unknown;

export function treeOf(json: Json): Query {
  const [kind, body] = Object.entries(json as Record<string, Json>)[0] ?? [];
  const list = (value: Json) => (value as readonly Json[]).map(treeOf);
  const fields = body as Record<string, Json>;
  switch (kind) {
    case "seq":
    case "cross":
    case "par":
    case "chat":
      return { kind, children: list(body) };
    case "retrieved":
      return { kind, fragments: list(body) };
    case "plus":
      if (Array.isArray(body)) return { kind, children: list(body) };
      return { kind, preamble: treeOf(fields.preamble), children: list(fields.children) };
    case "monad":
      return { kind, child: treeOf(body) };
    case "zip":
      return { kind, first: treeOf(fields.first), second: treeOf(fields.second) };
    case "g":
      return generateOf(fields);
    case "repeat":
      return { kind, n: Number(fields.n), generate: generateOf(fields.g as Record<string, Json>) };
    default:
      return parseQuery(json);
  }
}

function generateOf({ input, ...options }: Record<string, Json>): Generate {
  const parsed = parseQuery({ g: { ...options, input: { user: "" } } });
  if (parsed.kind !== "generate") throw new Error("a g is a generate");
  return { kind: "generate", options: parsed.options, input: treeOf(input) };
}

export const user = (text: string) => ({ user: text });
export const fragment = (text: string) => ({ fragment: { text } });
export const plainOptions = { model: "m", max_tokens: 0, temperature: 0.6 };
export const g = (input: Json, more: object = {}) => ({ g: { ...plainOptions, ...more, input } });
/** A generate that exposes its output alone. */
export const out = (input: Json, more: object = {}) => g(input, { ...more, expose: "output" });
