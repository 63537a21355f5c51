/** /v1/vector_stores: a vector store is a corpus. */
import type { Hono } from "hono";
import { z } from "zod";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import { attributeFilterSchema } from "../../corpus/search/filters.ts";
import type { RetrievedFragment } from "../../corpus/search/retrieve.ts";
import { rankingOptions, ranksAgain } from "../generation/ranking.ts";
import { changed } from "../middleware/audit.ts";
import { deletedAnswer, listOf, saltAnswer, searchAnswer, vectorStoreAnswer } from "../transport/answer-schemas.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, principalOf, tenantIdOf } from "../transport/context.ts";
import { listBody, pageQuery, rangeOf, readNoFields, readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { chunkingOf, chunkingSchema, fileIdsSchema, metadataSchema, vectorStoreBody } from "./vector-store-schemas.ts";

const expiresAfter = z.strictObject({
  anchor: z.literal("last_active_at"),
  days: z.int().min(1).max(corpusLimits.maxStoreDays),
});

const createSchema = z.strictObject({
  name: z.string().max(corpusLimits.maxNameChars).default(""),
  description: z.string().max(corpusLimits.maxDescriptionChars).optional(),
  file_ids: fileIdsSchema.default([]),
  chunking_strategy: chunkingSchema.optional(),
  metadata: metadataSchema.nullish(),
  expires_after: expiresAfter.nullish(),
});

const updateSchema = z.strictObject({
  name: z.string().max(corpusLimits.maxNameChars).nullish(),
  metadata: metadataSchema.nullish(),
  expires_after: expiresAfter.nullish(),
});

const queryText = z.string().min(1).max(corpusLimits.maxQueryChars);
export const searchSchema = z.strictObject({
  query: z.union([queryText, z.array(queryText).min(1).max(corpusLimits.maxQueriesPerSearch)]),
  filters: attributeFilterSchema.optional(),
  max_num_results: z.int().min(1).max(corpusLimits.maxSearchResults).default(corpusLimits.defaultSearchResults),
  ranking_options: rankingOptions.optional(),
  rewrite_query: z.literal(false, { error: "query rewriting is not supported" }).optional(),
});

/** What the routes do, for /openapi.json. */
const about = {
  create: { summary: "Makes a vector store, which is a corpus.", body: createSchema, answer: vectorStoreAnswer },
  list: { summary: "Lists vector stores.", query: pageQuery, answer: listOf(vectorStoreAnswer) },
  get: { summary: "Describes a vector store.", answer: vectorStoreAnswer },
  update: { summary: "Changes a vector store's name and metadata.", body: updateSchema, answer: vectorStoreAnswer },
  delete: { summary: "Deletes a vector store; its files stay.", answer: deletedAnswer },
  search: { summary: "Searches a vector store.", body: searchSchema, answer: searchAnswer },
  rotate: { summary: "Makes the KV of a vector store's fragments unreachable.", answer: saltAnswer },
};

export function addVectorStoreRoutes(app: Hono<AppEnv>, { corpus }: { readonly corpus: Corpus }): void {
  declare(app, "POST /v1/vector_stores", about.create, async (c) => {
    const tenantId = tenantIdOf(c);
    const fields = await readJson(c, createSchema);
    const chunking = chunkingOf(fields.chunking_strategy);
    const requests = fields.file_ids.map((fileId) => ({ fileId, attributes: {}, chunking }));
    corpus.corpusFiles.requireFiles(tenantId, requests, "file_ids");
    const { name, description, metadata } = fields;
    const expiresAfterDays = fields.expires_after?.days;
    const row = corpus.corpora.create(tenantId, { name, description, metadata: metadata ?? {}, expiresAfterDays });
    try {
      if (requests.length > 0) await corpus.corpusFiles.attach(row, requests, "file_ids");
    } catch (error) {
      // The caller gets no id of this store, so it must not stay.
      corpus.corpora.delete(tenantId, row.id);
      throw error;
    }
    return c.json(vectorStoreBody(corpus.corpora.withUsage(row)));
  });

  declare(app, "GET /v1/vector_stores", about.list, (c) => {
    const tenantId = tenantIdOf(c);
    const range = rangeOf(readQuery(c, pageQuery), (id) => corpus.corpora.requireShown(tenantId, id, "own"));
    return c.json(listBody(corpus.corpora.list(tenantId, range), vectorStoreBody));
  });

  declare(app, "GET /v1/vector_stores/:vector_store_id", about.get, (c) => {
    const row = corpus.corpora.requireShown(tenantIdOf(c), c.req.param("vector_store_id"), "read");
    return c.json(vectorStoreBody(corpus.corpora.withUsage(row)));
  });

  declare(app, "POST /v1/vector_stores/:vector_store_id", about.update, async (c) => {
    const tenantId = tenantIdOf(c);
    const { name, metadata, expires_after: expiry } = await readJson(c, updateSchema);
    // null empties a field, absence leaves it.
    const fields = { name: name === null ? "" : name, metadata: metadata === null ? {} : metadata };
    const change = { ...fields, expiresAfterDays: expiry === null ? null : expiry?.days };
    const row = corpus.corpora.update(tenantId, c.req.param("vector_store_id"), change);
    return c.json(vectorStoreBody(corpus.corpora.withUsage(row)));
  });

  declare(app, "DELETE /v1/vector_stores/:vector_store_id", about.delete, (c) => {
    const id = changed(c, () => corpus.corpora.delete(tenantIdOf(c), c.req.param("vector_store_id")));
    return c.json({ id, object: "vector_store.deleted", deleted: true });
  });

  declare(app, "POST /v1/vector_stores/:vector_store_id/search", about.search, async (c) => {
    const tenantId = tenantIdOf(c);
    const fields = await readJson(c, searchSchema);
    const row = corpus.corpora.require(tenantId, c.req.param("vector_store_id"), "read");
    const queries = typeof fields.query === "string" ? [fields.query] : fields.query;
    const { signal } = c.req.raw;
    const search = {
      ...{ tenantId, signal, isAhead: true },
      vectorStoreIds: [row.id],
      query: queries.join("\n"),
      maxResults: fields.max_num_results,
      filters: fields.filters,
      scoreThreshold: fields.ranking_options?.score_threshold,
      weights: fields.ranking_options?.hybrid_search,
      rerank: ranksAgain(fields.ranking_options),
    };
    const found = await corpus.retrieve(search).catch((error: unknown) => {
      // The caller has gone, and the search was given up: nobody is left to tell.
      if (!signal.aborted) throw error;
    });
    if (found === undefined) return c.body(null);
    const page = { object: "vector_store.search_results.page", search_query: queries };
    return c.json({ ...page, data: found.map(searchResultBody), has_more: false, next_page: null });
  });

  declare(app, "POST /admin/v1/vector_stores/:vector_store_id/salt/rotate", about.rotate, async (c) => {
    await readNoFields(c);
    const id = c.req.param("vector_store_id");
    // The platform's operators may rotate the salt of any corpus.
    const isPlatform = principalOf(c).scopes.has("platform:admin");
    const owner = isPlatform ? corpus.corpora.ownerOf(id) : tenantIdOf(c);
    const rotate = () => corpus.corpora.rotateSalt(owner, id);
    const epoch = changed(c, rotate, () => ({ tenant_id: owner }));
    return c.json({ id, object: "vector_store.salt", epoch });
  });
}

function searchResultBody(fragment: RetrievedFragment) {
  return {
    file_id: fragment.fileId,
    filename: fragment.filename,
    score: fragment.score,
    attributes: fragment.attributes,
    content: [{ type: "text", text: fragment.text }],
  };
}
