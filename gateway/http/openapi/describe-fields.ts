/** Gives every field of a schema a description: its own, or the one that `field-texts.ts` has for it. */
import { type FieldTexts, fieldTexts } from "./field-texts.ts";
import type { Json, JsonObject } from "./json.ts";

/** Fields that tell which kind of object this is, by a constant. */
const kindFields = ["object", "type", "role"] as const;

const isObject = (value: Json | undefined): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const isList = (value: Json | undefined): value is readonly Json[] => Array.isArray(value);

/** A description that the schema has itself, or one of the schemas that it may be. */
function ownText(schema: JsonObject): string | undefined {
  if (typeof schema.description === "string") return schema.description;
  const parts = [schema.anyOf, schema.oneOf, schema.allOf].flatMap((list) => (isList(list) ? list : []));
  return parts
    .filter(isObject)
    .map(ownText)
    .find((text) => text !== undefined);
}

/** What the constant fields of an object say of its kind. */
function kindsOf(properties: JsonObject): readonly string[] {
  return kindFields.flatMap((name) => {
    const field = properties[name];
    return isObject(field) && typeof field.const === "string" ? [field.const] : [];
  });
}

/**
 * @param name of the component that the field stands in
 * @param path of fields from there, itself last
 * @param kinds of the object that has it
 */
function listedText(texts: FieldTexts, name: string, path: readonly string[], kinds: readonly string[]) {
  const field = path.at(-1) ?? "";
  const suffixes = path.slice(0, -1).map((_, start) => path.slice(start).join("."));
  // The field around one of the outermost object is `body` or `answer`.
  const place = `${name.split(".").at(-1)}.${path.join(".")}`;
  const keys = [`${name}:${path.join(".")}`, ...kinds.map((kind) => `${kind}:${field}`), place, ...suffixes, field];
  return keys.find((key) => Object.hasOwn(texts, key));
}

/** A constant says what it is. */
function constantText(schema: JsonObject, field: string): string | undefined {
  if (schema.const === undefined) return undefined;
  const shown = `\`${schema.const === null ? "null" : String(schema.const)}\``;
  return field === "object" || field === "type" ? `The kind of object: always ${shown}.` : `Always ${shown}.`;
}

function choiceText(schema: JsonObject, field: string): string | undefined {
  const isKind = field === "type" || field === "object";
  return isKind && (isList(schema.enum) || schema.type === "string") ? "The kind of object." : undefined;
}

export class FieldDescriber {
  /** Entries of the table that a field has taken, for the test that finds those that none does. */
  readonly used = new Set<string>();

  /** The schema with a description at each of its fields that has none. @param name of the component */
  described(schema: Json, name: string, path: readonly string[] = []): Json {
    if (isList(schema)) return schema.map((item) => this.described(item, name, path));
    if (!isObject(schema)) return schema;
    const entries = Object.entries(schema).map(([key, value]): [string, Json] =>
      key === "properties" && isObject(value)
        ? [key, this.#properties(value, name, path)]
        : [key, key === "const" || key === "enum" || key === "default" ? value : this.described(value, name, path)],
    );
    return Object.fromEntries(entries);
  }

  #properties(properties: JsonObject, name: string, path: readonly string[]): JsonObject {
    const kinds = kindsOf(properties);
    const entries = Object.entries(properties).map(([field, schema]): [string, Json] => {
      const own = [...path, field];
      const within = this.described(schema, name, own);
      if (!isObject(within)) return [field, within];
      const text = ownText(within) ?? this.#textOf(within, name, own, kinds);
      return [field, text === undefined ? within : { ...within, description: text }];
    });
    return Object.fromEntries(entries);
  }

  #textOf(schema: JsonObject, name: string, path: readonly string[], kinds: readonly string[]): string | undefined {
    const field = path.at(-1) ?? "";
    const key = listedText(fieldTexts, name, path, kinds);
    const isKind = kindFields.some((each) => each === field) && schema.const !== undefined;
    if (key !== undefined && !isKind) {
      this.used.add(key);
      return fieldTexts[key];
    }
    return constantText(schema, field) ?? choiceText(schema, field);
  }
}
