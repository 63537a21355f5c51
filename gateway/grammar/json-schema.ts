/**
 * Turns JSON schemas into byte grammars: every text of the grammar parses and validates. Where a schema leaves
 * something open, the grammar allows only the usual: properties in the order in which the schema names them, and no
 * others. A keyword that a grammar cannot express is refused with its path.
 */
import type { GrammarSymbol } from "../../worker/contract/grammar.ts";
import { areApart } from "./apart.ts";
import { GrammarTooLarge } from "./budget.ts";
import { type Alternative, type GrammarBuilder, literal } from "./builder.ts";
import * as json from "./json-values.ts";
import { integerBetween, numberBetween } from "./number-range.ts";
import { patternAutomaton } from "./pattern.ts";
import { patternString } from "./pattern-string.ts";
import { PatternFault } from "./pattern-syntax.ts";
import { annotations, countOf, keywordsOf, listAt, mapAt, rangeOf, SchemaFault, typesOf } from "./schema-parts.ts";

/** Deepest nesting of schemas. */
const maxDepth = 32;
const maxAlternatives = 512;
const maxProperties = 512;
const maxChars = 4_096;
const maxItems = 1_024;

/**
 * Adds a schema's values to a grammar and returns their rule.
 * @throws SchemaFault with the path, within the schema, of what a grammar cannot express; GrammarTooLarge
 */
export const schemaRule = (it: GrammarBuilder, schema: unknown): GrammarSymbol =>
  new SchemaCompiler(it, schema).compile(schema, [], 0);

type Path = readonly (string | number)[];
type Schema = Readonly<Record<string, unknown>>;

class SchemaCompiler {
  readonly #it: GrammarBuilder;
  readonly #root: unknown;
  readonly #referenced = new Map<string, GrammarSymbol>();
  /** References that are being compiled and have no byte of text before them yet. Meeting one again would never end. */
  readonly #open = new Set<string>();

  constructor(it: GrammarBuilder, root: unknown) {
    this.#it = it;
    this.#root = root;
  }

  compile(schema: unknown, path: Path, depth: number): GrammarSymbol {
    this.#it.budget.spend("looks", 1);
    if (depth > maxDepth) throw new SchemaFault(path, `is nested deeper than ${maxDepth} schemas`);
    if (schema === true) return json.anyValue(this.#it);
    if (typeof schema !== "object" || schema === null || Array.isArray(schema)) {
      throw new SchemaFault(path, "is not a schema that has a value");
    }
    const fields = schema as Schema;
    if ("$ref" in fields) return this.#reference(fields, path, depth);
    if ("anyOf" in fields) return this.#anyOf(fields, "anyOf", path, depth);
    if ("oneOf" in fields) return this.#anyOf(fields, "oneOf", path, depth);
    if ("const" in fields) return this.#values(fields, [fields.const], "const", path);
    if ("enum" in fields) return this.#values(fields, listAt(fields, "enum", path, maxAlternatives), "enum", path);
    const types = typesOf(fields, path);
    keywordsOf(fields, types, path);
    if (types.length === 0) return json.anyValue(this.#it);
    // Every integer is a number, and a value must not have two derivations.
    const wanted = types.includes("number") ? types.filter((type) => type !== "integer") : types;
    return this.#it.rule(wanted.map((type) => [this.#ofType(type, fields, path, depth)]));
  }

  #ofType(type: string, fields: Schema, path: Path, depth: number): GrammarSymbol {
    const it = this.#it;
    switch (type) {
      case "object":
        return this.#object(fields, path, depth);
      case "array":
        return this.#array(fields, path, depth);
      case "string":
        return this.#string(fields, path);
      case "number":
      case "integer":
        return this.#number(type, fields, path);
      case "boolean":
        return json.boolean(it);
      default:
        return json.nothing(it);
    }
  }

  #string(fields: Schema, path: Path): GrammarSymbol {
    const [least, most] = countOf(fields, ["minLength", "maxLength"], path, maxChars);
    const { pattern, format } = fields;
    // Where a pattern stands beside a format, the pattern says what the format is.
    const keyword = pattern === undefined ? "format" : "pattern";
    const wanted = pattern ?? (typeof format === "string" ? formats[format] : undefined);
    if (wanted === undefined && format === undefined) return json.string(this.#it, least, most);
    const at = [...path, keyword];
    if (typeof wanted !== "string") throw new SchemaFault(at, "is not supported here");
    const it = this.#it;
    const make = (): readonly Alternative[] => [[patternString(it, patternAutomaton(wanted, it.budget), least, most)]];
    try {
      // The same pattern, often that of a format, may stand at many places.
      return it.shared(`pattern ${least} ${most} ${wanted}`, make);
    } catch (error) {
      const isFault = error instanceof PatternFault || error instanceof GrammarTooLarge;
      throw isFault ? new SchemaFault(at, error.message) : error;
    }
  }

  #number(type: "number" | "integer", fields: Schema, path: Path): GrammarSymbol {
    const it = this.#it;
    const bounds = rangeOf(fields, path);
    if (bounds === undefined) return type === "number" ? json.number(it) : json.integer(it);
    const ends = [bounds.least, bounds.greatest];
    if (type === "number" && ends.some((end) => end !== undefined && !Number.isInteger(end.value))) {
      throw new SchemaFault(path, "has a bound that is no integer, which is supported for integers alone");
    }
    const between = type === "number" ? numberBetween(it, bounds) : integerBetween(it, bounds);
    if (between === undefined) throw new SchemaFault(path, "has no number between its bounds");
    return between;
  }

  #reference(fields: Schema, path: Path, depth: number): GrammarSymbol {
    annotations(fields, ["$ref"], path);
    const { $ref: target } = fields;
    if (typeof target !== "string") throw new SchemaFault([...path, "$ref"], "is not a string");
    if (this.#open.has(target)) throw new SchemaFault([...path, "$ref"], "refers to itself with nothing between");
    const known = this.#referenced.get(target);
    if (known !== undefined) return known;
    const [schema, place] = this.#resolve(target, [...path, "$ref"]);
    const rule = this.#it.declare();
    this.#referenced.set(target, rule);
    this.#open.add(target);
    this.#it.define(rule, [[this.compile(schema, place, depth + 1)]]);
    this.#open.delete(target);
    return rule;
  }

  /** Finds what a reference names. @returns the schema and its path */
  #resolve(target: string, path: Path): readonly [unknown, Path] {
    const match = /^#(?:\/(\$defs|definitions)\/([^/]+))?$/.exec(target);
    if (match === null) throw new SchemaFault(path, "is neither '#' nor '#/$defs/…'");
    const [, list, encoded] = match;
    if (list === undefined || encoded === undefined) return [this.#root, []];
    const name = encoded.replaceAll("~1", "/").replaceAll("~0", "~");
    const definitions = mapAt(this.#root as Schema, list, []);
    if (!Object.hasOwn(definitions, name)) throw new SchemaFault(path, "refers to a definition that is not there");
    return [definitions[name], [list, name]];
  }

  #anyOf(fields: Schema, keyword: "anyOf" | "oneOf", path: Path, depth: number): GrammarSymbol {
    annotations(fields, [keyword], path);
    const schemas = listAt(fields, keyword, path, maxAlternatives);
    if (
      keyword === "oneOf" &&
      !areApart(
        schemas.map((schema) => this.#followed(schema)),
        this.#it.budget,
      )
    ) {
      const message = "has alternatives that one value may be of both; tell them apart by a required property's const";
      throw new SchemaFault([...path, keyword], message);
    }
    return this.#it.rule(schemas.map((schema, i) => [this.compile(schema, [...path, keyword, i], depth + 1)]));
  }

  /** The schema that a reference names. A schema that is no valid reference is returned itself. */
  #followed(schema: unknown): unknown {
    const target = (schema as { readonly $ref?: unknown } | null)?.$ref;
    return typeof target === "string" ? this.#resolve(target, [])[0] : schema;
  }

  #values(fields: Schema, values: readonly unknown[], keyword: string, path: Path): GrammarSymbol {
    annotations(fields, [keyword, "type"], path);
    const types = typesOf(fields, path);
    const fits = values.filter((value) => types.length === 0 || types.some((type) => isOfType(value, type)));
    if (fits.length === 0) throw new SchemaFault([...path, keyword], "has no value of the type");
    const texts = new Set(fits.map((value) => jsonText(value, [...path, keyword])));
    return this.#it.rule([...texts].map(literal));
  }

  #array(fields: Schema, path: Path, depth: number): GrammarSymbol {
    // Earlier drafts of JSON schema have the list in `items`.
    const keyword = Array.isArray(fields.items) ? "items" : "prefixItems";
    if (fields[keyword] !== undefined && Array.isArray(fields[keyword])) {
      return this.#tuple(fields, keyword, path, depth);
    }
    annotations(fields, ["type", "items", "minItems", "maxItems"], path);
    const [least, most] = countOf(fields, ["minItems", "maxItems"], path, maxItems);
    const item = this.#inside(() => this.compile(fields.items ?? true, [...path, "items"], depth + 1));
    return this.#it.rule(json.arrayOf(this.#it, `items of ${item}`, item, least, most));
  }

  /** A tuple has a fixed length: with optional entries, they could not be distinguished from those that follow. */
  #tuple(fields: Schema, keyword: "items" | "prefixItems", path: Path, depth: number): GrammarSymbol {
    const schemas = listAt(fields, keyword, path, maxItems);
    const rest = keyword === "items" ? "additionalItems" : "items";
    const [least, most] = countOf(fields, ["minItems", "maxItems"], path, maxItems);
    const isClosed = fields[rest] === false || most === schemas.length;
    if (!isClosed || least !== schemas.length || most < schemas.length) {
      throw new SchemaFault([...path, keyword], "is supported for arrays of just so many items: say so by minItems");
    }
    const it = this.#it;
    return this.#inside(() => {
      const items = schemas.flatMap((schema, i): Alternative => {
        const item = this.compile(schema, [...path, keyword, i], depth + 1);
        return [...(i === 0 ? [] : literal(",")), json.space(it), item];
      });
      return it.rule([[...literal("["), ...items, json.space(it), ...literal("]")]]);
    });
  }

  #object(fields: Schema, path: Path, depth: number): GrammarSymbol {
    const properties = mapAt(fields, "properties", path);
    const names = Object.keys(properties);
    if (names.length > maxProperties)
      throw new SchemaFault([...path, "properties"], `has over ${maxProperties} entries`);
    const required = fields.required === undefined ? [] : listAt(fields, "required", path, maxProperties, 0);
    for (const [i, name] of required.entries()) {
      if (typeof name === "string" && Object.hasOwn(properties, name)) continue;
      throw new SchemaFault([...path, "required", i], "is not the name of one of the properties");
    }
    const { additionalProperties: open = true, propertyNames = true } = fields;
    if (!isAnyName(propertyNames))
      throw new SchemaFault([...path, "propertyNames"], "is supported for names of any kind");
    // The empty schema allows any value.
    const others = typeof open === "object" && open !== null && Object.keys(open).length === 0 ? true : open;
    if (typeof others !== "boolean" && names.length > 0) {
      throw new SchemaFault(
        [...path, "additionalProperties"],
        "is supported as true or false where there are properties",
      );
    }
    return this.#inside(() => {
      if (names.length > 0) return this.#members(properties, new Set(required), path, depth);
      if (others === false) return this.#it.rule([literal("{}")]);
      const value = this.compile(others, [...path, "additionalProperties"], depth + 1);
      return this.#it.rule(json.mapOf(this.#it, `members of ${value}`, value));
    });
  }

  /** Rules for the properties in order, with commas between. A property that is not required may be skipped. */
  #members(properties: Schema, required: ReadonlySet<unknown>, path: Path, depth: number): GrammarSymbol {
    const it = this.#it;
    let rest: { readonly first: Alternative; readonly later: Alternative } = { first: [], later: [] };
    for (const [name, schema] of Object.entries(properties).reverse()) {
      const value = this.compile(schema, [...path, "properties", name], depth + 1);
      const member = [...literal(`${JSON.stringify(name)}:`), json.space(it), value, ...rest.later];
      const first = [json.space(it), ...member];
      const later = [...literal(","), json.space(it), ...member];
      const skip = !required.has(name);
      rest = {
        first: [it.rule(skip ? [first, rest.first] : [first])],
        later: [it.rule(skip ? [later, rest.later] : [later])],
      };
    }
    return it.rule([[...literal("{"), ...rest.first, json.space(it), ...literal("}")]]);
  }

  /** Compiles what stands inside an object or array. Behind the bracket, it may refer to the schemas around it. */
  #inside(make: () => GrammarSymbol): GrammarSymbol {
    const open = [...this.#open];
    this.#open.clear();
    const made = make();
    for (const target of open) this.#open.add(target);
    return made;
  }
}

/** Whether a schema of property names allows any name. Names are always strings. */
const isAnyName = (names: unknown): boolean => {
  if (names === true) return true;
  if (typeof names !== "object" || names === null) return false;
  return Object.entries(names).every(([keyword, value]) => keyword === "type" && value === "string");
};

function jsonText(value: unknown, path: Path): string {
  try {
    return JSON.stringify(value);
  } catch {
    throw new SchemaFault(path, "is nested too deep");
  }
}

function isOfType(value: unknown, type: string): boolean {
  if (type === "null") return value === null;
  if (type === "array") return Array.isArray(value);
  if (type === "object") return typeof value === "object" && value !== null && !Array.isArray(value);
  if (type === "integer") return Number.isInteger(value);
  // For the other types, JSON schema and JavaScript have the same names.
  return typeof value === type;
}

const monthDays = [
  "(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])",
  "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)",
  "02-(?:0[1-9]|1\\d|2[0-8])",
].join("|");
const leapYears = "\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00";
const date = `(?:\\d{4}-(?:${monthDays})|(?:${leapYears})-02-29)`;
const time = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
const byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
const label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const uriSign = "(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})";

export const formats: Readonly<Record<string, string>> = {
  date: `^${date}$`,
  time: `^${time}$`,
  "date-time": `^${date}T${time}$`,
  email: `^[A-Za-z0-9_'+-]+(?:\\.[A-Za-z0-9_'+-]+)*@(?:${label}\\.)+[A-Za-z]{2,24}$`,
  hostname: `^${label}(?:\\.${label})*$`,
  ipv4: `^${byte}(?:\\.${byte}){3}$`,
  uuid: "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
  uri: `^[A-Za-z][A-Za-z0-9+.-]{0,30}:${uriSign}+$`,
};
