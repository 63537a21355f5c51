/** /v1/files */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { FileRow } from "../../../db/files.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import type { Upload } from "../../corpus/files/files.ts";
import { changed } from "../middleware/audit.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { deletedAnswer, listOf } from "../transport/answer-schemas.ts";
import { byteStreamResponse } from "../transport/byte-stream.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { formFile, readForm } from "../transport/form.ts";
import { listBody, pageQuery, rangeOf, readQuery, seconds, wholeNumber } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";

export const purposes = ["assistants", "user_data", "batch"] as const;
const listQuery = pageQuery.extend({
  // Many clients read only the first page, which has 10,000 files in OpenAI's API.
  limit: wholeNumber.pipe(z.number().min(1).max(corpusLimits.maxFilePageItems)).default(corpusLimits.maxFilePageItems),
  // Results of batches are files of the server's own making.
  purpose: z.enum([...purposes, "batch_output"]).optional(),
});
const { minFileSeconds, maxFileSeconds } = corpusLimits;
const lasting = z.number().min(minFileSeconds).max(maxFileSeconds);
/** `expires_after` of an upload in parts. */
export const expiresAfter = z.strictObject({ anchor: z.literal("created_at"), seconds: lasting.int() });
const uploadFields = z.strictObject({
  file: formFile<"file">(),
  purpose: z.enum(purposes),
  "expires_after[anchor]": z.literal("created_at").optional(),
  "expires_after[seconds]": z
    .string()
    .regex(/^\d{1,9}$/, "must be a whole number")
    .transform(Number)
    .pipe(lasting)
    .optional(),
});
const expiryFields = ["expires_after[anchor]", "expires_after[seconds]"] as const;
const uploadForm = uploadFields.superRefine((form, context) => {
  const missing = expiryFields.find((name) => form[name] === undefined);
  if (missing === undefined || expiryFields.every((name) => form[name] === undefined)) return;
  context.addIssue({ code: "custom", path: [missing], message: "is missing", input: form });
});
const unsupportedFields = new Set(["expires_after"]);

export const fileAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("file"),
  bytes: z.int().min(0),
  created_at: z.int().describe("Unix time in seconds."),
  filename: z.string(),
  purpose: z.string(),
  status: z.literal("processed"),
  expires_at: z.int().optional().describe("When the file ends by itself; absent: never."),
});

export interface FileRouteDeps {
  readonly corpus: Corpus;
  /** Limits how many uploads of a tenant are received at the same time. */
  readonly uploads: ConcurrencyLimiter;
  /** Limits how many files of a tenant are sent at the same time. */
  readonly downloads: ConcurrencyLimiter;
}

/** What the routes do, for /openapi.json. */
const about = {
  create: {
    summary: "Uploads a file. The same content under the same name and purpose is the same file.",
    body: uploadFields.extend({ file: z.file() }),
    bodyTypes: ["multipart/form-data"],
    answer: fileAnswer,
  },
  list: { summary: "Lists files.", query: listQuery, answer: listOf(fileAnswer) },
  get: { summary: "Describes a file.", answer: fileAnswer },
  delete: { summary: "Deletes a file, out of every vector store too.", answer: deletedAnswer },
  content: { summary: "A file's bytes.", answerTypes: ["application/octet-stream"] },
};

export function addFileRoutes(app: Hono<AppEnv>, { corpus, uploads, downloads }: FileRouteDeps): void {
  declare(app, "POST /v1/files", about.create, async (c) => {
    const tenantId = tenantIdOf(c);
    using _hold = uploads.enter(tenantId);
    const announced = c.req.header("content-length");
    using _room = corpus.files.reserve(tenantId, announced === undefined ? undefined : Number(announced));
    return c.json(fileBody(await corpus.files.upload(tenantId, await readUpload(c, corpus))));
  });

  declare(app, "GET /v1/files", about.list, (c) => {
    const tenantId = tenantIdOf(c);
    const query = readQuery(c, listQuery);
    const range = rangeOf(query, (id) => corpus.files.get(tenantId, id));
    return c.json(listBody(corpus.files.list(tenantId, { ...range, purpose: query.purpose }), fileBody));
  });

  declare(app, "GET /v1/files/:file_id", about.get, (c) =>
    c.json(fileBody(corpus.files.get(tenantIdOf(c), c.req.param("file_id")))),
  );

  declare(app, "DELETE /v1/files/:file_id", about.delete, (c) => {
    const id = changed(c, () => corpus.files.delete(tenantIdOf(c), c.req.param("file_id")));
    return c.json({ id, object: "file", deleted: true });
  });

  declare(app, "GET /v1/files/:file_id/content", about.content, async (c) => {
    const tenantId = tenantIdOf(c);
    const { row, pieces } = await corpus.files.pieces(tenantId, c.req.param("file_id"), () =>
      downloads.enter(tenantId),
    );
    // A browser must neither render the file nor guess its type, whatever type it claims.
    c.header("content-type", "application/octet-stream");
    c.header("content-disposition", `attachment; filename*=UTF-8''${extValue(row.filename)}`);
    c.header("x-content-type-options", "nosniff");
    return byteStreamResponse(c, pieces);
  });
}

/** @throws ApiError 413, 415, 400 with `param` */
async function readUpload(c: Context<AppEnv>, { files }: Corpus): Promise<Upload> {
  const { file, purpose, ...expiry } = await readForm(c, uploadForm, {
    ...{ maxBytes: corpusLimits.maxUploadBytes, fileField: "file", unsupported: unsupportedFields },
    stage: () => files.stage(),
  });
  // A part with an empty name is a file without one, whatever the type says.
  const mediaType = file.type.slice(0, corpusLimits.maxMediaTypeChars);
  const lastsSeconds = expiry["expires_after[seconds]"];
  return { filename: file.name, purpose, mediaType, lastsSeconds, bytes: file.content };
}

/** RFC 8187's ext-value: encodeURIComponent leaves signs that it does not allow. */
function extValue(text: string): string {
  return encodeURIComponent(text).replace(/['()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16)}`);
}

export function fileBody(row: FileRow) {
  return {
    id: row.id,
    object: "file" as const,
    bytes: row.byteCount,
    created_at: seconds(row.createdAt),
    filename: row.filename,
    purpose: row.purpose,
    status: "processed" as const,
    ...(row.expiresAt === null ? {} : { expires_at: seconds(row.expiresAt) }),
  };
}
