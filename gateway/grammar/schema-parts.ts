/** Reads the parts of a JSON schema: its keywords and their values. */
import type { Bound, NumberRange } from "./number-range.ts";

type Path = readonly (string | number)[];
type Schema = Readonly<Record<string, unknown>>;

/** Thrown for a part of a schema that a grammar cannot express. */
export class SchemaFault extends Error {
  readonly path: Path;

  constructor(path: Path, message: string) {
    super(message);
    this.path = path;
  }
}

/** Keywords that do not restrict the value. */
const noted = ["title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"];
/** Keywords that hold definitions, which are compiled where a reference names them. */
const held = ["$schema", "$defs", "definitions"];
const rangeKeywords = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
const keywordsOfType: Readonly<Record<string, readonly string[]>> = {
  object: ["properties", "required", "additionalProperties", "propertyNames"],
  array: ["items", "prefixItems", "additionalItems", "minItems", "maxItems"],
  string: ["minLength", "maxLength", "pattern", "format"],
  number: rangeKeywords,
  integer: rangeKeywords,
  boolean: [],
  null: [],
};

/** @throws SchemaFault for a keyword that is not among these and restricts the value */
export function annotations(fields: Schema, keywords: readonly string[], path: Path): void {
  const known = new Set([...noted, ...held, ...keywords]);
  for (const keyword of Object.keys(fields)) {
    if (!known.has(keyword)) throw new SchemaFault([...path, keyword], "is not supported here");
  }
}

/** @throws SchemaFault for a keyword that does not belong to these types */
export function keywordsOf(fields: Schema, types: readonly string[], path: Path): void {
  annotations(fields, ["type", ...types.flatMap((type) => keywordsOfType[type] ?? [])], path);
}

/** The types that the schema names, or else those whose keywords it has. Empty: any type. */
export function typesOf(fields: Schema, path: Path): readonly string[] {
  const { type } = fields;
  if (type === undefined) {
    return ["object", "array", "string"].filter((name) => keywordsOfType[name]?.some((keyword) => keyword in fields));
  }
  const named = typeof type === "string" ? [type] : listAt(fields, "type", path, 7);
  const names = named.filter((name): name is string => typeof name === "string" && Object.hasOwn(keywordsOfType, name));
  if (names.length < named.length) throw new SchemaFault([...path, "type"], "names a type that JSON does not have");
  return [...new Set(names)];
}

/** The list under a keyword. @throws SchemaFault when it is no list, or has fewer or more entries */
export function listAt(fields: Schema, keyword: string, path: Path, most: number, least = 1): readonly unknown[] {
  const value = fields[keyword];
  if (Array.isArray(value) && value.length >= least && value.length <= most) return value;
  throw new SchemaFault([...path, keyword], `is not a list of ${least} to ${most} entries`);
}

/** The object under a keyword; an empty one when the keyword is absent. */
export function mapAt(fields: Schema, keyword: string, path: Path): Schema {
  const value = fields[keyword] ?? {};
  if (typeof value === "object" && !Array.isArray(value)) return value as Schema;
  throw new SchemaFault([...path, keyword], "is not an object");
}

/** The least and the greatest count under two keywords; 0 and Infinity where they are absent. */
export function countOf(
  fields: Schema,
  [least, most]: readonly [string, string],
  path: Path,
  bound: number,
): readonly [number, number] {
  const at = (keyword: string, otherwise: number): number => {
    const value = fields[keyword] ?? otherwise;
    if (value === otherwise) return otherwise;
    if (typeof value === "number" && Number.isInteger(value) && value >= 0 && value <= bound) return value;
    throw new SchemaFault([...path, keyword], `is not an integer from 0 to ${bound}`);
  };
  const counts = [at(least, 0), at(most, Number.POSITIVE_INFINITY)] as const;
  if (counts[0] <= counts[1]) return counts;
  throw new SchemaFault([...path, most], `is less than ${least}`);
}

/** The range from the narrower keyword on each side. undefined: the schema has no bound. @throws SchemaFault */
export function rangeOf(fields: Schema, path: Path): NumberRange | undefined {
  if (!rangeKeywords.some((keyword) => keyword in fields)) return undefined;
  const at = (keyword: string, exclusive: boolean): readonly Bound[] => {
    const value = fields[keyword];
    if (value === undefined) return [];
    if (typeof value === "number" && Number.isFinite(value)) return [{ value, exclusive }];
    throw new SchemaFault([...path, keyword], "is not a number");
  };
  const narrowest = (bounds: readonly Bound[], sign: number): Bound | undefined =>
    bounds.toSorted((a, b) => sign * (b.value - a.value) || Number(b.exclusive) - Number(a.exclusive))[0];
  return {
    least: narrowest([...at("minimum", false), ...at("exclusiveMinimum", true)], 1),
    greatest: narrowest([...at("maximum", false), ...at("exclusiveMaximum", true)], -1),
  };
}
