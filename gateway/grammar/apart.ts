/** Whether no value is of two schemas: what `oneOf` asks for, and a grammar of alternatives does not give by itself. */
import { typesOf } from "./schema-parts.ts";

type Schema = Readonly<Record<string, unknown>>;

const isSchema = (value: unknown): value is Schema =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** false: it cannot be told from their types and from the values that they name. */
export function areApart(schemas: readonly unknown[]): boolean {
  if (schemas.length > maxCompared) return false;
  return schemas.every((one, i) => schemas.slice(i + 1).every((other) => isApart(one, other)));
}

const maxCompared = 64;

function isApart(one: unknown, other: unknown): boolean {
  if (!isSchema(one) || !isSchema(other)) return false;
  const [values, otherValues] = [valuesOf(one), valuesOf(other)];
  if (values !== undefined && otherValues !== undefined) return areDisjoint(values, otherValues);
  const [types, otherTypes] = [jsonTypesOf(one), jsonTypesOf(other)];
  if (types !== undefined && otherTypes !== undefined && areDisjoint(types, otherTypes)) return true;
  const [properties, otherProperties] = [requiredOf(one), requiredOf(other)];
  return [...properties].some(([name, values]) => {
    const others = otherProperties.get(name);
    return others !== undefined && areDisjoint(values, others);
  });
}

const areDisjoint = (some: ReadonlySet<string>, others: ReadonlySet<string>): boolean => some.isDisjointFrom(others);

/** As JSON; undefined: it names none, or some whose JSON is not the only one. */
function valuesOf(schema: Schema): ReadonlySet<string> | undefined {
  const values: unknown = "const" in schema ? [schema.const] : schema.enum;
  if (!Array.isArray(values) || values.some((value) => typeof value === "object" && value !== null)) return undefined;
  return new Set(values.map((value) => JSON.stringify(value)));
}

/** An integer is a number too. undefined: any, or not told. */
function jsonTypesOf(schema: Schema): ReadonlySet<string> | undefined {
  const values = [...(valuesOf(schema) ?? [])].map((text): unknown => JSON.parse(text));
  const types =
    values.length === 0 ? typesOf(schema, []) : values.map((value) => (value === null ? "null" : typeof value));
  return types.length === 0 ? undefined : new Set(types.map((type) => (type === "integer" ? "number" : type)));
}

/** Required properties that can only have some values, of schemas of objects alone. */
function requiredOf(schema: Schema): ReadonlyMap<string, ReadonlySet<string>> {
  const found = new Map<string, ReadonlySet<string>>();
  const { properties, required } = schema;
  if (!isSchema(properties) || !Array.isArray(required) || typesOf(schema, []).join() !== "object") return found;
  for (const name of required) {
    const property = typeof name === "string" && Object.hasOwn(properties, name) ? properties[name] : undefined;
    const values = isSchema(property) ? valuesOf(property) : undefined;
    if (values !== undefined) found.set(String(name), values);
  }
  return found;
}
