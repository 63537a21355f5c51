/** /v1/vector_stores/{id}/files: files attached to a corpus. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { CorpusAccess, CorpusRow } from "../../../db/corpora.ts";
import type { CorpusFileRow } from "../../../db/corpus-files.ts";
import type { Page } from "../../../db/page.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import { changed } from "../middleware/audit.ts";
import { deletedAnswer, fileContentAnswer, listOf, vectorStoreFileAnswer } from "../transport/answer-schemas.ts";
import { readJson, yieldIfLong } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { listBody, pageQuery, rangeOf, readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { attachRequestOf, attachSchema, attributesSchema, corpusFileBody } from "./vector-store-schemas.ts";

export const corpusFilesQuery = pageQuery.extend({
  filter: z.enum(["in_progress", "completed", "failed", "cancelled"]).optional(),
});

const detachQuery = z.strictObject({
  delete_file: z
    .enum(["never", "unused"])
    .default("never")
    .describe('"unused": also deletes the uploaded file, unless another vector store has it.'),
});
const updateSchema = z.strictObject({ attributes: attributesSchema.nullable() });
const filesPath = "/v1/vector_stores/:vector_store_id/files";
const filePath = "/v1/vector_stores/:vector_store_id/files/:file_id";

/** What the routes do, for /openapi.json. */
const about = {
  create: { summary: "Attaches a file, to be ingested.", body: attachSchema, answer: vectorStoreFileAnswer },
  list: { summary: "Lists a vector store's files.", query: corpusFilesQuery, answer: listOf(vectorStoreFileAnswer) },
  get: {
    summary: "Describes an attached file; last_error says why one could not be read.",
    answer: vectorStoreFileAnswer,
  },
  update: { summary: "Replaces an attached file's attributes.", body: updateSchema, answer: vectorStoreFileAnswer },
  delete: { summary: "Takes a file out of a vector store.", query: detachQuery, answer: deletedAnswer },
  content: { summary: "An attached file's text, fragment by fragment.", answer: fileContentAnswer },
};

/** OpenAI's clients wait so long between two looks at a file that is being ingested; 5 s unless told. */
export const askAgainSoon = (c: Context<AppEnv>): void => c.header("openai-poll-after-ms", "100");

/** A page of attached files, each with what was uploaded. */
export function corpusFilesBody(corpus: Corpus, page: Page<CorpusFileRow>) {
  const uploads = corpus.corpusFiles.uploadsOf(page.rows);
  return listBody(page, (row) => corpusFileBody(row, uploads.get(row.fileId)));
}

export function addVectorStoreFileRoutes(app: Hono<AppEnv>, { corpus }: { readonly corpus: Corpus }): void {
  const storeOf = (c: Context<AppEnv>, id: string, access: CorpusAccess): CorpusRow =>
    corpus.corpora.require(tenantIdOf(c), id, access);
  const bodyOf = (row: CorpusFileRow) => corpusFileBody(row, corpus.corpusFiles.uploadsOf([row]).get(row.fileId));

  declare(app, `POST ${filesPath}`, about.create, async (c) => {
    const request = attachRequestOf(await readJson(c, attachSchema));
    const store = storeOf(c, c.req.param("vector_store_id"), "own");
    await corpus.corpusFiles.attach(store, [request], "file_id");
    return c.json(bodyOf(corpus.corpusFiles.get(store, request.fileId)));
  });

  declare(app, `GET ${filesPath}`, about.list, (c) => {
    const query = readQuery(c, corpusFilesQuery);
    const store = storeOf(c, c.req.param("vector_store_id"), "read");
    const range = rangeOf(query, (id) => corpus.corpusFiles.get(store, id));
    return c.json(corpusFilesBody(corpus, corpus.corpusFiles.list(store, { ...range, status: query.filter })));
  });

  declare(app, `GET ${filePath}`, about.get, (c) => {
    const store = storeOf(c, c.req.param("vector_store_id"), "read");
    const body = bodyOf(corpus.corpusFiles.get(store, c.req.param("file_id")));
    if (body.status === "in_progress") askAgainSoon(c);
    return c.json(body);
  });

  declare(app, `POST ${filePath}`, about.update, async (c) => {
    const { attributes } = await readJson(c, updateSchema);
    const store = storeOf(c, c.req.param("vector_store_id"), "own");
    const row = corpus.corpusFiles.updateAttributes(store, c.req.param("file_id"), attributes ?? {});
    return c.json(bodyOf(row));
  });

  declare(app, `DELETE ${filePath}`, about.delete, (c) => {
    const { delete_file: which } = readQuery(c, detachQuery);
    const store = storeOf(c, c.req.param("vector_store_id"), "own");
    const detach = () => corpus.corpusFiles.detach(store, c.req.param("file_id"), { deleteUnused: which === "unused" });
    const id = changed(c, detach);
    return c.json({ id, object: "vector_store.file.deleted", deleted: true });
  });

  declare(app, `GET ${filePath}/content`, about.content, async (c) => {
    const store = storeOf(c, c.req.param("vector_store_id"), "read");
    const texts = corpus.corpusFiles.texts(store, c.req.param("file_id"));
    await yieldIfLong(texts.reduce((sum, text) => sum + text.length, 0));
    const data = texts.map((text) => ({ type: "text", text }));
    return c.json({ object: "vector_store.file_content.page", data, has_more: false, next_page: null });
  });
}
