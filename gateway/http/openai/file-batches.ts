/** /v1/vector_stores/{id}/file_batches: many files attached in one call. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { CorpusAccess, CorpusRow, FileCounts } from "../../../db/corpora.ts";
import type { FileBatchRow } from "../../../db/corpus-files.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import { fileBatchAnswer, listOf, vectorStoreFileAnswer } from "../transport/answer-schemas.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { rangeOf, readNoFields, readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { askAgainSoon, corpusFilesBody, corpusFilesQuery } from "./vector-store-files.ts";
import {
  attachRequestOf,
  attachSchema,
  attributesSchema,
  batchStatus,
  chunkingSchema,
  fileIdsSchema,
} from "./vector-store-schemas.ts";

const distinctFiles = z
  .array(attachSchema)
  .min(1)
  .max(corpusLimits.maxFilesPerBatch)
  .refine((files) => new Set(files.map((file) => file.file_id)).size === files.length, {
    message: "must not name a file twice",
  });

const createSchema = z.union([
  z.strictObject({
    file_ids: fileIdsSchema.min(1),
    attributes: attributesSchema.nullish(),
    chunking_strategy: chunkingSchema.optional(),
  }),
  // Attributes and chunking of their own, file by file.
  z.strictObject({ files: distinctFiles }),
]);

const batchesPath = "/v1/vector_stores/:vector_store_id/file_batches";
const batchPath = "/v1/vector_stores/:vector_store_id/file_batches/:batch_id";

/** What the routes do, for /openapi.json. */
const about = {
  create: { summary: "Attaches many files in one call.", body: createSchema, answer: fileBatchAnswer },
  get: { summary: "Describes a batch.", answer: fileBatchAnswer },
  cancel: { summary: "Cancels what of a batch is still to be ingested.", answer: fileBatchAnswer },
  list: { summary: "Lists a batch's files.", query: corpusFilesQuery, answer: listOf(vectorStoreFileAnswer) },
};

export function addFileBatchRoutes(app: Hono<AppEnv>, { corpus }: { readonly corpus: Corpus }): void {
  const storeOf = (c: Context<AppEnv>, id: string, access: CorpusAccess): CorpusRow =>
    corpus.corpora.require(tenantIdOf(c), id, access);

  declare(app, `POST ${batchesPath}`, about.create, async (c) => {
    const fields = await readJson(c, createSchema);
    const store = storeOf(c, c.req.param("vector_store_id"), "own");
    const named =
      "files" in fields
        ? fields.files
        : fields.file_ids.map((file_id) => ({ ...fields, file_ids: undefined, file_id }));
    const param = "files" in fields ? "files" : "file_ids";
    const row = await corpus.corpusFiles.createBatch(store, named.map(attachRequestOf), param);
    return c.json(batchBody(corpus.corpusFiles.getBatch(store, row.id)));
  });

  declare(app, `GET ${batchPath}`, about.get, (c) => {
    const store = storeOf(c, c.req.param("vector_store_id"), "read");
    const body = batchBody(corpus.corpusFiles.getBatch(store, c.req.param("batch_id")));
    if (body.status === "in_progress") askAgainSoon(c);
    return c.json(body);
  });

  declare(app, `POST ${batchPath}/cancel`, about.cancel, async (c) => {
    await readNoFields(c);
    const store = storeOf(c, c.req.param("vector_store_id"), "own");
    return c.json(batchBody(corpus.corpusFiles.cancelBatch(store, c.req.param("batch_id"))));
  });

  declare(app, `GET ${batchPath}/files`, about.list, (c) => {
    const query = readQuery(c, corpusFilesQuery);
    const store = storeOf(c, c.req.param("vector_store_id"), "read");
    const { row } = corpus.corpusFiles.getBatch(store, c.req.param("batch_id"));
    const range = rangeOf(query, (id) => corpus.corpusFiles.get(store, id));
    const page = corpus.corpusFiles.list(store, { ...range, status: query.filter, batchId: row.id });
    return c.json(corpusFilesBody(corpus, page));
  });
}

function batchBody({ row, counts }: { readonly row: FileBatchRow; readonly counts: FileCounts }) {
  return {
    id: row.id,
    object: "vector_store.files_batch",
    created_at: seconds(row.createdAt),
    vector_store_id: row.corpusId,
    status: batchStatus(counts),
    file_counts: counts,
  };
}
