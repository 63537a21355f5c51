/** /v1/files */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { FileRow } from "../../db/files.ts";
import type { TenantId } from "../../db/ids.ts";
import type { Corpus } from "../corpus/corpus.ts";
import type { Upload } from "../corpus/files.ts";
import { corpusLimits } from "../corpus/limits.ts";
import { ApiError } from "../errors.ts";
import { changed } from "./audit.ts";
import { type AppEnv, tenantIdOf } from "./auth.ts";
import { readBody, schemaError } from "./body.ts";
import { byteStreamResponse } from "./byte-stream.ts";
import type { ConcurrencyLimiter } from "./limits.ts";
import { listBody, pageQuery, rangeOf, readQuery, seconds } from "./paging.ts";
import { declare } from "./route.ts";

const purposes = ["assistants", "user_data", "batch"] as const;
/** Results of batches are files of the server's own making. */
export const listQuery = pageQuery.extend({ purpose: z.enum([...purposes, "batch_output"]).optional() });
export const uploadFields = z.strictObject({
  file: z.instanceof(File, { error: "must be a file" }),
  purpose: z.enum(purposes),
});
/** More than the fields that there are, so that one that is not supported is named. */
const maxFormFields = 16;
const unsupportedFields = new Set(["expires_after", "expires_after[anchor]", "expires_after[seconds]"]);

export interface FileRouteDeps {
  readonly corpus: Corpus;
  /** Of uploads that are taken in at the same time. */
  readonly uploads: ConcurrencyLimiter;
  /** Of files that are being read. */
  readonly downloads: ConcurrencyLimiter;
}

export function addFileRoutes(app: Hono<AppEnv>, { corpus, uploads, downloads }: FileRouteDeps): void {
  declare(app, "POST", "/v1/files", "corpus:write", async (c) => {
    const tenantId = tenantIdOf(c) as TenantId;
    const leave = uploads.enter(tenantId);
    try {
      return c.json(fileBody(await corpus.files.upload(tenantId, await readUpload(c))));
    } finally {
      leave();
    }
  });

  declare(app, "GET", "/v1/files", "corpus:read", (c) => {
    const tenantId = tenantIdOf(c) as TenantId;
    const query = readQuery(c, listQuery);
    const range = rangeOf(query, (id) => corpus.files.get(tenantId, id));
    return c.json(listBody(corpus.files.list(tenantId, { ...range, purpose: query.purpose }), fileBody));
  });

  declare(app, "GET", "/v1/files/:file_id", "corpus:read", (c) =>
    c.json(fileBody(corpus.files.get(tenantIdOf(c) as TenantId, c.req.param("file_id")))),
  );

  declare(app, "DELETE", "/v1/files/:file_id", "corpus:write", (c) => {
    const id = changed(c, () => corpus.files.delete(tenantIdOf(c) as TenantId, c.req.param("file_id")));
    return c.json({ id, object: "file", deleted: true });
  });

  declare(app, "GET", "/v1/files/:file_id/content", "corpus:read", async (c) => {
    const tenantId = tenantIdOf(c) as TenantId;
    const { row, pieces } = await corpus.files.pieces(tenantId, c.req.param("file_id"), () =>
      downloads.enter(tenantId),
    );
    // Whatever it claims to be, a browser must neither render nor sniff it.
    c.header("content-type", "application/octet-stream");
    c.header("content-disposition", `attachment; filename*=UTF-8''${extValue(row.filename)}`);
    c.header("x-content-type-options", "nosniff");
    return byteStreamResponse(c, pieces);
  });
}

/** @throws ApiError 413, 415, 400 with `param` */
async function readUpload(c: Context<AppEnv>): Promise<Upload> {
  const contentType = c.req.header("content-type") ?? "";
  if (!/^multipart\/form-data\s*;/i.test(contentType)) {
    throw new ApiError("unsupported_media_type", { message: "Send the file as multipart/form-data." });
  }
  const bytes = await readBody(c, corpusLimits.maxUploadBytes + corpusLimits.maxUploadOverheadBytes);
  const fields = await parseForm(bytes, contentType);
  const result = uploadFields.safeParse(Object.fromEntries(entriesOnce(fields)));
  if (!result.success) throw schemaError(result.error, unsupportedFields);
  const { file, purpose } = result.data;
  const content = new Uint8Array(await file.arrayBuffer());
  // A part with an empty name is a file without one, whatever the type says.
  return { filename: file.name ?? "", purpose, mediaType: file.type.slice(0, 128), bytes: content };
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

/** RFC 8187's ext-value: encodeURIComponent leaves signs that it does not allow. */
function extValue(text: string): string {
  return encodeURIComponent(text).replace(/['()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16)}`);
}

function fileBody(row: FileRow) {
  return {
    id: row.id,
    object: "file",
    bytes: row.byteCount,
    created_at: seconds(row.createdAt),
    filename: row.filename,
    purpose: row.purpose,
    status: "processed",
  };
}
