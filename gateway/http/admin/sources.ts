/** /admin/v1: web sites and buckets that the server reads into vector stores. */
import type { Hono } from "hono";
import { z } from "zod";
import type { SourceRow } from "../../../db/sources.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import { changed } from "../middleware/audit.ts";
import { deletedAnswer, listOf, sourceAnswer } from "../transport/answer-schemas.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { listBody, pageQuery, rangeOf, readNoFields, readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";

const { minSourceMinutes, maxSourceMinutes, maxSourceUrlChars, maxSourceFiles, maxSourceDepth } = corpusLimits;
const { defaultSourcePages, defaultSourceDepth } = corpusLimits;
const credential = z
  .string()
  .max(256)
  .regex(/^[\x21-\x7e]+$/, "must be printable ASCII without spaces");

const createSchema = z.strictObject({
  url: z
    .string()
    .max(maxSourceUrlChars)
    .describe("A web site's address, or s3://bucket/prefix; a sitemap ends with .xml or .xml.gz."),
  name: z
    .string()
    .max(512)
    .regex(/^\P{Cc}+$/u, "must have characters, and no control characters")
    .optional()
    .describe("The attribute synced_from of its files; else made of the URL. A vector store has one source of a name."),
  interval_minutes: z
    .int()
    .min(minSourceMinutes)
    .max(maxSourceMinutes)
    .nullish()
    .describe("Minutes from the end of a run to the next; null: it runs once now, and then when it is asked to."),
  max_pages: z.int().min(1).max(maxSourceFiles).default(defaultSourcePages).describe("Of a web site; sitemaps count."),
  max_depth: z.int().min(0).max(maxSourceDepth).default(defaultSourceDepth).describe("Links from the first page on."),
  s3: z
    .strictObject({
      endpoint: z
        .url({ protocol: /^https?$/ })
        .max(maxSourceUrlChars)
        .optional()
        .describe("Of a server other than Amazon's."),
      region: z
        .string()
        .regex(/^[a-z0-9-]{1,64}$/, "must be a region's name")
        .optional(),
      access_key_id: credential,
      secret_access_key: credential.describe("Kept sealed, and never given back."),
    })
    .optional(),
});

/** What the routes do, for /openapi.json. */
const about = {
  create: {
    summary: "Adds a web site or an S3 bucket that the server reads into the vector store, and reads it.",
    body: createSchema,
    answer: sourceAnswer,
    status: 201,
  },
  list: { summary: "Lists a vector store's sources.", query: pageQuery, answer: listOf(sourceAnswer) },
  get: { summary: "Describes a source; last_run says how reading it went.", answer: sourceAnswer },
  run: { summary: "Has a source read as soon as it is its turn.", answer: sourceAnswer, status: 202 },
  delete: {
    summary: "Forgets a source, and ends its run. Its files stay in the vector store.",
    answer: deletedAnswer,
  },
};

const path = "/admin/v1/vector_stores/:vector_store_id/sources";

export function addSourceRoutes(app: Hono<AppEnv>, { corpus }: { readonly corpus: Corpus }): void {
  const { sources } = corpus;
  const bodyOf = (row: SourceRow) => sourceBody(row, sources.statusOf(row));

  declare(app, `POST ${path}`, about.create, async (c) => {
    const { url, name: label, interval_minutes, max_pages, max_depth, s3 } = await readJson(c, createSchema);
    const access = s3 && { endpoint: s3.endpoint, region: s3.region, accessKeyId: s3.access_key_id };
    const options = { maxPages: max_pages, maxDepth: max_depth, s3: access };
    const source = { url, label, options, secretAccessKey: s3?.secret_access_key };
    const intervalMinutes = interval_minutes ?? null;
    const owner = tenantIdOf(c);
    const create = () => sources.create(owner, c.req.param("vector_store_id"), { ...source, intervalMinutes });
    return c.json(bodyOf(changed(c, create, ({ id }) => ({ source_id: id }))), 201);
  });

  declare(app, `GET ${path}`, about.list, (c) => {
    const query = readQuery(c, pageQuery);
    const range = rangeOf(query, (id) => sources.get(tenantIdOf(c), id));
    return c.json(listBody(sources.list(tenantIdOf(c), c.req.param("vector_store_id"), range), bodyOf));
  });

  declare(app, "GET /admin/v1/sources/:source_id", about.get, (c) =>
    c.json(bodyOf(sources.get(tenantIdOf(c), c.req.param("source_id")))),
  );

  declare(app, "POST /admin/v1/sources/:source_id/run", about.run, async (c) => {
    await readNoFields(c);
    const owner = tenantIdOf(c);
    return c.json(bodyOf(changed(c, () => sources.run(owner, c.req.param("source_id")))), 202);
  });

  declare(app, "DELETE /admin/v1/sources/:source_id", about.delete, (c) => {
    const id = changed(c, () => sources.remove(tenantIdOf(c), c.req.param("source_id")));
    return c.json({ id, object: "vector_store.source.deleted", deleted: true });
  });
}

function sourceBody(row: SourceRow, status: z.infer<typeof sourceAnswer>["status"]): z.infer<typeof sourceAnswer> {
  const { options, nextRunAt, lastRun } = row;
  const { s3 } = options;
  return {
    ...{ id: row.id, object: "vector_store.source", vector_store_id: row.corpusId },
    ...{ url: row.url, name: row.label, interval_minutes: row.intervalMinutes },
    ...{ max_pages: options.maxPages, max_depth: options.maxDepth },
    s3: s3 ? { endpoint: s3.endpoint ?? null, region: s3.region ?? null, access_key_id: s3.accessKeyId } : null,
    status,
    next_run_at: nextRunAt === null ? null : seconds(nextRunAt),
    last_run: lastRun && runBody(lastRun),
    created_at: seconds(row.createdAt),
  };
}

function runBody({ startedAt, endedAt, isWhole, failures, ...counts }: NonNullable<SourceRow["lastRun"]>) {
  return {
    failures: [...failures],
    started_at: seconds(startedAt),
    ended_at: seconds(endedAt),
    is_whole: isWhole,
    ...counts,
  };
}
