/** POST /v1/chat/completions */
import type { Hono } from "hono";
import type { z } from "zod";
import type { ApiError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { TokenBytes } from "../text/detokenizer.ts";
import { type AppEnv, tenantIdOf } from "./auth.ts";
import { readJson } from "./body.ts";
import { chatChunks, logprobsDescriber, spangateOf, usageOf, wholeAnswer } from "./chat-answer.ts";
import { type ChatRunDeps, runChat } from "./chat-run.ts";
import { answerStreamed, answerWhole, endsOf } from "./completion.ts";
import { logFailure } from "./failure.ts";
import { declare } from "./route.ts";
import { chatSchema, unsupportedChatFields } from "./schemas.ts";

export interface ChatDeps extends ChatRunDeps {
  readonly tokenBytes: TokenBytes;
  /** Schema of file_search.filters. */
  readonly filters: z.ZodType;
  readonly nowMs: () => number;
  readonly log: Log;
}

export function addChatRoutes(app: Hono<AppEnv>, deps: ChatDeps): void {
  const schema = chatSchema(deps.filters);
  const describe = logprobsDescriber(deps.tokenBytes);
  const formatLogprobs = (logprobs: Parameters<typeof describe>[0]) => ({ content: describe(logprobs), refusal: null });
  declare(app, "POST", "/v1/chat/completions", "inference", async (context) => {
    tenantIdOf(context);
    const body = await readJson(context, schema, { unsupported: unsupportedChatFields });
    const requestId = context.get("requestId");
    return await runChat(context, deps, body, async (run, completion) => {
      const { request, stream, includeUsage } = body;
      const { choices } = completion;
      const head = { id: `chatcmpl-${requestId}`, created: Math.floor(deps.nowMs() / 1000), model: run.model };
      const logprobsOf = request.params.sampling.topLogprobs >= 0 ? formatLogprobs : undefined;
      if (!stream) {
        return await answerWhole(context, completion, () => wholeAnswer(head, requestId, run, choices, logprobsOf));
      }
      const summary = () => ({
        usage: usageOf(endsOf(choices)),
        spangate: spangateOf(requestId, run, endsOf(choices)),
      });
      const shape = chatChunks(head, logprobsOf, includeUsage ? summary : undefined, request.tools !== undefined);
      const onError = (error: ApiError): void => logFailure(deps.log, error, requestId);
      return await answerStreamed(context, completion, shape, { onError });
    });
  });
}
