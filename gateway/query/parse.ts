/**
 * Parses span queries that clients sent into trees, with one function for each kind of node. Depth, width and cost of a
 * tree are bounded by `queryLimits`. Every use of a YAML alias becomes a node of its own.
 */
import { describe, fieldsOf, integerOf, isObject, listOf, optional, refuse, required, step } from "./check.ts";
import type { Generate, MapInputs, Plus, Query, Repeat, Zip } from "./ir.ts";
import { readQueryText } from "./json-text.ts";
import { queryLimits as limits } from "./limits.ts";
import { generateFieldsOf, mapFieldsOf, optionsOf } from "./parse-options.ts";
import { augment, fragment, type NodeReader, retrieve } from "./parse-sources.ts";
import { Tally } from "./tally.ts";

/**
 * @param value parsed JSON, which may share objects and even contain itself.
 * @throws QueryError naming the path
 */
export function parseQuery(value: unknown): Query {
  const reader: NodeReader = {
    tally: new Tally(),
    node: (part, path, depth) => node(reader, part, path, depth),
  };
  return reader.node(value, "$", 1);
}

/** Parses a query's text. @throws QueryError, invalid_json included */
export function parseQueryText(text: string, format: "json" | "yaml"): Query {
  return parseQuery(readQueryText(text, format));
}

type ReadNode = (reader: NodeReader, body: unknown, path: string, depth: number) => Query;

const message =
  (role: "system" | "user" | "assistant"): ReadNode =>
  (reader, body, path) => ({ kind: "message", role, text: reader.tally.text(body, path) });

const ordered =
  (kind: "seq" | "cross" | "par"): ReadNode =>
  (reader, body, path, depth) => ({ kind, children: children(reader, body, path, depth) });

const nodes: ReadonlyMap<string, ReadNode> = new Map<string, ReadNode>([
  ["user", message("user")],
  ["system", message("system")],
  ["assistant", message("assistant")],
  ["seq", ordered("seq")],
  ["cross", ordered("cross")],
  ["par", ordered("par")],
  ["plus", plus],
  ["monad", (reader, body, path, depth) => ({ kind: "monad", child: reader.node(body, path, depth + 1) })],
  ["g", (reader, body, path, depth) => generate(reader, body, path, depth, 1)],
  ["repeat", repeat],
  ["map", map],
  ["zip", zip],
  ["chat", chat],
  ["augment", augment],
  ["retrieve", retrieve],
  ["fragment", fragment],
]);

/** Nodes of earlier versions of spnl that act in the client: they print, ask a person, or read a file there. */
const clientNodes: ReadonlySet<string> = new Set(["print", "ask", "file"]);

const plusFields = { known: new Set(["preamble", "children"]) };
const repeatFields = { known: new Set(["n", "g", "query"]) };
const onlyGenerate = { known: new Set(["g"]) };
const mapNodeFields = { known: new Set(["metadata", "inputs"]) };
const zipFields = { known: new Set(["first", "second"]) };

function node(reader: NodeReader, value: unknown, path: string, depth: number): Query {
  reader.tally.node(path, depth);
  if (!isObject(value)) return refuse(path, `must be a node such as {"user": "…"}, not ${describe(value)}`);
  const keys = Object.keys(value);
  const [key] = keys;
  if (key === undefined || keys.length > 1) {
    const found = keys.slice(0, 3).map((name) => JSON.stringify(name.slice(0, 64)));
    const shown = keys.length > 3 ? [...found, "…"] : found;
    return refuse(path, `must have one key that names the kind of node, and has ${shown.join(", ") || "none"}`);
  }
  const at = path + step(key);
  const read = nodes.get(key);
  if (read !== undefined) return read(reader, value[key], at, depth);
  if (clientNodes.has(key)) refuse(at, "acts in the client and is not supported by this server", "unsupported_field");
  return refuse(at, "is no kind of node", "unknown_field");
}

/** The children of a join. A join without children says nothing, so it is refused as a mistake. */
function children(reader: NodeReader, value: unknown, path: string, depth: number): readonly Query[] {
  const list = listOf(value, path, { min: 1, max: limits.childrenPerJoin });
  return Array.from(list, (child, index) => reader.node(child, `${path}[${index}]`, depth + 1));
}

function plus(reader: NodeReader, body: unknown, path: string, depth: number): Plus {
  if (!isObject(body)) return { kind: "plus", children: children(reader, body, path, depth) };
  const fields = fieldsOf(body, path, plusFields);
  const preamble = optional(fields, "preamble", path, (value, at) => reader.node(value, at, depth + 1));
  const inner = children(reader, required(fields, "children", path), `${path}.children`, depth);
  return preamble === undefined ? { kind: "plus", children: inner } : { kind: "plus", preamble, children: inner };
}

function chat(reader: NodeReader, body: unknown, path: string, depth: number): Query {
  reader.tally.generate(1, 0, path);
  return { kind: "chat", children: children(reader, body, path, depth) };
}

/** @param runs number of samples that are taken of the generate */
function generate(reader: NodeReader, body: unknown, path: string, depth: number, runs: number): Generate {
  const fields = generateFieldsOf(body, path);
  const options = optionsOf(fields, path);
  reader.tally.generate(runs, options.maxTokens, path);
  const value = required(fields, "input", path);
  const at = `${path}.input`;
  const input = Array.isArray(value) ? listed(reader, value, at, depth + 1) : reader.node(value, at, depth + 1);
  const read: Generate = { kind: "generate", options, input };
  reader.tally.rewritten(read, path);
  return read;
}

/** A list stands for the seq of its entries, as in spnl's documents. */
function listed(reader: NodeReader, list: readonly unknown[], path: string, depth: number): Query {
  reader.tally.node(path, depth);
  return { kind: "seq", children: children(reader, list, path, depth) };
}

function repeat(reader: NodeReader, body: unknown, path: string, depth: number): Repeat {
  const fields = fieldsOf(body, path, repeatFields);
  const n = integerOf(required(fields, "n", path), `${path}.n`, { min: 1, max: limits.repeats });
  const sampled = (value: unknown, at: string): Repeat => {
    reader.tally.node(at, depth + 1);
    return { kind: "repeat", n, generate: generate(reader, value, at, depth + 1, n) };
  };
  if (fields.query === undefined) return sampled(required(fields, "g", path), `${path}.g`);
  if (fields.g !== undefined) refuse(`${path}.query`, "must not stand beside g");
  const inner = fieldsOf(fields.query, `${path}.query`, onlyGenerate);
  return sampled(required(inner, "g", `${path}.query`), `${path}.query.g`);
}

function map(reader: NodeReader, body: unknown, path: string): MapInputs {
  const fields = fieldsOf(body, path, mapNodeFields);
  const metadata = required(fields, "metadata", path);
  const options = optionsOf(mapFieldsOf(metadata, `${path}.metadata`), `${path}.metadata`);
  const at = `${path}.inputs`;
  const inputs = listOf(required(fields, "inputs", path), at, { min: 1, max: limits.generates });
  reader.tally.generate(inputs.length, options.maxTokens, path);
  return { kind: "map", options, inputs: inputs.map((input, index) => reader.tally.text(input, `${at}[${index}]`)) };
}

function zip(reader: NodeReader, body: unknown, path: string, depth: number): Zip {
  const fields = fieldsOf(body, path, zipFields);
  const read: Zip = {
    kind: "zip",
    first: reader.node(required(fields, "first", path), `${path}.first`, depth + 1),
    second: reader.node(required(fields, "second", path), `${path}.second`, depth + 1),
  };
  reader.tally.zip(read, path);
  return read;
}
