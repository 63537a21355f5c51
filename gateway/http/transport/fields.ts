/** Schemas that fields of many bodies share. */
import { z } from "zod";
import { limits } from "../../config.ts";

export const shortString = z.string().max(limits.shortStringChars);
const tokenIdMax = 2 ** 31 - 1;
/** What an int32 holds; whether the model has such a token is asked where the model is known. */
export const tokenId = z.int().min(0).max(tokenIdMax);

/** A list of token ids. One loop checks them all, since a schema for each element takes twenty times as long. */
export function tokenIds(maxCount: number, minCount = 1): z.ZodType<readonly number[]> {
  const items = { type: "integer", minimum: 0, maximum: tokenIdMax } as const;
  // An element at a time, zod would take a tenth of a second for a long list.
  const list = z.custom<readonly unknown[]>((value) => Array.isArray(value), "must be a list of token ids");
  const checked = list.superRefine((ids, context) => {
    if (ids.length < minCount || ids.length > maxCount) {
      const message = `must have ${minCount} to ${maxCount} token ids`;
      return context.addIssue({ code: "custom", message, input: ids, continue: false });
    }
    const wrong = ids.findIndex((id) => !(Number.isInteger(id) && Number(id) >= 0 && Number(id) <= tokenIdMax));
    if (wrong < 0) return;
    const message = `must be a token id, a whole number from 0 to ${tokenIdMax}`;
    context.addIssue({ code: "custom", message, path: [wrong], input: ids[wrong], continue: false });
  });
  return checked.meta({ type: "array", items, minItems: minCount, maxItems: maxCount }) as unknown as z.ZodType<
    readonly number[]
  >;
}

/**
 * Clients send null for "not set". Most requests leave most fields out, so an absent value goes through none of the
 * schemas that this one is made of.
 */
export function optional<Schema extends z.ZodType>(schema: Schema) {
  const made = schema.nullish().transform((value): z.output<Schema> | undefined => value ?? undefined);
  const { run } = made._zod;
  made._zod.run = (payload, context) => {
    if (payload.value != null || context.direction === "backward") return run(payload, context);
    payload.value = undefined;
    return payload;
  };
  return made;
}

/** So many sets of fields get a schema of their own: a client sets the same ones in all its requests. */
const mostSets = 64;

/**
 * Makes a schema of many optional fields cheap for bodies that set few of them. Zod makes something for each field of the
 * schema, set or not. Here the fields that a body sets, and those it must set, are read by a schema of these alone, made
 * for the first body that sets just them. What is read, and what is refused, is the same.
 * @param schema a strict object; what checks its fields together may be added before, what transforms it only after
 */
export function mostlyUnset<Schema extends z.ZodObject>(schema: Schema): Schema {
  const fields = Object.entries(schema.shape).map(([name, field], at) => {
    const unset = z.safeParse(field, undefined);
    // One letter for each field, so that a short string tells sets of them apart.
    const isNeeded = field._zod.optin === undefined || !unset.success || unset.data !== undefined;
    return { name, field, isNeeded, letter: String.fromCharCode(at + 1) };
  });
  const parts = new Map<string, z.ZodObject>();
  const partFor = (input: object): z.ZodObject | undefined => {
    let set = "";
    for (const { name, isNeeded, letter } of fields) if (isNeeded || name in input) set += letter;
    const known = parts.get(set);
    if (known !== undefined || parts.size === mostSets) return known;
    const shape = Object.fromEntries(
      fields.filter(({ letter }) => set.includes(letter)).map(({ name, field }) => [name, field]),
    );
    const checks = (schema.def.checks ?? []) as z.core.$ZodCheck<object>[];
    const part = z.strictObject(shape).check(...checks);
    parts.set(set, part);
    return part;
  };
  const { run } = schema._zod;
  schema._zod.run = (payload, context) => {
    const input: unknown = payload.value;
    const isPlain = typeof input === "object" && input !== null && !Array.isArray(input);
    const part = isPlain && context.direction !== "backward" ? partFor(input) : undefined;
    return part === undefined ? run(payload, context) : part._zod.run(payload, context);
  };
  return schema;
}
