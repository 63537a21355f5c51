/** What every API that answers a conversation has in common: a place for the tenant, a run of the pipeline, an end. */
import type { Context } from "hono";
import type { Metrics } from "../metrics.ts";
import type { ChatRequest, ChatRun, Pipeline } from "../pipeline.ts";
import type { AppEnv } from "./auth.ts";
import { tenantIdOf } from "./auth.ts";
import { type Completion, countRuns, emptyChoices, endsOf } from "./completion.ts";
import type { ConcurrencyLimiter } from "./limits.ts";

export interface ChatRunDeps {
  readonly pipeline: Pick<Pipeline, "chat">;
  readonly limiter: ConcurrencyLimiter;
  readonly metrics: Metrics;
}

/**
 * Runs the request and answers with what `answer` makes of it. The tenant's place is taken from now until the
 * completion's `onEnd`, or until something throws before.
 * @throws ApiError concurrency_limited, and what Pipeline.chat throws
 */
export async function runChat(
  context: Context<AppEnv>,
  { pipeline, limiter, metrics }: ChatRunDeps,
  { request, stream }: { readonly request: ChatRequest; readonly stream: boolean },
  answer: (run: ChatRun, completion: Completion) => Promise<Response>,
): Promise<Response> {
  const tenantId = tenantIdOf(context);
  const leave = limiter.enter(tenantId);
  try {
    const client = new AbortController();
    const signal = AbortSignal.any([context.req.raw.signal, client.signal]);
    const requestId = context.get("requestId");
    const run = await pipeline.chat({ requestId, tenantId, request, signal, restartable: !stream });
    const choices = emptyChoices(request.choiceCount);
    const onEnd = (): void => {
      leave();
      countRuns(metrics, tenantId, endsOf(choices));
    };
    return await answer(run, { events: run.events, choices, client, onEnd });
  } catch (error) {
    leave();
    throw error;
  }
}
