/** Random trees as the rewriter meets them: resolved, with few enough different texts, some with shared nodes. */

import type { Generate, GenerateOptions, Query } from "../../gateway/query/ir.ts";
import { canonicalText } from "../../gateway/query/print.ts";
import { mapChildren } from "../../gateway/query/transform.ts";
import { fc } from "../support/fast-check.ts";
import { queryArbitrary } from "./arbitrary.ts";

/** In a retrieve's or an augment's place stand as many fragments as its own text decides, none included. */
function resolved(query: Query): Query {
  if (query.kind !== "retrieve" && query.kind !== "augment") return mapChildren(query, resolved);
  const count = canonicalText(query).length % 4;
  const texts = Array.from({ length: count }, (_, index) => `found ${index}`);
  return { kind: "retrieved", fragments: texts.map((text) => ({ kind: "fragment", text })) };
}

/** Equal nodes become one object: a tree becomes a graph. */
function shared(query: Query, known: Map<string, Query> = new Map()): Query {
  const made = mapChildren(query, (child) => shared(child, known));
  const text = canonicalText(made);
  const first = known.get(text) ?? made;
  known.set(text, first);
  return first;
}

/** Judges stay whole. What was shared stays shared. */
export function withoutReduce(query: Query, known: Map<Query, Query> = new Map()): Query {
  const done = known.get(query);
  if (done !== undefined) return done;
  const made = mapChildren(query, (child) => withoutReduce(child, known));
  const result = made.kind === "generate" && made.options.reduce !== undefined ? withoutArity(made) : made;
  known.set(query, result);
  return result;
}

function withoutArity(generate: Generate): Generate {
  const { reduce: _, ...options } = generate.options;
  return { ...generate, options };
}

/** Few texts and options, much nesting: equal nodes, and rules that meet. */
const denseArbitrary: fc.Arbitrary<Query> = fc.letrec<{ query: Query }>((tie) => {
  const child = tie("query");
  const children = fc.array(child, { maxLength: 4 });
  const text = fc.constantFrom("a", "b", "c");
  const options = fc.constantFrom(...denseOptions());
  const generate = fc.record({ kind: fc.constant("generate" as const), options, input: child });
  const fragment = fc.record({ kind: fc.constant("fragment" as const), text });
  const node = <Kind extends string, Fields>(
    kind: Kind,
    fields: { [Name in keyof Fields]: fc.Arbitrary<Fields[Name]> },
  ) => fc.record({ kind: fc.constant(kind), ...fields }) as unknown as fc.Arbitrary<Query>;
  const query = fc.oneof(
    { depthSize: "medium" },
    { weight: 5, arbitrary: node("message", { role: fc.constantFrom("user", "system"), text }) },
    { weight: 1, arbitrary: fragment },
    {
      weight: 5,
      arbitrary: fc.record({ kind: fc.constantFrom("seq" as const, "cross" as const, "par" as const), children }),
    },
    { weight: 6, arbitrary: node("plus", { children }) },
    { weight: 1, arbitrary: node("plus", { children, preamble: child }) },
    { weight: 1, arbitrary: node("monad", { child }) },
    { weight: 8, arbitrary: generate },
    { weight: 2, arbitrary: node("repeat", { n: fc.integer({ min: 1, max: 3 }), generate }) },
    { weight: 1, arbitrary: node("zip", { first: child, second: child }) },
    { weight: 1, arbitrary: node("chat", { children }) },
    { weight: 1, arbitrary: node("map", { options, inputs: fc.array(text, { minLength: 1, maxLength: 3 }) }) },
    { weight: 1, arbitrary: node("retrieved", { fragments: fc.array(fragment, { maxLength: 3 }) }) },
  );
  return { query };
}).query;

function denseOptions(): GenerateOptions[] {
  const plain = { model: "m", maxTokens: 8, temperature: 0.6 };
  const greedy = { ...plain, temperature: 0 };
  return [
    plain,
    plain,
    greedy,
    greedy,
    { ...plain, expose: "output" },
    { ...greedy, expose: "both" },
    { ...plain, reduce: { arity: 2 } },
  ];
}

export const treeArbitrary: fc.Arbitrary<Query> = fc
  .tuple(fc.oneof(queryArbitrary, { weight: 2, arbitrary: denseArbitrary }), fc.boolean())
  .map(([query, isShared]) => (isShared ? shared(resolved(query)) : resolved(query)));
