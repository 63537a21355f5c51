/** Lists as the OpenAI API pages them: `limit`, `order`, `after`, `before`; and other query strings. */
import type { Context } from "hono";
import { z } from "zod";
import type { Page, PageRange } from "../../../db/page.ts";
import { ApiError } from "../../base/errors.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import { readBody } from "./body.ts";
import type { AppEnv } from "./context.ts";
import { checked } from "./schema-check.ts";

export const wholeNumber = z
  .string()
  .regex(/^\d{1,6}$/, "must be a whole number")
  .transform(Number);
export const cursor = z.string().max(64);

/** Query string of a list route; an unknown parameter is an error like an unknown field. */
export const pageQuery = z.strictObject({
  limit: wholeNumber.pipe(z.number().min(1).max(corpusLimits.maxPageItems)).default(corpusLimits.defaultPageItems),
  order: z.enum(["asc", "desc"]).default("desc"),
  after: cursor.optional(),
  before: cursor.optional(),
});

/** @throws ApiError 400 with `param` */
export function readQuery<Schema extends z.ZodType>(context: Context<AppEnv>, schema: Schema): z.infer<Schema> {
  return checked(schema, context.req.query());
}

/** For routes that take no fields: an empty body or an empty object. @throws ApiError */
export async function readNoFields(context: Context<AppEnv>): Promise<void> {
  const bytes = await readBody(context, 1024);
  if (/^\s*(\{\s*\})?\s*$/.test(Buffer.from(bytes).toString("latin1"))) return;
  throw new ApiError("unknown_field", { message: "This route takes no fields." });
}

/** For routes that may be called without a body: that is an object without fields. @throws ApiError 400 with `param` */
export async function readFields<Schema extends z.ZodType>(
  context: Context<AppEnv>,
  schema: Schema,
): Promise<z.infer<Schema>> {
  const text = Buffer.from(await readBody(context, 1024)).toString("utf8");
  return checked(schema, text.trim() === "" ? {} : jsonOf(text));
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError("invalid_json");
  }
}

/**
 * The page's range, its cursors looked up among what the caller may see.
 * @param find the row a cursor names; throws not_found for one that is unknown or another tenant's
 * @param suffix of the cursors' names in the query string
 */
export function rangeOf(
  { limit, order, after, before }: z.infer<typeof pageQuery>,
  find: (id: string) => { readonly seq: number },
  suffix = "",
): PageRange {
  const [afterSeq, beforeSeq] = [seqOf(`after${suffix}`, after, find), seqOf(`before${suffix}`, before, find)];
  return { limit, order, afterSeq, beforeSeq };
}

function seqOf(
  param: string,
  id: string | undefined,
  find: (id: string) => { readonly seq: number },
): number | undefined {
  if (id === undefined) return undefined;
  try {
    return find(id).seq;
  } catch (error) {
    if (error instanceof ApiError && error.code === "not_found") throw new ApiError("not_found", { param });
    throw error;
  }
}

export function listBody<Row, Item extends { readonly id: string }>(page: Page<Row>, toItem: (row: Row) => Item) {
  const data = page.rows.map(toItem);
  return {
    object: "list" as const,
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: page.hasMore,
  };
}

/** Unix seconds, as the API gives times. */
export const seconds = (unixMs: number): number => Math.floor(unixMs / 1000);
