/** Whether no value is of two schemas: what `oneOf` asks for, and a grammar of alternatives does not give by itself. */
import type { Budget } from "./budget.ts";
import { typesOf } from "./schema-parts.ts";

type Schema = Readonly<Record<string, unknown>>;

const isSchema = (value: unknown): value is Schema =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** What is compared of a schema. */
interface Facts {
  readonly values: ReadonlySet<string> | undefined;
  readonly types: ReadonlySet<string> | undefined;
  readonly properties: ReadonlyMap<string, ReadonlySet<string>>;
}

/** false: it cannot be told from their types and from the values that they name. @throws GrammarTooLarge */
export function areApart(schemas: readonly unknown[], budget: Budget): boolean {
  if (schemas.length < 2) return true;
  if (schemas.length > maxCompared || !schemas.every(isSchema)) return false;
  // One definition may be named by several references.
  const known = new Map<Schema, Facts>();
  const facts = schemas.map((schema): Facts => {
    const found = known.get(schema) ?? factsOf(schema, budget);
    known.set(schema, found);
    return found;
  });
  return facts.every((one, i) => facts.slice(i + 1).every((other) => isApart(one, other, budget)));
}

const maxCompared = 64;

function factsOf(schema: Schema, budget: Budget): Facts {
  const values = valuesOf(schema, budget);
  return { values, types: jsonTypesOf(schema, values), properties: requiredOf(schema, budget) };
}

const sizeOf = ({ values, properties }: Facts): number =>
  [...properties.values()].reduce((sum, set) => sum + set.size + 1, (values?.size ?? 0) + 1);

function isApart(one: Facts, other: Facts, budget: Budget): boolean {
  budget.spend("looks", sizeOf(one));
  if (one.values !== undefined && other.values !== undefined) return areDisjoint(one.values, other.values);
  if (one.types !== undefined && other.types !== undefined && areDisjoint(one.types, other.types)) return true;
  return [...one.properties].some(([name, values]) => {
    const others = other.properties.get(name);
    return others !== undefined && areDisjoint(values, others);
  });
}

const areDisjoint = (some: ReadonlySet<string>, others: ReadonlySet<string>): boolean => some.isDisjointFrom(others);

/** As JSON; undefined: it names none, or some whose JSON is not the only one. */
function valuesOf(schema: Schema, budget: Budget): ReadonlySet<string> | undefined {
  const values: unknown = "const" in schema ? [schema.const] : schema.enum;
  budget.spend("looks", Array.isArray(values) ? values.length : 1);
  if (!Array.isArray(values) || values.some((value) => typeof value === "object" && value !== null)) return undefined;
  return new Set(values.map((value) => JSON.stringify(value)));
}

/** An integer is a number too. undefined: any, or not told. */
function jsonTypesOf(schema: Schema, named: Facts["values"]): ReadonlySet<string> | undefined {
  const values = [...(named ?? [])].map((text): unknown => JSON.parse(text));
  const types =
    values.length === 0 ? typesOf(schema, []) : values.map((value) => (value === null ? "null" : typeof value));
  return types.length === 0 ? undefined : new Set(types.map((type) => (type === "integer" ? "number" : type)));
}

/** Required properties that can only have some values, of schemas of objects alone. */
function requiredOf(schema: Schema, budget: Budget): ReadonlyMap<string, ReadonlySet<string>> {
  const found = new Map<string, ReadonlySet<string>>();
  const { properties, required } = schema;
  if (!isSchema(properties) || !Array.isArray(required) || typesOf(schema, []).join() !== "object") return found;
  for (const name of new Set(required)) {
    const property = typeof name === "string" && Object.hasOwn(properties, name) ? properties[name] : undefined;
    const values = isSchema(property) ? valuesOf(property, budget) : undefined;
    if (values !== undefined) found.set(String(name), values);
  }
  return found;
}
