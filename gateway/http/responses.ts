/** /v1/responses: answers to a conversation, with file search, stored when wanted. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { JsonObject } from "../../db/schema.ts";
import type { ComparedPrompts } from "../compared-prompts.ts";
import { limits } from "../config.ts";
import { ApiError } from "../errors.ts";
import type { Log } from "../log.ts";
import type { TokenBytes } from "../lower/detokenizer.ts";
import type { Pipeline } from "../pipeline.ts";
import type { StoredResponses } from "../stored-responses.ts";
import { changed } from "./audit.ts";
import { type AppEnv, tenantIdOf } from "./auth.ts";
import { readJson } from "./body.ts";
import { logprobsDescriber } from "./chat-answer.ts";
import { type ChatRunDeps, runChat } from "./chat-run.ts";
import { answerInEvents, answerWhole } from "./completion.ts";
import { logFailure } from "./failure.ts";
import { pageQuery, readNoFields, readQuery } from "./paging.ts";
import { comparePrompt } from "./prompt-diagnostics.ts";
import { type ResponseParts, responseBody } from "./responses-answer.ts";
import { conversationOf } from "./responses-items.ts";
import {
  comparedWith,
  type Item,
  inputTokensSchema,
  promptOf,
  type ResponsePrompt,
  type ResponsesBody,
  requestOf,
  responsesSchema,
  showsLogprobs,
  unsupportedResponseFields,
} from "./responses-schema.ts";
import { ResponseEvents, writeResponse } from "./responses-stream.ts";
import { declare, type RouteAbout } from "./route.ts";

export interface ResponsesDeps extends ChatRunDeps {
  readonly pipeline: Pick<Pipeline, "chat" | "countTokens">;
  readonly stored: StoredResponses;
  readonly tokenBytes: TokenBytes;
  /** Schema of a tool's filters. */
  readonly filters: z.ZodType;
  readonly nowMs: () => number;
  readonly log: Log;
  readonly compared: ComparedPrompts;
}

// Results are kept without their text, which belongs to the files: there is nothing more to include.
const retrieveQuery = z.strictObject({ stream: z.literal("false", "a response is not streamed again").optional() });
const itemsQuery = pageQuery.omit({ before: true });

const about = {
  create: (body: z.ZodType): RouteAbout => ({
    summary: "Answers a conversation, with file search and citations; kept unless store is false.",
    body,
    answerTypes: ["application/json", "text/event-stream"],
  }),
  count: (body: z.ZodType): RouteAbout => ({ summary: "Tokens of the prompt that a response would have.", body }),
  get: { summary: "A response that was kept.", query: retrieveQuery },
  delete: { summary: "Deletes a response that was kept." },
  cancel: { summary: "Refuses: no response is made in the background." },
  items: { summary: "The conversation that a response was given to.", query: itemsQuery },
};

export function addResponsesRoutes(app: Hono<AppEnv>, deps: ResponsesDeps): void {
  const { stored } = deps;
  const schema = responsesSchema(deps.filters);
  declare(
    app,
    "POST",
    "/v1/responses",
    "inference",
    async (context) => {
      const tenantId = tenantIdOf(context);
      const parsed = await readJson(context, schema, { unsupported: unsupportedResponseFields });
      const items = boundedConversation(stored, tenantId, parsed);
      try {
        return await respond(context, deps, parsed, items);
      } catch (error) {
        throw inOwnWords(error, parsed.searchIndex);
      }
    },
    about.create(schema),
  );
  addCountRoute(app, deps);

  declare(
    app,
    "GET",
    "/v1/responses/:response_id",
    "inference",
    (context) => {
      readQuery(context, retrieveQuery);
      return context.json(stored.get(tenantIdOf(context), context.req.param("response_id")).body);
    },
    about.get,
  );

  declare(
    app,
    "DELETE",
    "/v1/responses/:response_id",
    "inference",
    (context) => {
      const id = context.req.param("response_id");
      changed(context, () => stored.delete(tenantIdOf(context), id));
      return context.json({ id, object: "response", deleted: true });
    },
    about.delete,
  );

  declare(
    app,
    "POST",
    "/v1/responses/:response_id/cancel",
    "inference",
    async (context) => {
      await readNoFields(context);
      stored.get(tenantIdOf(context), context.req.param("response_id"));
      throw new ApiError("invalid_request", {
        message: "Only a response that is made in the background can be cancelled, and this one has ended.",
      });
    },
    about.cancel,
  );

  declare(
    app,
    "GET",
    "/v1/responses/:response_id/input_items",
    "inference",
    (context) => {
      const query = readQuery(context, itemsQuery);
      const { inputItems } = stored.get(tenantIdOf(context), context.req.param("response_id"));
      return context.json(itemPage(inputItems, query));
    },
    about.items,
  );
}

function addCountRoute(app: Hono<AppEnv>, { stored, filters, limiter, pipeline }: ResponsesDeps): void {
  const schema = inputTokensSchema(filters);
  declare(
    app,
    "POST",
    "/v1/responses/input_tokens",
    "inference",
    async (context) => {
      const tenantId = tenantIdOf(context);
      const parsed = await readJson(context, schema, { unsupported: unsupportedResponseFields });
      const items = boundedConversation(stored, tenantId, parsed);
      const leave = limiter.enter(tenantId);
      try {
        const count = await pipeline.countTokens(tenantId, promptOf(parsed, items));
        return context.json({ object: "response.input_tokens", input_tokens: count });
      } catch (error) {
        throw inOwnWords(error, parsed.searchIndex);
      } finally {
        leave();
      }
    },
    about.count(schema),
  );
}

/** @throws ApiError not_found, invalid_value with `param` */
function boundedConversation(stored: StoredResponses, tenantId: string, parsed: ResponsePrompt): readonly Item[] {
  const items = conversationOf(stored, tenantId, parsed);
  if (items.length <= limits.messages) return items;
  const message = `'input' has more than ${limits.messages} items.`;
  throw new ApiError("invalid_value", { message, param: "input" });
}

async function respond(
  context: Context<AppEnv>,
  deps: ResponsesDeps,
  parsed: ResponsesBody,
  items: readonly Item[],
): Promise<Response> {
  const stream = parsed.body.stream ?? false;
  const requestId = context.get("requestId");
  const tenantId = tenantIdOf(context);
  const request = requestOf(parsed, items);
  return await runChat(context, deps, { request, stream }, async (run, completion) => {
    const [choice] = completion.choices;
    if (choice === undefined) throw new Error("a response is one choice");
    const id = deps.stored.newId();
    const logprobsOf = showsLogprobs(parsed.body) ? logprobsDescriber(deps.tokenBytes) : () => [];
    const parts = { id, requestId, createdMs: deps.nowMs(), parsed, items, run, choice, logprobsOf };
    const earlierId = comparedWith(parsed.body);
    const finish = () => {
      const comparison = comparePrompt({ compared: deps.compared, tenantId, id, earlierId, request }, run, choice);
      const body = responseBody({ ...parts, comparison }, deps.nowMs());
      if (body.store) deps.stored.add(tenantId, { id: parts.id, body: kept(body), inputItems: withIds(parts) });
      return body;
    };
    if (!stream) return await answerWhole(context, completion, finish);
    const numbered = new ResponseEvents();
    const write: Parameters<typeof answerInEvents>[2] = (to, events) =>
      writeResponse(to, events, parts, { numbered, finish });
    return await answerInEvents(context, completion, write, {
      onError: (error) => logFailure(deps.log, error, requestId),
      framing: numbered.framing,
    });
  });
}

/**
 * A found text is its file's: it is not kept where deleting the file would not reach it. Probabilities are many times
 * the text.
 */
function kept(body: ReturnType<typeof responseBody>): JsonObject {
  const output = body.output.map((item) => {
    if ("queries" in item) return { ...item, results: null };
    return "content" in item ? { ...item, content: item.content.map((part) => ({ ...part, logprobs: [] })) } : item;
  });
  return { ...body, output };
}

const inputPrefixes: Readonly<Record<Item["type"], string>> = {
  message: "msg",
  file_search_call: "fs",
  // Calls that are answered have the usual prefix.
  function_call: "fci",
  function_call_output: "fco",
};

function withIds({ id, items }: Pick<ResponseParts, "id" | "items">): JsonObject[] {
  const own = id.replace("resp_", "");
  return items.map((item, index) => ({ id: `${inputPrefixes[item.type]}_${own}_${index}`, ...item }));
}

function itemPage(items: readonly JsonObject[], { limit, order, after }: z.output<typeof itemsQuery>) {
  const ordered = order === "asc" ? items : items.toReversed();
  const start = after === undefined ? 0 : ordered.findIndex(({ id }) => id === after) + 1;
  if (after !== undefined && start === 0) throw new ApiError("not_found", { param: "after" });
  const data = ordered.slice(start, start + limit);
  const hasMore = start + limit < ordered.length;
  return { object: "list", data, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null, has_more: hasMore };
}

/** The pipeline names fields as chat does. */
function inOwnWords(error: unknown, searchIndex: number): unknown {
  if (!(error instanceof ApiError) || error.param === undefined) return error;
  const names: Readonly<Record<string, string>> = { messages: "input", max_tokens: "max_output_tokens" };
  const param = names[error.param] ?? error.param.replace(/^file_search\./, `tools[${searchIndex}].`);
  const { code, message, retryAfterS, cause } = error;
  return new ApiError(code, { message, param, cause, ...(retryAfterS === undefined ? {} : { retryAfterS }) });
}
