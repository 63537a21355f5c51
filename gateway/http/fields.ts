/** What fields of every body are made of. */
import { z } from "zod";
import { limits } from "../config.ts";

export const shortString = z.string().max(limits.shortStringChars);
/** Clients send null for "not set". */
export const optional = <Schema extends z.ZodType>(schema: Schema) =>
  schema.nullish().transform((value): z.output<Schema> | undefined => value ?? undefined);
