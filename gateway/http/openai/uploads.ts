/** /v1/uploads: a file that comes in parts. Shapes of the `openai` package. */
import type { Hono } from "hono";
import { z } from "zod";
import type { UploadPartRow, UploadRow } from "../../../db/uploads.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { optional, shortString } from "../transport/fields.ts";
import { formFile, readForm } from "../transport/form.ts";
import { readNoFields, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { expiresAfter, fileAnswer, fileBody, purposes } from "./files.ts";

const createSchema = z.strictObject({
  bytes: z.int().min(1).max(corpusLimits.maxUploadBytes),
  filename: z.string().min(1).max(corpusLimits.maxFilenameChars),
  mime_type: z
    .string()
    .max(corpusLimits.maxMediaTypeChars)
    .regex(/^[\x21-\x7e]+\/[\x20-\x7e]+$/, "must be a media type"),
  purpose: z.enum(purposes),
  expires_after: optional(expiresAfter),
});
const partFields = z.strictObject({ data: formFile<"uploadPart">() });
const completeSchema = z.strictObject({
  part_ids: z.array(shortString).min(1).max(corpusLimits.maxPartsPerUpload),
  md5: optional(z.string().regex(/^[0-9a-fA-F]{32}$/, "must be 32 hexadecimal digits")),
});

const uploadAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("upload"),
  bytes: z.int(),
  created_at: z.int(),
  expires_at: z.int(),
  filename: z.string(),
  purpose: z.string(),
  status: z.enum(["pending", "completed", "cancelled", "expired"]),
  file: fileAnswer.nullable(),
});
const partAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("upload.part"),
  created_at: z.int(),
  upload_id: z.string(),
});

export interface UploadRouteDeps {
  readonly corpus: Pick<Corpus, "uploads">;
  /** Limits how many files and parts of a tenant are received at the same time. */
  readonly uploads: ConcurrencyLimiter;
}

/** What the routes do, for /openapi.json. */
const about = {
  create: { summary: "Begins a file that comes in parts, within an hour.", body: createSchema, answer: uploadAnswer },
  addPart: {
    summary: "Adds a part. The same bytes are the same part.",
    body: partFields.extend({ data: z.file() }),
    bodyTypes: ["multipart/form-data"],
    answer: partAnswer,
  },
  complete: { summary: "Makes a file of the parts, in the order given.", body: completeSchema, answer: uploadAnswer },
  cancel: { summary: "Ends an upload and removes its parts.", answer: uploadAnswer },
};

export function addUploadRoutes(app: Hono<AppEnv>, { corpus: { uploads: service }, uploads }: UploadRouteDeps): void {
  const uploadBody = (row: UploadRow): z.infer<typeof uploadAnswer> => {
    const { id, byteCount: bytes, createdAt, expiresAt, filename, purpose, status } = row;
    const file = service.fileOf(row);
    const times = { created_at: seconds(createdAt), expires_at: seconds(expiresAt) };
    const fields = { id, object: "upload" as const, bytes, ...times, filename, purpose, status };
    return { ...fields, file: file === undefined ? null : fileBody(file) };
  };

  declare(app, "POST /v1/uploads", about.create, async (c) => {
    const tenantId = tenantIdOf(c);
    const { bytes, mime_type: mediaType, expires_after: expiry, ...rest } = await readJson(c, createSchema);
    return c.json(
      uploadBody(
        service.create(tenantId, { ...rest, mediaType, byteCount: bytes, fileSeconds: expiry?.seconds ?? null }),
      ),
    );
  });

  declare(app, "POST /v1/uploads/:upload_id/parts", about.addPart, async (c) => {
    const tenantId = tenantIdOf(c);
    const id = c.req.param("upload_id");
    const upload = service.pending(tenantId, id);
    using _hold = uploads.enter(tenantId);
    const maxBytes = upload.byteCount;
    const form = { maxBytes, fileField: "data", stage: () => service.stagePart(maxBytes) };
    const { data } = await readForm(c, partFields, form);
    return c.json(partBody(upload, await service.addPart(tenantId, id, data.content)));
  });

  declare(app, "POST /v1/uploads/:upload_id/complete", about.complete, async (c) => {
    const tenantId = tenantIdOf(c);
    const id = c.req.param("upload_id");
    const { part_ids: partIds, md5 } = await readJson(c, completeSchema);
    using _hold = uploads.enter(tenantId);
    return c.json(uploadBody(await service.complete(tenantId, id, { partIds, md5 })));
  });

  declare(app, "POST /v1/uploads/:upload_id/cancel", about.cancel, async (c) => {
    await readNoFields(c);
    return c.json(uploadBody(service.cancel(tenantIdOf(c), c.req.param("upload_id"))));
  });
}

function partBody(upload: UploadRow, part: UploadPartRow): z.infer<typeof partAnswer> {
  return { id: part.id, object: "upload.part", created_at: seconds(part.createdAt), upload_id: upload.id };
}
