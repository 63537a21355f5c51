/** Span queries: POST /v1/query/execute, /v1/query/prepare, /v1/query/explain */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { TenantId } from "../../../db/ids.ts";
import { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { limits } from "../../config.ts";
import type { BulkRunner } from "../../execute/bulk/bulk.ts";
import type { QueryJob, QueryService } from "../../execute/query-service.ts";
import { countPrepared } from "../../generate/usage-counters.ts";
import { QueryError } from "../../query/errors.ts";
import type { Query } from "../../query/ir.ts";
import { readQueryText } from "../../query/json-text.ts";
import { parseQuery } from "../../query/parse.ts";
import type { Metrics } from "../../telemetry/metrics.ts";
import { collect, emptyChoices } from "../generation/choice.ts";
import { choiceCitations } from "../generation/citations.ts";
import { answerStreamed, answerWhole } from "../generation/completion.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { logFailure } from "../middleware/every-request.ts";
import { useText, yieldIfLong } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { readQuery } from "../transport/paging.ts";
import { declare } from "../transport/route.ts";
import {
  answerKindOf,
  countTree,
  explanationBody,
  headOf,
  preparedBody,
  queryAnswer,
  queryChunks,
  queryFacts,
} from "./answer.ts";

export interface QueryRouteDeps {
  readonly queries: QueryService;
  readonly limiter: ConcurrencyLimiter;
  readonly metrics: Metrics;
  readonly nowMs: () => number;
  readonly log: Log;
  /** How long a stream's status waits for the first event. */
  readonly firstEventMs?: number;
}

const flag = z
  .enum(["true", "false"])
  .transform((value) => value === "true")
  .optional();
const executeParams = z.strictObject({ stream: flag, reuse: flag, prompt_cache_diagnostics: flag });
const noParams = z.strictObject({});

/** Media types of a query and the format of each. A Map, since an object would also have the names of its prototype. */
const formats: ReadonlyMap<string, "json" | "yaml"> = new Map([
  ["application/json", "json"],
  ["text/plain", "json"],
  ["application/yaml", "yaml"],
  ["application/x-yaml", "yaml"],
  ["text/yaml", "yaml"],
]);

const queryBodyTypes = [...formats.keys()];

/** What the routes do, for /openapi.json. */
const about = {
  execute: {
    summary: "Runs a span query.",
    query: executeParams,
    bodyTypes: queryBodyTypes,
    answerTypes: ["application/json", "text/event-stream"],
  },
  prepare: { summary: "Computes a query's spans, generates nothing.", bodyTypes: queryBodyTypes },
  explain: { summary: "A query before and after each rule, and its plan; runs nothing.", bodyTypes: queryBodyTypes },
};

export function addQueryRoutes(app: Hono<AppEnv>, deps: QueryRouteDeps): void {
  declare(app, "POST /v1/query/execute", about.execute, async (context) => {
    const { stream = false, reuse = true, prompt_cache_diagnostics: diagnose } = readQuery(context, executeParams);
    const query = await readQueryBody(context);
    return await limited(context, deps, (leave) => execute(context, deps, { query, stream, reuse, diagnose, leave }));
  });

  // It computes what an execution would and answers with no text, so callers that may run queries or prepare corpora may call it.
  declare(app, "POST /v1/query/prepare", about.prepare, async (context) => {
    readQuery(context, noParams);
    const query = await readQueryBody(context);
    return await limited(context, deps, async (leave) => {
      const prepared = await deps.queries.prepare(jobOf(context, query, context.req.raw.signal));
      leave();
      for (const report of prepared.reports) countPrepared(deps.metrics, tenantIdOf(context), report);
      return context.json(preparedBody(context.get("requestId"), prepared));
    });
  });

  declare(app, "POST /v1/query/explain", about.explain, async (context) => {
    readQuery(context, noParams);
    const query = await readQueryBody(context);
    return await limited(context, deps, async (leave) => {
      const explanation = await deps.queries.explain(jobOf(context, query, context.req.raw.signal));
      leave();
      return context.json(explanationBody(explanation));
    });
  });
}

/** @param work calls `leave` when the request has ended, unless it throws */
async function limited(
  context: Context<AppEnv>,
  { limiter }: QueryRouteDeps,
  work: (leave: () => void) => Promise<Response>,
): Promise<Response> {
  const leave = limiter.enter(tenantIdOf(context));
  try {
    return await work(leave);
  } catch (error) {
    leave();
    // The caller has gone, and everything was aborted: nobody is left to tell.
    if (context.req.raw.signal.aborted) return context.body(null);
    throw error;
  }
}

function jobOf(context: Context<AppEnv>, query: Query, signal: AbortSignal): QueryJob {
  const requestId = context.get("requestId");
  return { requestId, tenantId: tenantIdOf(context), query, reuse: true, restartable: true, signal };
}

interface ExecuteOptions extends Pick<QueryJob, "query" | "reuse" | "diagnose"> {
  readonly stream: boolean;
  readonly leave: () => void;
}

async function execute(
  context: Context<AppEnv>,
  deps: QueryRouteDeps,
  { query, reuse, diagnose, stream, leave }: ExecuteOptions,
): Promise<Response> {
  const requestId = context.get("requestId");
  const client = new AbortController();
  const signal = AbortSignal.any([context.req.raw.signal, client.signal]);
  const run = deps.queries.execute({ ...jobOf(context, query, signal), reuse, diagnose, restartable: !stream });
  const kind = answerKindOf(query);
  const head = headOf(kind, requestId, run.model, deps.nowMs());
  const choices = emptyChoices(run.choiceCount);
  const onEnd = (): void => {
    leave();
    countTree(deps.metrics, tenantIdOf(context), run.report);
  };
  const completion = { events: run.events, choices, client, onEnd };
  const citations = async () => choiceCitations(await run.sources(), choices, { isBatchLine: false });
  if (!stream) {
    return await answerWhole(context, completion, async () =>
      queryAnswer(kind, head, requestId, run.report, choices, await citations()),
    );
  }
  const shape = queryChunks(kind, head, async () => queryFacts(requestId, run.report, await citations()));
  const onError = (error: ApiError): void => logFailure(deps.log, error, requestId);
  return await answerStreamed(context, completion, shape, { onError, firstEventMs: deps.firstEventMs });
}

/** Runs queries to their whole answers for bulk requests, whose queries are no HTTP requests of their own. */
export function queryRunner({ queries, metrics, nowMs }: QueryRouteDeps, tenantId: TenantId): BulkRunner {
  const jobOf = (query: Query, requestId: string, signal: AbortSignal) => {
    return { requestId, tenantId, query, reuse: true, restartable: true, signal };
  };
  return {
    fragments: (query, signal) => queries.uses(jobOf(query, "planned", signal)),
    run: async (query, requestId, signal) => {
      const run = queries.execute(jobOf(query, requestId, signal));
      const choices = emptyChoices(run.choiceCount);
      try {
        for await (const [index, event] of run.events) collect(choices[index], event);
        // An aborted run ends without an error; it is no answer.
        signal.throwIfAborted();
        const kind = answerKindOf(query);
        const head = headOf(kind, requestId, run.model, nowMs());
        // The results are kept for a while, as lines of a batch are.
        const citations = await choiceCitations(await run.sources(), choices, { isBatchLine: true });
        const response = queryAnswer(kind, head, requestId, run.report, choices, citations);
        return { response, usage: run.report.usage() };
      } finally {
        countTree(metrics, tenantId, run.report);
      }
    },
  };
}

/** @throws ApiError 413, 415, 400 with the path in the query as `param` */
export async function readQueryBody(context: Context<AppEnv>): Promise<Query> {
  const [mediaType = ""] = (context.req.header("content-type") ?? "").split(";");
  const format = formats.get(mediaType.trim().toLowerCase());
  if (format === undefined) {
    const message = `Send the query as one of ${queryBodyTypes.join(", ")}.`;
    throw new ApiError("unsupported_media_type", { message });
  }
  return await useText(context, limits.queryBodyBytes, async (text) => {
    // Each look at all of a large query has a turn of its own.
    const value = told(() => readQueryText(text, format));
    await yieldIfLong(text.length);
    const query = told(() => parseQuery(value));
    await yieldIfLong(text.length);
    return query;
  });
}

/** @throws ApiError for what a query's parser refuses */
function told<Value>(read: () => Value): Value {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof QueryError)) throw error;
    throw new ApiError(error.code, { message: error.message, param: error.path, cause: error });
  }
}
