/** /admin/v1: preparing a corpus, its jobs, and what is known of its fragments. */
import type { Hono } from "hono";
import { z } from "zod";
import type { TenantId } from "../../../db/ids.ts";
import type { JobRow } from "../../../db/jobs.ts";
import { kvTiers } from "../../../worker/contract/tiers.ts";
import type { Corpus } from "../../corpus/corpus.ts";
import type { FragmentFacts } from "../../corpus/prepare/fragments.ts";
import { changed } from "../middleware/audit.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { jobAnswer } from "../transport/answer-schemas.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { listBody, pageQuery, readFields, readNoFields, readQuery, seconds } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import { sseResponse } from "../transport/sse.ts";

const fragmentsQuery = pageQuery
  .omit({ before: true })
  .extend({ order: z.enum(["asc", "desc"]).default("asc"), file_id: z.string().max(64).optional() });

export interface PrepareRouteDeps {
  readonly corpus: Corpus;
  /** Limits how many streams of job events a tenant has open at the same time. */
  readonly jobStreams: ConcurrencyLimiter;
}

const prepareBody = z.strictObject({
  target: z
    .enum(kvTiers)
    .optional()
    .describe(
      "Where the KV has to be: on a worker's device, in the host's memory beside it, in files, in the bucket; left out: on a worker, and in files if possible.",
    ),
});
const pinBody = z.strictObject({
  tier: z
    .enum(kvTiers)
    .default("device")
    .describe("Where the KV stays; device: on a worker, and in files if possible; host: in memory beside the device."),
});

/** What the routes do, for /openapi.json. */
const about = {
  prepare: {
    summary: "Starts a job that computes the KV of every fragment ahead of questions.",
    body: prepareBody,
    answer: jobAnswer,
    status: 202,
  },
  get: { summary: "Describes a job.", answer: jobAnswer },
  events: {
    summary: "Progress of a job; each event is the whole job.",
    events: { job: { data: jobAnswer, id: "The job and how far it is." } },
  },
  cancel: { summary: "Cancels a job.", answer: jobAnswer },
  list: {
    summary: "Facts of a vector store's fragments: tokens, blocks, span key, where they are resident.",
    query: fragmentsQuery,
  },
};

export function addPrepareRoutes(app: Hono<AppEnv>, { corpus, jobStreams }: PrepareRouteDeps): void {
  declare(app, "POST /admin/v1/vector_stores/:vector_store_id/prepare", about.prepare, async (c) => {
    const { target } = await readFields(c, prepareBody);
    const owner = tenantIdOf(c);
    const job = changed(c, () => corpus.prepare.create(owner, c.req.param("vector_store_id"), target));
    return c.json(jobBody(job), 202);
  });

  declare(app, "GET /admin/v1/jobs/:job_id", about.get, (c) =>
    c.json(jobBody(corpus.prepare.get(tenantIdOf(c), c.req.param("job_id")))),
  );

  // Every event is the whole job, so a client that comes back (Last-Event-ID) is served by the present state.
  declare(app, "GET /admin/v1/jobs/:job_id/events", about.events, (c) => {
    const job = corpus.prepare.get(tenantIdOf(c), c.req.param("job_id"));
    const hold = jobStreams.enter(job.tenantId);
    return sseResponse(c, async (stream) => {
      using _hold = hold;
      for await (const state of corpus.prepare.watchers.follow(job, stream.signal)) {
        const { id, status, done } = state;
        await stream.event({ event: "job", id: `${id}/${status}/${done}`, data: JSON.stringify(jobBody(state)) });
      }
    });
  });

  declare(app, "POST /admin/v1/jobs/:job_id/cancel", about.cancel, async (c) => {
    await readNoFields(c);
    const owner = tenantIdOf(c);
    return c.json(jobBody(changed(c, () => corpus.prepare.cancel(owner, c.req.param("job_id")))));
  });

  const { pins } = corpus;
  declare(
    app,
    "POST /admin/v1/fragments/:fragment_id/pin",
    { summary: pinSummary, body: pinBody, answer: fragmentAnswer },
    async (c) => {
      const { tier } = await readFields(c, pinBody);
      const owner = tenantIdOf(c);
      return c.json(fragmentBody(changed(c, () => pins.pin(owner, c.req.param("fragment_id"), tier))));
    },
  );
  addFragmentAction(app, "unpin", (tenantId, id) => pins.unpin(tenantId, id));
  addFragmentAction(app, "evict", (tenantId, id) => pins.evict(tenantId, id));

  declare(app, "GET /admin/v1/vector_stores/:vector_store_id/fragments", about.list, async (c) => {
    const { file_id: fileId, limit, order, after } = readQuery(c, fragmentsQuery);
    const range = { limit, order, after, fileId };
    const page = await corpus.fragments.list(tenantIdOf(c), c.req.param("vector_store_id"), range);
    return c.json(listBody(page, fragmentBody));
  });
}

const pinSummary =
  "Brings the fragment's KV to a tier if it is not there, and evicts it last; stays over restarts, within the tenant's quota.";
const fragmentActions = {
  unpin: "Lets the fragment's KV be evicted as any other.",
  evict: "All workers forget the fragment's KV and what was computed from it; a pin ends.",
} as const;

function addFragmentAction(
  app: Hono<AppEnv>,
  action: keyof typeof fragmentActions,
  run: (tenantId: TenantId, fragmentId: string) => FragmentFacts,
): void {
  declare(
    app,
    `POST /admin/v1/fragments/:fragment_id/${action}`,
    { summary: fragmentActions[action], answer: fragmentAnswer },
    async (c) => {
      await readNoFields(c);
      const tenantId = tenantIdOf(c);
      return c.json(fragmentBody(changed(c, () => run(tenantId, c.req.param("fragment_id")))));
    },
  );
}

function jobBody(job: JobRow) {
  return {
    id: job.id,
    object: "prepare_job",
    vector_store_id: job.corpusId,
    status: job.status,
    target: job.target,
    done: job.done,
    total: job.total,
    error: job.errorCode === null ? null : { code: job.errorCode, message: job.errorMessage },
    created_at: seconds(job.createdAt),
    finished_at: job.finishedAt === null ? null : seconds(job.finishedAt),
  };
}

const fragmentAnswer = z.strictObject({
  id: z.string(),
  object: z.literal("fragment"),
  file_id: z.string(),
  filename: z.string(),
  index: z.int(),
  first_char: z.int(),
  end_char: z.int(),
  text_tokens: z.int(),
  span_tokens: z.int().nullable(),
  blocks: z.int().nullable(),
  span_key: z.string().nullable(),
  prepared: z.strictObject({ worker: z.int().nullable(), at: z.int() }).nullable(),
  pinned: z.boolean(),
  pinned_tier: z.enum(kvTiers).nullable(),
  resident: z.array(
    z.strictObject({
      worker: z.int().nullable().describe("null: a tier that all workers share."),
      tier: z.enum(kvTiers),
    }),
  ),
});

function fragmentBody({ row, span }: FragmentFacts): z.infer<typeof fragmentAnswer> {
  // Facts that a job noted under another salt or model do not describe the span as it is now.
  const current = span !== undefined && row.preparedSpanKey === span.spanKey;
  return {
    id: row.id,
    object: "fragment",
    file_id: row.fileId,
    filename: row.filename,
    index: row.ordinal,
    first_char: row.firstChar,
    end_char: row.endChar,
    text_tokens: row.tokenCount,
    span_tokens: span?.tokenCount ?? null,
    blocks: span?.blockCount ?? null,
    span_key: span?.spanKey ?? null,
    prepared: current && row.preparedAt !== null ? { worker: row.preparedWorker, at: seconds(row.preparedAt) } : null,
    pinned: row.pinnedTier !== null,
    pinned_tier: row.pinnedTier,
    resident: [
      ...(span?.residentWorkers ?? []).map((worker) => ({ worker, tier: "device" as const })),
      ...(span?.hostWorkers ?? []).map((worker) => ({ worker, tier: "host" as const })),
      ...(span?.tiers ?? []).map((tier) => ({ worker: null, tier })),
    ],
  };
}
