/** POST /v1/messages and /v1/messages/count_tokens, for Anthropic's clients. */
import type { Context, Hono } from "hono";
import type { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import type { Pipeline } from "../../generate/pipeline.ts";
import type { PromptHistory } from "../../generate/prompt-history.ts";
import { ChoiceCitations } from "../generation/citations.ts";
import { answerInEvents, answerWhole } from "../generation/completion.ts";
import type { ComparedPrompt } from "../generation/prompt-diagnostics.ts";
import { type ChatRunDeps, runChat } from "../generation/run.ts";
import { readThinking } from "../generation/thinking.ts";
import { logFailure } from "../middleware/every-request.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { declare, type RouteAbout } from "../transport/route.ts";
import type { SseFraming } from "../transport/sse.ts";
import { messageIdOf, wholeMessage, writeMessage } from "./answer.ts";
import { anthropicErrorBody } from "./errors.ts";
import { countTokensSchema, type MessagesBody, messagesSchema, unsupportedMessagesFields } from "./schema.ts";

export interface MessagesDeps extends ChatRunDeps {
  readonly pipeline: Pick<Pipeline, "chat" | "countTokens" | "unreadVariables" | "marksThinking" | "showsThinking">;
  /** Schema of file_search.filters. */
  readonly filters: z.ZodType;
  readonly log: Log;
  readonly compared: PromptHistory;
}

const about = {
  create: (body: z.ZodType): RouteAbout => ({
    summary: "A message for Anthropic's clients; documents and search results are spans of its prompt.",
    body,
    answerTypes: ["application/json", "text/event-stream"],
  }),
  count: (body: z.ZodType): RouteAbout => ({ summary: "Tokens of the prompt that a message would have.", body }),
};

const options = { unsupported: unsupportedMessagesFields };

export function addMessagesRoutes(app: Hono<AppEnv>, deps: MessagesDeps): void {
  const schema = messagesSchema(deps.filters);
  const countSchema = countTokensSchema(deps.filters);
  declare(app, "POST /v1/messages", about.create(schema), async (context) => {
    tenantIdOf(context);
    checkVersion(context);
    const read = await readJson(context, schema, options);
    const asked = readThinking(context, deps.pipeline, read.request.model, read.thinking);
    const body = { ...read, request: { ...read.request, ...asked } };
    const requestId = context.get("requestId");
    return await runChat(context, deps, body, async (run, completion) => {
      const [choice] = completion.choices;
      if (choice === undefined) throw new Error("a message is one choice");
      const { ttl, citable } = body;
      const asked = { ttl, citable, callsTools: body.request.tools !== undefined };
      const cited = { citations: new ChoiceCitations(run, choice), isBatchLine: context.env?.batch !== undefined };
      const parts = { requestId, run, choice, ...asked, ...cited, comparing: comparingOf(context, deps, body) };
      if (!body.stream) return await answerWhole(context, completion, () => wholeMessage(parts));
      return await answerInEvents(
        context,
        completion,
        (stream, forEachEvent) => writeMessage(stream, forEachEvent, parts),
        {
          onError: (error) => logFailure(deps.log, error, requestId),
          framing: framing(requestId),
        },
      );
    });
  });
  declare(app, "POST /v1/messages/count_tokens", about.count(countSchema), async (context) => {
    const tenantId = tenantIdOf(context);
    checkVersion(context);
    const { request, thinking } = await readJson(context, countSchema, options);
    const { variables } = readThinking(context, deps.pipeline, request.model, thinking);
    using _hold = deps.limiter.enter(tenantId);
    return context.json({ input_tokens: await deps.pipeline.countTokens(tenantId, { ...request, variables }) });
  });
}

function comparingOf(
  context: Context<AppEnv>,
  { compared }: MessagesDeps,
  { request, diagnostics }: MessagesBody,
): ComparedPrompt | undefined {
  if (diagnostics === undefined) return undefined;
  const id = messageIdOf(context.get("requestId"));
  return { compared, tenantId: tenantIdOf(context), id, earlierId: diagnostics.previous_message_id, request };
}

/**
 * Versions of the API whose requests and answers fit. The later one took the sampling fields out: here they mean in both
 * what they say, as a model of one's own needs them.
 */
const versions: readonly string[] = ["2023-06-01", "2026-10-21"];

/** A caller that names no version gets the latest. @throws ApiError invalid_value with param `anthropic-version` */
export function checkVersion(context: Context<AppEnv>): void {
  const asked = context.req.header("anthropic-version");
  if (asked === undefined || versions.includes(asked)) return;
  throw new ApiError("invalid_value", {
    message: `The header 'anthropic-version' must be ${versions.join(" or ")}.`,
    param: "anthropic-version",
  });
}

const framing = (requestId: string): SseFraming => ({
  ping: 'event: ping\ndata: {"type":"ping"}\n\n',
  error: (error) => `event: error\ndata: ${JSON.stringify(anthropicErrorBody(error, requestId))}\n\n`,
});
