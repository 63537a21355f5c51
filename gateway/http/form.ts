/** Reads and checks a multipart form: size first, then the form, then the schema. */
import type { Context } from "hono";
import type { z } from "zod";
import { corpusLimits } from "../corpus/limits.ts";
import { ApiError } from "../errors.ts";
import type { AppEnv } from "./auth.ts";
import { readBody } from "./body.ts";
import { schemaError } from "./schema-error.ts";

/** More than the fields that there are, so that one that is not supported is named. */
const maxFormFields = 16;

/**
 * @param maxBytes of the file in it
 * @throws ApiError 413, 415, 400 with `param`
 */
export async function readForm<Schema extends z.ZodType>(
  context: Context<AppEnv>,
  schema: Schema,
  maxBytes: number,
  unsupported: ReadonlySet<string> = new Set(),
): Promise<z.infer<Schema>> {
  const contentType = context.req.header("content-type") ?? "";
  if (!/^multipart\/form-data\s*;/i.test(contentType)) {
    throw new ApiError("unsupported_media_type", { message: "Send the file as multipart/form-data." });
  }
  const bytes = await readBody(context, maxBytes + corpusLimits.maxUploadOverheadBytes);
  const fields = await parseForm(bytes, contentType);
  const result = schema.safeParse(Object.fromEntries(entriesOnce(fields)));
  if (!result.success) throw schemaError(result.error, unsupported);
  return result.data;
}

/** Each field once; ends at the first that is too many, since a form of 32 MiB can hold half a million. */
function entriesOnce(fields: FormData): ReadonlyMap<string, unknown> {
  const entries = new Map<string, unknown>();
  for (const [key, value] of fields.entries()) {
    if (entries.has(key)) {
      throw new ApiError("invalid_value", { param: key.slice(0, 64), message: "A field was given more than once." });
    }
    if (entries.size === maxFormFields) {
      throw new ApiError("invalid_request", { message: `The form may have at most ${maxFormFields} fields.` });
    }
    entries.set(key, value);
  }
  return entries;
}

async function parseForm(bytes: Uint8Array, contentType: string): Promise<FormData> {
  try {
    const headers = { "content-type": contentType };
    return (await new Response(bytes as Uint8Array<ArrayBuffer>, { headers }).formData()) as FormData;
  } catch (error) {
    throw new ApiError("invalid_request", { message: "The body is not valid multipart/form-data.", cause: error });
  }
}
