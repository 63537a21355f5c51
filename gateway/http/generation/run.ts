/** What every API that answers a conversation does: it takes one of the tenant's places, runs the pipeline, and gives the place back. */
import type { Context } from "hono";
import type { ChatJob, ChatRun, Pipeline } from "../../generate/pipeline.ts";
import type { ChatRequest } from "../../generate/requests.ts";
import type { ConcurrencyLimiter } from "../middleware/concurrency.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { type Choice, emptyChoices } from "./choice.ts";
import type { Completion } from "./completion.ts";

export interface ChatRunDeps {
  readonly pipeline: Pick<Pipeline, "chat">;
  readonly limiter: ConcurrencyLimiter;
}

/** What starting a run needs, whether it answers a conversation or a text. */
type RunJob = Omit<ChatJob, "request">;

/** Runs a conversation: see `runJob`. */
export const runChat = (
  context: Context<AppEnv>,
  deps: ChatRunDeps,
  { request, stream }: { readonly request: ChatRequest; readonly stream: boolean },
  answer: (run: ChatRun, completion: Completion) => Promise<Response>,
): Promise<Response> =>
  runJob(context, deps, {
    choices: emptyChoices(request.choiceCount),
    stream,
    start: (job) => deps.pipeline.chat({ ...job, request }),
    answer,
  });

export interface RunParts {
  readonly choices: readonly Choice[];
  readonly stream: boolean;
  readonly start: (job: RunJob) => Promise<ChatRun>;
  readonly answer: (run: ChatRun, completion: Completion) => Promise<Response>;
}

/**
 * Starts a run and answers with what `answer` makes of it. The tenant's place is taken from now until the
 * completion's `onEnd`, or until something throws before.
 * @throws ApiError concurrency_limited, and what `start` throws
 */
export async function runJob(
  context: Context<AppEnv>,
  { limiter }: Pick<ChatRunDeps, "limiter">,
  { choices, stream, start, answer }: RunParts,
): Promise<Response> {
  const tenantId = tenantIdOf(context);
  const leave = limiter.enter(tenantId);
  try {
    const client = new AbortController();
    const signal = AbortSignal.any([context.req.raw.signal, client.signal]);
    const run = await start({ requestId: context.get("requestId"), tenantId, signal, restartable: !stream });
    return await answer(run, { events: run.events, choices, client, onEnd: leave });
  } catch (error) {
    leave();
    // The caller has gone, and the work was given up: nobody is left to tell.
    if (context.req.raw.signal.aborted) return context.body(null);
    throw error;
  }
}
