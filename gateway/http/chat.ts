/** POST /v1/chat/completions */
import type { Hono } from "hono";
import type { z } from "zod";
import type { ApiError } from "../errors.ts";
import type { Log } from "../log.ts";
import type { TokenBytes } from "../lower/detokenizer.ts";
import type { Metrics } from "../metrics.ts";
import type { Pipeline } from "../pipeline.ts";
import { type AppEnv, tenantIdOf } from "./auth.ts";
import { readJson } from "./body.ts";
import { chatChunks, logprobsFormatter, spangateOf, usageOf, wholeAnswer } from "./chat-answer.ts";
import { answerStreamed, answerWhole, countRuns, emptyChoices, endsOf } from "./completion.ts";
import { logFailure } from "./failure.ts";
import type { ConcurrencyLimiter } from "./limits.ts";
import { declare } from "./route.ts";
import { chatSchema, unsupportedChatFields } from "./schemas.ts";

export interface ChatDeps {
  readonly pipeline: Pipeline;
  readonly tokenBytes: TokenBytes;
  readonly limiter: ConcurrencyLimiter;
  readonly metrics: Metrics;
  /** Schema of file_search.filters. */
  readonly filters: z.ZodType;
  readonly nowMs: () => number;
  readonly log: Log;
}

export function addChatRoutes(app: Hono<AppEnv>, deps: ChatDeps): void {
  const schema = chatSchema(deps.filters);
  const formatLogprobs = logprobsFormatter(deps.tokenBytes);
  declare(app, "POST", "/v1/chat/completions", "inference", async (context) => {
    const tenantId = tenantIdOf(context);
    const body = await readJson(context, schema, { unsupported: unsupportedChatFields });
    const leave = deps.limiter.enter(tenantId);
    const requestId = context.get("requestId");
    try {
      const client = new AbortController();
      const signal = AbortSignal.any([context.req.raw.signal, client.signal]);
      const { request, stream, includeUsage } = body;
      const run = await deps.pipeline.chat({ requestId, tenantId, request, signal, restartable: !stream });
      const head = { id: `chatcmpl-${requestId}`, created: Math.floor(deps.nowMs() / 1000), model: run.model };
      const choices = emptyChoices(request.choiceCount);
      const logprobsOf = request.params.sampling.topLogprobs >= 0 ? formatLogprobs : undefined;
      const onEnd = (): void => {
        leave();
        countRuns(deps.metrics, endsOf(choices));
      };
      const completion = { events: run.events, choices, client, onEnd };
      if (!stream) {
        return await answerWhole(context, completion, () => wholeAnswer(head, requestId, run, choices, logprobsOf));
      }
      const summary = () => ({
        usage: usageOf(endsOf(choices)),
        spangate: spangateOf(requestId, run, endsOf(choices)),
      });
      const shape = chatChunks(head, logprobsOf, includeUsage ? summary : undefined);
      const onError = (error: ApiError): void => logFailure(deps.log, error, requestId);
      return await answerStreamed(context, completion, shape, { onError });
    } catch (error) {
      leave();
      throw error;
    }
  });
}
