/** Prints queries as the JSON that the parser reads: one form for each tree, with the fields in a fixed order. */
import { childrenOf, type GenerateOptions, type Query } from "./ir.ts";
import type { JsonObject, JsonValue } from "./json.ts";
import { queryLimits } from "./limits.ts";

/**
 * Prints the query as a plain object. max_tokens and temperature are always there, as spnl's serde writes them; absent
 * options are left out. The results of a search print as `{"retrieved": [q…]}`. A rewritten query is a graph, and its
 * tree may be exponentially larger. So after `queryLimits.printedNodes` nodes, a node that was printed before prints as
 * `{"shared": "$.path"}`. The parser refuses these two forms.
 */
export const printQuery = (query: Query): JsonValue => new Printer().print(query, "$");

/** The query as JSON text. Two queries have the same text exactly when they are equal in structure. */
export const canonicalText = (query: Query): string => JSON.stringify(printQuery(query));

/**
 * A digest that is equal exactly when the texts are, in time linear in the distinct nodes, however large the tree is.
 * @param known digests of nodes that were seen before; nodes are immutable, so it may live as long as they do
 */
export function canonicalKey(query: Query, known: Map<Query, string> = new Map()): string {
  const found = known.get(query);
  if (found !== undefined) return found;
  const keys = childrenOf(query).map(([, child]) => canonicalKey(child, known));
  const hash = new Bun.CryptoHasher("sha256").update(JSON.stringify([query.kind, ownFields(query), keys]));
  const key = hash.digest("hex").slice(0, 32);
  known.set(query, key);
  return key;
}

/** All fields of a node except its children. */
function ownFields(query: Query): JsonValue {
  switch (query.kind) {
    case "message":
      return [query.role, query.text];
    case "plus":
      return query.preamble !== undefined;
    case "generate":
      return printOptions(query.options);
    case "repeat":
      return query.n;
    case "map":
      return [printOptions(query.options), query.inputs];
    case "augment":
      return [query.embeddingModel, query.doc.name, query.doc.text];
    case "retrieve":
      return printRetrieve(query, typeof query.query === "string" ? query.query : null);
    case "fragment":
      return printFragment(query);
    case "seq":
    case "cross":
    case "par":
    case "chat":
    case "monad":
    case "zip":
    case "retrieved":
      return null;
  }
}

class Printer {
  readonly #pathOf = new Map<Query, string>();
  #printed = 0;

  print(query: Query, path: string): JsonValue {
    const earlier = this.#pathOf.get(query);
    if (earlier !== undefined && this.#printed >= queryLimits.printedNodes) return { shared: earlier };
    if (earlier === undefined) this.#pathOf.set(query, path);
    this.#printed += 1;
    return this.#fields(
      query,
      childrenOf(query).map(([step, child]) => this.print(child, path + step)),
    );
  }

  /** @param children the printed children, in the order of childrenOf */
  #fields(query: Query, children: readonly JsonValue[]): JsonObject {
    const [first = null, second = null] = children;
    switch (query.kind) {
      case "message":
        return { [query.role]: query.text };
      case "seq":
      case "cross":
      case "par":
      case "chat":
      case "retrieved":
        return { [query.kind]: children };
      case "plus":
        return { plus: query.preamble === undefined ? children : { preamble: first, children: children.slice(1) } };
      case "monad":
        return { monad: first };
      case "generate":
        return { g: { ...printOptions(query.options), input: first } };
      case "repeat":
        return { repeat: { n: query.n, ...(first as JsonObject) } };
      case "map":
        return { map: { metadata: printOptions(query.options), inputs: query.inputs } };
      case "zip":
        return { zip: { first, second } };
      case "augment": {
        const { embeddingModel, doc } = query;
        return { augment: { embedding_model: embeddingModel, body: first, doc: [doc.name, { Text: doc.text }] } };
      }
      case "retrieve":
        return { retrieve: printRetrieve(query, typeof query.query === "string" ? query.query : first) };
      case "fragment":
        return { fragment: printFragment(query) };
    }
  }
}

function printRetrieve(query: Extract<Query, { kind: "retrieve" }>, searched: JsonValue): JsonObject {
  const fields = {
    vector_store_ids: query.vectorStoreIds,
    query: searched,
    max_num_results: query.maxResults,
  };
  return query.filters === undefined ? fields : { ...fields, filters: query.filters as JsonValue };
}

function printFragment(query: Extract<Query, { kind: "fragment" }>): JsonObject {
  if ("id" in query) return { id: query.id };
  return query.title === undefined ? { text: query.text } : { title: query.title, text: query.text };
}

/** The fields of a generate without its input, in the order in which they are printed. */
export function printOptions(options: GenerateOptions): JsonObject {
  const fields: Record<string, JsonValue | undefined> = {
    model: options.model,
    max_tokens: options.maxTokens,
    temperature: options.temperature,
    top_p: options.topP,
    top_k: options.topK,
    min_p: options.minP,
    seed: options.seed,
    presence_penalty: options.presencePenalty,
    frequency_penalty: options.frequencyPenalty,
    repetition_penalty: options.repetitionPenalty,
    min_tokens: options.minTokens,
    ignore_eos: options.ignoreEos,
    stop: options.stop,
    expose: options.expose,
    reuse: options.reuse,
    recompute_ratio: options.recomputeRatio,
    reduce: options.reduce === undefined ? undefined : { arity: options.reduce.arity },
    sparse: typeof options.sparse === "object" ? { ...options.sparse } : options.sparse,
  };
  const given: Record<string, JsonValue> = {};
  for (const [name, value] of Object.entries(fields)) if (value !== undefined) given[name] = value;
  return given;
}
