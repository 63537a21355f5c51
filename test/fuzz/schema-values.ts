/** Values that a JSON schema allows, and the places within it that have bounds. */
import { fc } from "../support/fast-check.ts";
import { strangeText } from "./values.ts";

export interface JsonSchema {
  readonly type?: string | readonly string[];
  readonly anyOf?: readonly JsonSchema[];
  readonly oneOf?: readonly JsonSchema[];
  readonly allOf?: readonly JsonSchema[];
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
  readonly additionalProperties?: JsonSchema | boolean;
  readonly propertyNames?: JsonSchema;
  readonly items?: JsonSchema;
  readonly prefixItems?: readonly JsonSchema[];
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly pattern?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly exclusiveMaximum?: number;
  readonly format?: string;
}

/** Values for a property of that name, instead of what its schema says alone. */
export type Overrides = Readonly<Record<string, fc.Arbitrary<unknown>>>;

const maxDepth = 7;

/** Small values that the schema allows; what a check written in code forbids may be among them. */
export function allowedValue(schema: JsonSchema, overrides: Overrides, depth = 0): fc.Arbitrary<unknown> {
  if (schema.const !== undefined) return fc.constant(schema.const);
  if (schema.enum !== undefined) return fc.constantFrom(...schema.enum);
  const branches = schema.anyOf ?? schema.oneOf;
  if (branches !== undefined) {
    const shallow = depth >= maxDepth ? branches.filter((branch) => branch.type !== "object") : branches;
    const usable = shallow.length === 0 ? branches.slice(0, 1) : shallow;
    return fc.oneof(
      ...usable.map((branch) => ({
        weight: branch.type === "null" ? 1 : 6,
        arbitrary: allowedValue(branch, overrides, depth + 1),
      })),
    );
  }
  const types = typeof schema.type === "string" ? [schema.type] : (schema.type ?? []);
  if (types.length === 0) return fc.jsonValue({ maxDepth: 2 });
  return fc.oneof(...types.map((type) => ofType(type, schema, overrides, depth)));
}

function ofType(type: string, schema: JsonSchema, overrides: Overrides, depth: number): fc.Arbitrary<unknown> {
  if (type === "null") return fc.constant(null);
  if (type === "boolean") return fc.boolean();
  if (type === "string") return textOf(schema);
  if (type === "integer" || type === "number") return numberOf(type, schema);
  if (type === "array") {
    const { minItems = 0, maxItems = 3 } = schema;
    const most = Math.min(maxItems, Math.max(minItems, 3));
    return fc.array(allowedValue(schema.items ?? {}, overrides, depth + 1), { minLength: minItems, maxLength: most });
  }
  return objectOf(schema, overrides, depth);
}

function textOf({ pattern, minLength = 0, maxLength = 40 }: JsonSchema): fc.Arbitrary<string> {
  if (pattern !== undefined) return fc.stringMatching(new RegExp(pattern));
  const most = Math.max(minLength, Math.min(maxLength, 40));
  const plain = fc.string({ unit: "grapheme-ascii", minLength, maxLength: most });
  const fits = (text: string): boolean => text.length >= minLength && text.length <= maxLength;
  return fc.oneof(
    { weight: 3, arbitrary: plain },
    { weight: 1, arbitrary: strangeText.map((text) => (fits(text) ? text : "a".repeat(Math.max(1, minLength)))) },
  );
}

export interface NumberBounds {
  readonly min: number;
  readonly max: number;
}

/** Both ends belong to it. */
function boundsOf(type: string, schema: JsonSchema): NumberBounds {
  const step = type === "integer" ? 1 : 1e-6;
  const { exclusiveMinimum, exclusiveMaximum } = schema;
  const min = schema.minimum ?? (exclusiveMinimum === undefined ? -Number.MAX_SAFE_INTEGER : exclusiveMinimum + step);
  const max = schema.maximum ?? (exclusiveMaximum === undefined ? Number.MAX_SAFE_INTEGER : exclusiveMaximum - step);
  return { min, max };
}

function numberOf(type: string, schema: JsonSchema): fc.Arbitrary<number> {
  const { min, max } = boundsOf(type, schema);
  const near = Math.min(max, Math.max(min, 0) + 5);
  if (type === "integer") return fc.oneof(fc.integer({ min, max: near }), fc.constantFrom(min, max));
  return fc.oneof(fc.double({ min, max, noNaN: true }), fc.constantFrom(min, max));
}

function objectOf(schema: JsonSchema, overrides: Overrides, depth: number): fc.Arbitrary<unknown> {
  const { properties = {}, required = [], additionalProperties: extra } = schema;
  const fields = Object.fromEntries(
    Object.entries(properties).map(([name, field]) => [
      name,
      overrides[name] ?? allowedValue(field, overrides, depth + 1),
    ]),
  );
  const optionalNames = Object.keys(fields).filter((name) => !required.includes(name));
  // A few optional fields at a time: with all of them there would always be two that cannot stand together.
  const named = fc
    .tuple(fc.record(fields), fc.subarray(optionalNames, { maxLength: Math.min(4, optionalNames.length) }))
    .map(([all, chosen]) =>
      Object.fromEntries(Object.entries(all).filter(([name]) => required.includes(name) || chosen.includes(name))),
    );
  if (typeof extra !== "object" || Object.keys(properties).length > 0) return named;
  const key = allowedValue(schema.propertyNames ?? { type: "string" }, overrides, depth + 1).map(String);
  return fc.dictionary(key, allowedValue(extra, overrides, depth + 1), { maxKeys: 3 });
}
