/** What fields of every body are made of. */
import { z } from "zod";
import { limits } from "../config.ts";

export const shortString = z.string().max(limits.shortStringChars);
const tokenIdMax = 2 ** 31 - 1;
/** What an int32 holds; whether the model has such a token is asked where the model is known. */
export const tokenId = z.int().min(0).max(tokenIdMax);
export const tokenIds = (maxCount: number) => z.array(tokenId).min(1).max(maxCount);
/** Clients send null for "not set". */
export const optional = <Schema extends z.ZodType>(schema: Schema) =>
  schema.nullish().transform((value): z.output<Schema> | undefined => value ?? undefined);
