/** Decides whether no value fits two schemas: `oneOf` requires this, and a grammar's alternatives do not ensure it. */
import type { Budget } from "./budget.ts";
import { typesOf } from "./schema-parts.ts";

type Schema = Readonly<Record<string, unknown>>;

const isSchema = (value: unknown): value is Schema =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** The facts about a schema that are compared. */
interface Facts {
  readonly values: ReadonlySet<string> | undefined;
  readonly types: ReadonlySet<string> | undefined;
  readonly properties: ReadonlyMap<string, ReadonlySet<string>>;
}

/**
 * Whether no value fits two of the schemas. false: their types, values and required properties do not show it.
 * @throws GrammarTooLarge
 */
export function areApart(schemas: readonly unknown[], budget: Budget): boolean {
  if (schemas.length < 2) return true;
  if (schemas.length > maxCompared || !schemas.every(isSchema)) return false;
  // Several references may name the same definition.
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

/** The values that a schema names, as JSON. undefined: it names none, or objects or lists, whose JSON is not unique. */
function valuesOf(schema: Schema, budget: Budget): ReadonlySet<string> | undefined {
  const values: unknown = "const" in schema ? [schema.const] : schema.enum;
  budget.spend("looks", Array.isArray(values) ? values.length : 1);
  if (!Array.isArray(values) || values.some((value) => typeof value === "object" && value !== null)) return undefined;
  return new Set(values.map((value) => JSON.stringify(value)));
}

/** The types of a schema's values, where integers count as numbers. undefined: any type, or unknown ones. */
function jsonTypesOf(schema: Schema, named: Facts["values"]): ReadonlySet<string> | undefined {
  const values = [...(named ?? [])].map((text): unknown => JSON.parse(text));
  const types =
    values.length === 0 ? typesOf(schema, []) : values.map((value) => (value === null ? "null" : typeof value));
  return types.length === 0 ? undefined : new Set(types.map((type) => (type === "integer" ? "number" : type)));
}

/** The required properties for which the schema names values, with these. Only schemas of objects have any here. */
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
