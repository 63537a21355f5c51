/** Parses the nodes that bring documents: augment, retrieve and fragment. */
import {
  describe,
  type Fields,
  fieldsOf,
  integerOf,
  isObject,
  listOf,
  optional,
  refuse,
  required,
  step,
  stringOf,
} from "./check.ts";
import type { Augment, Fragment, Query, Retrieve } from "./ir.ts";
import type { JsonObject, JsonValue } from "./json.ts";
import { queryLimits as limits } from "./limits.ts";
import type { Tally } from "./tally.ts";

/** Parses a node of any kind. */
export interface NodeReader {
  readonly tally: Tally;
  /** @param depth of the node; 1 for the root */
  node(value: unknown, path: string, depth: number): Query;
}

const augmentFields = { known: new Set(["embedding_model", "body", "doc"]) };
const textFields = { known: new Set(["Text"]), unsupported: new Set(["Binary"]) };
const fragmentFields = { known: new Set(["id", "text", "title"]) };
const retrieveFields = {
  known: new Set(["vector_store_ids", "query", "max_num_results", "filters"]),
  unsupported: new Set(["ranking_options", "rewrite_query"]),
};

const model = { min: 0, max: limits.modelChars };
const id = { min: 1, max: limits.idChars };
const someText = { min: 1, max: limits.textChars };

export function augment(reader: NodeReader, body: unknown, path: string, depth: number): Augment {
  const fields = fieldsOf(body, path, augmentFields);
  reader.tally.retrieve(path);
  const docPath = `${path}.doc`;
  const doc = listOf(required(fields, "doc", path), docPath, { min: 2, max: 2 });
  const content = fieldsOf(doc[1], `${docPath}[1]`, textFields);
  return {
    kind: "augment",
    embeddingModel: optional(fields, "embedding_model", path, (value, at) => stringOf(value, at, model)) ?? "",
    body: reader.node(required(fields, "body", path), `${path}.body`, depth + 1),
    doc: {
      name: stringOf(doc[0], `${docPath}[0]`, { min: 1, max: limits.documentNameChars }),
      text: reader.tally.text(required(content, "Text", `${docPath}[1]`), `${docPath}[1].Text`, someText),
    },
  };
}

export function retrieve(reader: NodeReader, body: unknown, path: string, depth: number): Retrieve {
  const fields = fieldsOf(body, path, retrieveFields);
  reader.tally.retrieve(path);
  const at = `${path}.vector_store_ids`;
  const stores = listOf(required(fields, "vector_store_ids", path), at, {
    min: 1,
    max: limits.vectorStoresPerRetrieve,
  });
  const results = { min: 1, max: limits.retrievedFragments };
  const filters = optional(fields, "filters", path, copyFilters);
  return {
    kind: "retrieve",
    vectorStoreIds: stores.map((store, index) => stringOf(store, `${at}[${index}]`, id)),
    query: searched(reader, required(fields, "query", path), `${path}.query`, depth),
    maxResults:
      optional(fields, "max_num_results", path, (value, at) => integerOf(value, at, results)) ??
      limits.defaultRetrievedFragments,
    ...(filters === undefined ? {} : { filters }),
  };
}

function searched(reader: NodeReader, value: unknown, path: string, depth: number): string | Query {
  if (typeof value !== "string") return reader.node(value, path, depth + 1);
  return reader.tally.text(value, path, { min: 1, max: limits.searchChars });
}

export function fragment(reader: NodeReader, body: unknown, path: string): Fragment {
  const fields = fieldsOf(body, path, fragmentFields);
  const stored = optional(fields, "id", path, (value, at) => stringOf(value, at, id));
  if (stored === undefined) return textFragment(reader, fields, path);
  if (fields.text !== undefined) refuse(`${path}.text`, "must not stand beside id");
  if (fields.title !== undefined) refuse(`${path}.title`, "must not stand beside id: a stored fragment has its own");
  return { kind: "fragment", id: stored };
}

function textFragment(reader: NodeReader, fields: Fields, path: string): Fragment {
  if (fields.text === undefined) return refuse(path, "must have id or text", "missing_field");
  const text = reader.tally.text(fields.text, `${path}.text`, someText);
  const range = { min: 0, max: limits.titleChars };
  const title = optional(fields, "title", path, (value, at) => stringOf(value, at, range));
  // A title stands in one line of the prompt, so it is made one line.
  const line = title?.replace(/\s+/g, " ").trim() ?? "";
  return line === "" ? { kind: "fragment", text } : { kind: "fragment", text, title: line };
}

/** Copies a retrieve's filters as plain JSON of bounded size. Only the corpus code knows what they mean. */
function copyFilters(value: unknown, path: string): JsonObject {
  if (!isObject(value)) return refuse(path, `must be an object, not ${describe(value)}`);
  let values = 0;
  const copy = (part: unknown, at: string, depth: number): JsonValue => {
    values += 1;
    if (values > limits.filterValues) refuse(path, `has more than ${limits.filterValues} values`);
    if (depth > limits.filterDepth) refuse(at, `is nested more than ${limits.filterDepth} deep`, "nesting_too_deep");
    if (part === null || typeof part === "boolean") return part;
    if (typeof part === "number" && Number.isFinite(part)) return part + 0;
    if (typeof part === "string") return stringOf(part, at, { min: 0, max: limits.filterChars });
    if (Array.isArray(part)) {
      return listOf(part, at, { min: 0, max: limits.filterValues }).map((entry, i) =>
        copy(entry, `${at}[${i}]`, depth + 1),
      );
    }
    if (!isObject(part)) return refuse(at, `must be JSON, not ${describe(part)}`);
    const entries = Object.keys(part).map((key) => [key, copyField(part, key, at, depth)] as const);
    return Object.fromEntries(entries);
  };
  const copyField = (part: Readonly<Record<string, unknown>>, key: string, at: string, depth: number): JsonValue => {
    const path = at + step(key);
    // Careless code could take this field for the object's prototype.
    if (key === "__proto__") refuse(path, "is no name of a field", "unknown_field");
    stringOf(key, path, { min: 0, max: limits.filterChars });
    return copy(part[key], path, depth + 1);
  };
  return copy(value, path, 1) as JsonObject;
}
