/** Schemas that fields of many bodies share. */
import { z } from "zod";
import { limits } from "../../config.ts";

export const shortString = z.string().max(limits.shortStringChars);
const tokenIdMax = 2 ** 31 - 1;
/** What an int32 holds; whether the model has such a token is asked where the model is known. */
export const tokenId = z.int().min(0).max(tokenIdMax);

/** A list of token ids. One loop checks them all, since a schema for each element takes twenty times as long. */
export function tokenIds(maxCount: number): z.ZodType<readonly number[]> {
  const items = { type: "integer", minimum: 0, maximum: tokenIdMax } as const;
  // An element at a time, zod would take a tenth of a second for a long list.
  const list = z.custom<readonly unknown[]>((value) => Array.isArray(value), "must be a list of token ids");
  const checked = list.superRefine((ids, context) => {
    if (ids.length === 0 || ids.length > maxCount) {
      const message = `must have 1 to ${maxCount} token ids`;
      return context.addIssue({ code: "custom", message, input: ids, continue: false });
    }
    const wrong = ids.findIndex((id) => !(Number.isInteger(id) && Number(id) >= 0 && Number(id) <= tokenIdMax));
    if (wrong < 0) return;
    const message = `must be a token id, a whole number from 0 to ${tokenIdMax}`;
    context.addIssue({ code: "custom", message, path: [wrong], input: ids[wrong], continue: false });
  });
  return checked.meta({ type: "array", items, minItems: 1, maxItems: maxCount }) as unknown as z.ZodType<
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
