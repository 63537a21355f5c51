/** Runs many queries at once: orders them so that shared fragments are used close in time, and runs a few at a time. */

import { type ApiError, errorBody, toApiError } from "../../base/errors.ts";
import { memoryRoom, Pace, yieldToOthers } from "../../base/pace.ts";
import type { Query } from "../../query/ir.ts";
import { FragmentTable, type FragmentUse, type PlannedOrder, planningSteps } from "../../query/planner.ts";
import type { RateLimiter } from "../../tenant/rate-limiter.ts";
import type { BulkLine, BulkLines } from "./bulk-lines.ts";
import type { BulkRecord, BulkUsage, QueryOrder } from "./bulk-results.ts";

export interface BulkAnswer {
  /** The response that `execute` gives for the query. */
  readonly response: object;
  /** Usage of all the query's runs, inner ones included. */
  readonly usage: BulkUsage;
}

/** Inspects and runs single queries for one tenant. Both methods throw ApiError. */
export interface BulkRunner {
  /** The fragments in the query's prompts, for the planner. */
  readonly fragments: (query: Query, signal: AbortSignal) => Promise<readonly FragmentUse[]>;
  readonly run: (query: Query, requestId: string, signal: AbortSignal) => Promise<BulkAnswer>;
}

export interface BulkJob {
  readonly requestId: string;
  readonly lines: BulkLines;
  readonly order: QueryOrder;
  /** How many queries run at the same time. */
  readonly concurrency: number;
  /** Capacity of one worker's KV pool. */
  readonly capacityTokens: number;
  readonly runner: BulkRunner;
  readonly record: BulkRecord;
  /** Called with each result when it is ready. The next query waits until it resolves. */
  readonly onLine: (line: string) => Promise<void>;
  /** Called with the error of each line that fails. */
  readonly onError: (error: ApiError) => void;
  /** Ends the job: queries that have not finished then get no result. */
  readonly signal: AbortSignal;
}

/** Resolves when every line has its result, or the signal has aborted and nothing runs any more. */
export async function runBulk(job: BulkJob): Promise<void> {
  const { lines, signal } = job;
  try {
    const queue = (await inOrder(job)).values();
    const runNext = async (): Promise<void> => {
      for (const index of queue) {
        // As many queries may begin at once as may run, so other work runs before each; and what the last ones left
        // is collected first.
        await yieldToOthers();
        await memoryRoom(signal);
        if (signal.aborted) return;
        await settleLine(job, lines.at(index));
      }
    };
    await Promise.all(Array.from({ length: job.concurrency }, runNext));
  } finally {
    job.record.end();
  }
}

async function settleLine(job: BulkJob, line: BulkLine): Promise<void> {
  const { runner, requestId, signal } = job;
  const { query, index } = line;
  const run = async (): Promise<BulkAnswer | ApiError> =>
    query instanceof Error ? query : await runner.run(query, `${requestId}.${index}`, signal);
  await settle(job, line, await run().catch(toApiError));
}

async function settle(job: BulkJob, { id, index }: BulkLine, result: BulkAnswer | ApiError): Promise<void> {
  // An error after the client has left says nothing about the query.
  if (job.signal.aborted && result instanceof Error) return;
  const body = result instanceof Error ? errorBody(result) : { response: result.response };
  const text = JSON.stringify({ id, index, ...body });
  job.record.add(id, text, result instanceof Error ? undefined : result.usage);
  if (result instanceof Error) job.onError(result);
  await job.onLine(text);
}

/**
 * The queries in the order to run them. Where they are inspected for that, those of them that cannot be get their error
 * as a result here.
 */
async function inOrder(job: BulkJob): Promise<readonly number[]> {
  const { lines, runner, signal } = job;
  if (job.order === "ingestion") {
    job.record.planned("ingestion");
    return Array.from({ length: lines.length }, (_, index) => index);
  }
  const fine: number[] = [];
  const table = new FragmentTable();
  const pace = new Pace();
  for (let index = 0; index < lines.length; index++) {
    if (signal.aborted) return [];
    const line = lines.at(index);
    try {
      if (line.query instanceof Error) throw line.query;
      table.add(await runner.fragments(line.query, signal));
      fine.push(index);
    } catch (error) {
      await settle(job, line, toApiError(error));
    }
    // Inspecting a query is mostly computing, and there may be thousands, so other work may run in between.
    if (await pace.breathe()) await memoryRoom(signal);
  }
  const planned = await plan(table, job);
  if (planned === undefined) return [];
  job.record.planned(planned.kind);
  return planned.order.flatMap((index) => fine[index] ?? []);
}

/** @returns undefined when the signal aborted */
async function plan(table: FragmentTable, { capacityTokens, signal }: BulkJob): Promise<PlannedOrder | undefined> {
  const pace = new Pace();
  const steps = planningSteps(table, capacityTokens);
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
    await pace.breathe();
    if (signal.aborted) return undefined;
  }
}

/** Longest wait until a query's tokens are checked again, in case the tenant's limits were raised. */
const maxWaitMs = 1_000;

/** Lets each query of a bulk request wait until the tenant's limit has tokens for it, where others would be refused. */
export function paced(runner: BulkRunner, limiter: RateLimiter): BulkRunner {
  return {
    ...runner,
    run: async (query, requestId, signal) => {
      for (;;) {
        const waitMs = limiter.admissionOf(requestId)?.tokensWaitMs() ?? 0;
        if (waitMs === 0 || signal.aborted) break;
        await Bun.sleep(Math.min(maxWaitMs, Math.ceil(waitMs)));
      }
      return await runner.run(query, requestId, signal);
    },
  };
}
