/** POST /v1/chat/completions */
import type { Hono } from "hono";
import type { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { attributeFilterSchema } from "../../corpus/search/filters.ts";
import type { Pipeline } from "../../generate/pipeline.ts";
import type { TokenBytes } from "../../text/detokenizer.ts";
import { endsOf } from "../generation/choice.ts";
import { choiceCitations } from "../generation/citations.ts";
import { answerStreamed, answerWhole } from "../generation/completion.ts";
import { logprobsDescriber, spangateOf, usageOf } from "../generation/report.ts";
import { type ChatRunDeps, runChat } from "../generation/run.ts";
import { readThinking } from "../generation/thinking.ts";
import { logFailure } from "../middleware/every-request.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { declare } from "../transport/route.ts";
import { chatChunks, wholeAnswer } from "./chat-answer.ts";
import { chatSchema, unsupportedChatFields } from "./chat-schema.ts";

export interface ChatDeps extends ChatRunDeps {
  readonly pipeline: Pick<Pipeline, "chat" | "unreadVariables" | "marksThinking" | "showsThinking">;
  readonly tokenBytes: TokenBytes;
  readonly nowMs: () => number;
  readonly log: Log;
}

const schema = chatSchema(attributeFilterSchema);

/** What the routes do, for /openapi.json. */
const about = {
  completions: {
    summary: "A chat completion; documents and vector stores are spans of its prompt.",
    body: schema,
    answerTypes: ["application/json", "text/event-stream"],
  },
};

export function addChatRoutes(app: Hono<AppEnv>, deps: ChatDeps): void {
  const describe = logprobsDescriber(deps.tokenBytes);
  const formatLogprobs = (logprobs: Parameters<typeof describe>[0]) => ({ content: describe(logprobs), refusal: null });
  declare(app, "POST /v1/chat/completions", about.completions, async (context) => {
    tenantIdOf(context);
    const body = await readJson(context, schema, { unsupported: unsupportedChatFields });
    const requestId = context.get("requestId");
    const { stream, includeUsage } = body;
    const asked = readThinking(context, deps.pipeline, body.request.model, body.thinking);
    const request = { ...body.request, ...asked };
    return await runChat(context, deps, { request, stream }, async (run, completion) => {
      const { choices } = completion;
      const view = { isBatchLine: context.env?.batch !== undefined };
      const sources = choices.map(() => run);
      const head = { id: `chatcmpl-${requestId}`, created: Math.floor(deps.nowMs() / 1000), model: run.model };
      const logprobsOf = request.params.sampling.topLogprobs >= 0 ? formatLogprobs : undefined;
      if (!stream) {
        return await answerWhole(context, completion, async () =>
          wholeAnswer(head, requestId, run, choices, {
            logprobsOf,
            citations: await choiceCitations(sources, choices, view),
          }),
        );
      }
      const summary = async () => ({
        usage: usageOf(endsOf(choices)),
        spangate: spangateOf(requestId, run, endsOf(choices), await choiceCitations(sources, choices, view)),
      });
      // Clients that want no summary may not expect a chunk without choices: the last of each choice has its citations.
      const endFields = async (index: number) => {
        const citations = await choiceCitations(sources, choices, view, index);
        return citations === undefined ? {} : { spangate: { citations } };
      };
      const extras = includeUsage ? { summary } : { summary: undefined, endFields };
      const shape = chatChunks(head, logprobsOf, extras, request.tools !== undefined);
      const onError = (error: ApiError): void => logFailure(deps.log, error, requestId);
      return await answerStreamed(context, completion, shape, { onError });
    });
  });
}
