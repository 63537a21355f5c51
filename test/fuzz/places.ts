/** Places of a schema that have bounds, and bodies that are right in all else. */
import { fc } from "../support/fast-check.ts";
import { overrides, questions } from "./bodies.ts";
import { allowedValue, type JsonSchema } from "./schema-values.ts";

/** A way down: a property, an item of an array, a value of a record, or a branch of a union. */
type Step = { readonly property: string } | "item" | "value" | { readonly branch: number };

export interface Place {
  /** messages[0].content */
  readonly name: string;
  readonly type: string;
  readonly schema: JsonSchema;
  readonly steps: readonly Step[];
}

/** Filters hold filters: what their second level has is as the first's. */
const maxSteps = 14;

/** Every number, text and array below the schema. */
export function placesOf(schema: JsonSchema, name = "", steps: readonly Step[] = []): readonly Place[] {
  if (steps.length > maxSteps) return [];
  const branches = schema.anyOf ?? schema.oneOf;
  if (branches !== undefined) {
    return branches.flatMap((branch, index) => placesOf(branch, name, [...steps, { branch: index }]));
  }
  if (schema.const !== undefined || schema.enum !== undefined) return [];
  const types = typeof schema.type === "string" ? [schema.type] : (schema.type ?? []);
  return types.flatMap((type): readonly Place[] => {
    const own = { name, type, schema, steps };
    if (type === "array") return [own, ...placesOf(schema.items ?? {}, `${name}[0]`, [...steps, "item"])];
    if (type !== "object") return type === "boolean" || type === "null" ? [] : [own];
    const inner = Object.entries(schema.properties ?? {}).flatMap(([property, field]) =>
      placesOf(field, name === "" ? property : `${name}.${property}`, [...steps, { property }]),
    );
    const { additionalProperties: extra } = schema;
    return typeof extra === "object" ? [...inner, ...placesOf(extra, `${name}.a`, [...steps, "value"])] : inner;
  });
}

/** The shortest of some: thousands of it may stand in one body. */
function shortest(values: fc.Arbitrary<unknown>): unknown {
  const samples = fc.sample(values, { numRuns: 20 });
  const chars = (value: unknown): number => JSON.stringify(value)?.length ?? 0;
  return samples.reduce((best, value) => (chars(value) < chars(best) ? value : best));
}

/** A body with `value` at the place; its other fields are the required ones. */
export function bodyWith(schema: JsonSchema, [step, ...rest]: readonly Step[], value: unknown): unknown {
  if (step === undefined) return value;
  if (step === "item") return [bodyWith(schema.items ?? {}, rest, value)];
  if (step === "value") return { 1: bodyWith(schema.additionalProperties as JsonSchema, rest, value) };
  if ("branch" in step) return bodyWith((schema.anyOf ?? schema.oneOf ?? [])[step.branch] ?? {}, rest, value);
  const { properties = {}, required = [] } = schema;
  const others = required.filter((name) => name !== step.property);
  return {
    ...Object.fromEntries(others.map((name) => [name, overrideOr(name, properties[name] ?? {})])),
    [step.property]: bodyWith(properties[step.property] ?? {}, rest, value),
  };
}

const overrideOr = (name: string, schema: JsonSchema): unknown => {
  const override = overrides[name];
  if (questions[name] !== undefined) return questions[name];
  return override === undefined ? shortestOf(schema) : remembered(override, () => override);
};

const shortestOf = (schema: JsonSchema): unknown => remembered(schema, () => allowedValue(schema, overrides));

/** By schema, or by what stands in for one: thousands of bodies have the same fields. */
const shortestValues = new WeakMap<object, { readonly value: unknown }>();

function remembered(of: object, values: () => fc.Arbitrary<unknown>): unknown {
  const found = shortestValues.get(of) ?? { value: shortest(values()) };
  shortestValues.set(of, found);
  return found.value;
}

export interface Trial {
  readonly value: unknown;
  readonly isAllowed: boolean;
}

/** Values at the place's bounds, and just beyond them. */
export function trialsOf({ type, schema }: Place): readonly Trial[] {
  if (type === "string") return lengthTrials(schema);
  if (type === "array") return itemTrials(schema);
  const step = type === "integer" ? 1 : 1e-3;
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema;
  const trials: Trial[] = [];
  const add = (value: number | undefined, isAllowed: boolean) => {
    if (value !== undefined) trials.push({ value, isAllowed });
  };
  add(minimum, true);
  add(maximum, true);
  // Beyond these there are no whole numbers to tell apart.
  if (minimum !== undefined && minimum > -Number.MAX_SAFE_INTEGER) add(minimum - step, false);
  if (maximum !== undefined && maximum < Number.MAX_SAFE_INTEGER) add(maximum + step, false);
  add(exclusiveMinimum, false);
  add(exclusiveMaximum, false);
  if (type === "integer") trials.push({ value: 0.5, isAllowed: false }, { value: 2 ** 60, isAllowed: false });
  trials.push({ value: "1", isAllowed: false });
  return trials;
}

function lengthTrials({ minLength, maxLength, pattern }: JsonSchema): readonly Trial[] {
  const wrong: readonly Trial[] = [
    { value: 5, isAllowed: false },
    { value: {}, isAllowed: false },
  ];
  if (pattern !== undefined) return [...wrong, { value: "\u0000 not that", isAllowed: false }];
  const short = minLength === undefined || minLength === 0 ? [] : [{ value: "", isAllowed: false }];
  if (maxLength === undefined) return [...wrong, ...short];
  const at = (length: number, isAllowed: boolean): Trial => ({ value: "x".repeat(length), isAllowed });
  return [...wrong, ...short, at(maxLength, true), at(maxLength + 1, false)];
}

function itemTrials({ items = {}, minItems = 0, maxItems }: JsonSchema): readonly Trial[] {
  const item = shortestOf(items);
  const at = (length: number, isAllowed: boolean): Trial => ({ value: Array.from({ length }, () => item), isAllowed });
  const few = minItems > 0 ? [at(minItems - 1, false)] : [];
  const many = maxItems === undefined ? [] : [at(maxItems, true), at(maxItems + 1, false)];
  return [...few, ...many, { value: { length: 1 }, isAllowed: false }];
}
