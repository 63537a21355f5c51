/** Bodies that each route takes, from its own schema where it has one: what mutations start from. */

import { z } from "zod";
import type { RouteDeclaration } from "../../gateway/http/transport/route.ts";
import { fc } from "../support/fast-check.ts";
import { allowedValue, type JsonSchema, type Overrides } from "./schema-values.ts";
import { injections, strangeText, templateMarkers } from "./values.ts";
import { model } from "./world.ts";

/** Stands for an id of the caller's; replaced when the request is sent. */
const own = (name: string) => fc.constant(`{${name}}`);
const few = fc.integer({ min: 1, max: 4 });
const text = fc.oneof(
  { weight: 2, arbitrary: fc.constantFrom("Who is Anna?", "the thing", ...templateMarkers, ...injections) },
  { weight: 1, arbitrary: strangeText },
);

/** So that most requests get past the first checks, and none generates for long. */
export const overrides: Overrides = {
  model: fc.oneof({ weight: 9, arbitrary: fc.constant(model) }, { weight: 1, arbitrary: strangeText }),
  vector_store_ids: own("vector_store_id").map((id) => [id]),
  file_ids: own("file_id").map((id) => [id]),
  file_id: own("file_id"),
  input_file_id: own("file_id"),
  tenant_id: own("tenant_id"),
  previous_response_id: own("response_id"),
  max_tokens: few,
  max_completion_tokens: few,
  max_output_tokens: few,
  n: fc.integer({ min: 1, max: 2 }),
  best_of: fc.constant(1),
  text,
  content: fc.oneof(
    text,
    fc.array(
      text.map((value) => ({ type: "text", text: value })),
      { minLength: 1, maxLength: 2 },
    ),
  ),
  schema: fc.constantFrom<unknown>(
    { type: "object", properties: { a: { type: "string" } } },
    { enum: ["a", 1, null] },
    { $ref: "#" },
    { type: "array", items: { $ref: "#" } },
    { type: "string", pattern: "(a*)*b" },
    { $defs: { a: { $ref: "#/$defs/a" } }, $ref: "#/$defs/a" },
    { type: "array", minItems: 1e9, items: {} },
    { allOf: [{}, {}], anyOf: [], not: {} },
  ),
};

/** What a search has something to look for in, and an answer something to be about. */
export const questions: Readonly<Record<string, unknown>> = {
  messages: [{ role: "user", content: "Who is Anna?" }],
  input: "Who is Anna?",
  text: "Anna works for Tom.",
  content: "Anna works for Tom.",
};

const querySamples: readonly unknown[] = [
  { g: { model, max_tokens: 2, input: { user: "Hello" } } },
  {
    g: {
      model,
      max_tokens: 2,
      temperature: 0,
      input: { seq: [{ system: "s" }, { plus: [{ user: "a" }, { user: "b" }] }] },
    },
  },
  { repeat: { n: 2, g: { model, max_tokens: 2, input: { cross: [{ user: "a" }, { assistant: "b" }] } } } },
  { map: { metadata: { model, max_tokens: 2, temperature: 0 }, inputs: ["a", "b"] } },
  {
    g: {
      model,
      max_tokens: 1,
      input: { plus: [{ g: { model, max_tokens: 1, input: { user: "x" } } }, { fragment: { text: "y" } }] },
    },
  },
  {
    g: {
      model,
      max_tokens: 2,
      input: {
        seq: [
          { retrieve: { vector_store_ids: ["{vector_store_id}"], query: "Anna", max_num_results: 2 } },
          { user: "?" },
        ],
      },
    },
  },
  {
    g: {
      model,
      max_tokens: 2,
      input: { augment: { embedding_model: "e", body: { user: "q" }, doc: ["a.txt", { Text: "Anna." }] } },
    },
  },
  {
    g: {
      model,
      max_tokens: 2,
      stop: ["x"],
      seed: 1,
      input: { chat: [{ user: "a" }, { zip: { first: { par: [{ user: "b" }] }, second: { par: [{ user: "c" }] } } }] },
    },
  },
  {
    seq: [
      { monad: { g: { model, max_tokens: 1, input: { user: "w" } } } },
      { g: { model, max_tokens: 1, input: { user: "z" } } },
    ],
  },
];

/** The schema of a route's JSON body; undefined when it takes none, or takes something else. */
export function bodySchema({ about }: RouteDeclaration): JsonSchema | undefined {
  if (about?.body === undefined || (about.bodyTypes ?? ["application/json"])[0] !== "application/json")
    return undefined;
  return z.toJSONSchema(about.body, { io: "input", unrepresentable: "any" }) as JsonSchema;
}

/** Bodies with the required fields and one of the others, for each of those: less can stand in each other's way. */
export function plainBodies(route: RouteDeclaration): readonly fc.Arbitrary<unknown>[] {
  const schema = bodySchema(route);
  const { properties, required = [] } = schema ?? {};
  if (schema === undefined || properties === undefined) {
    const kind = bodyOf(route);
    return kind === undefined ? [] : [kind.value];
  }
  return Object.keys(properties)
    .filter((name) => !required.includes(name))
    .map((name) => {
      const kept = Object.entries(properties).filter(([key]) => key === name || required.includes(key));
      const plain = Object.entries(questions).filter(([key]) => key !== name && required.includes(key));
      const fixed = Object.fromEntries(plain.map(([key, value]) => [key, fc.constant(value)]));
      const narrow = { ...schema, properties: Object.fromEntries(kept), required: [...required, name] };
      return allowedValue(narrow, { ...overrides, ...fixed });
    });
}

export interface BodyKind {
  readonly contentType: string;
  readonly value: fc.Arbitrary<unknown>;
}

/** undefined: the route takes no body that is JSON or lines of it. */
export function bodyOf(route: RouteDeclaration): BodyKind | undefined {
  const schema = bodySchema(route);
  if (schema !== undefined) return { contentType: "application/json", value: allowedValue(schema, overrides) };
  const [contentType] = route.about?.bodyTypes ?? [];
  if (contentType === undefined || contentType.startsWith("multipart/")) return undefined;
  const query = fc.constantFrom(...querySamples);
  if (contentType === "application/json") return { contentType, value: query };
  return { contentType, value: fc.record({ id: fc.constantFrom("a", "b", ...injections), query }) };
}
