/** /v1/responses: answers to a conversation, with file search, stored when wanted. */
import type { Context, Hono } from "hono";
import { z } from "zod";
import type { ResponseId } from "../../../db/ids.ts";
import type { JsonObject } from "../../../db/schema.ts";
import { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { limits } from "../../config.ts";
import type { ChatRun, Pipeline } from "../../generate/pipeline.ts";
import type { PromptHistory } from "../../generate/prompt-history.ts";
import type { StoredResponses } from "../../tenant/stored-responses.ts";
import type { TokenBytes } from "../../text/detokenizer.ts";
import { ChoiceCitations } from "../generation/citations.ts";
import { answerInEvents, answerWhole, type Completion } from "../generation/completion.ts";
import { comparePrompt } from "../generation/prompt-diagnostics.ts";
import { logprobsDescriber } from "../generation/report.ts";
import { type ChatRunDeps, runChat } from "../generation/run.ts";
import { readThinking } from "../generation/thinking.ts";
import { changed } from "../middleware/audit.ts";
import { logFailure } from "../middleware/every-request.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { pageQuery, readNoFields, readQuery } from "../transport/paging.ts";
import { declare, type RouteAbout } from "../transport/route.ts";
import { responseBody } from "./answer.ts";
import type { Item } from "./input-items.ts";
import { type Conversation, conversationOf, inputItemsOf, keptInput } from "./items.ts";
import {
  comparedWith,
  inputTokensSchema,
  promptOf,
  type ResponsePrompt,
  type ResponsesBody,
  requestOf,
  responsesSchema,
  showsLogprobs,
  unsupportedResponseFields,
  wishesOf,
} from "./schema.ts";
import { ResponseEvents, writeResponse } from "./stream.ts";

export interface ResponsesDeps extends ChatRunDeps {
  readonly pipeline: Pick<Pipeline, "chat" | "countTokens" | "unreadVariables" | "marksThinking" | "showsThinking">;
  readonly stored: StoredResponses;
  readonly tokenBytes: TokenBytes;
  /** Schema of a tool's filters. */
  readonly filters: z.ZodType;
  readonly nowMs: () => number;
  readonly log: Log;
  readonly compared: PromptHistory;
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
  declare(app, "POST /v1/responses", about.create(schema), async (context) => {
    const parsed = await readJson(context, schema, { unsupported: unsupportedResponseFields });
    const conversation = await boundedConversation(context, stored, parsed);
    try {
      return await respond(context, deps, parsed, conversation);
    } catch (error) {
      throw inOwnWords(error, parsed.searchIndex);
    }
  });
  addCountRoute(app, deps);

  declare(app, "GET /v1/responses/:response_id", about.get, (context) => {
    readQuery(context, retrieveQuery);
    const head = stored.get(tenantIdOf(context), context.req.param("response_id"));
    return context.body(stored.read(head, "body"), 200, { "content-type": "application/json" });
  });

  declare(app, "DELETE /v1/responses/:response_id", about.delete, (context) => {
    const id = context.req.param("response_id");
    changed(context, () => stored.delete(tenantIdOf(context), id));
    return context.json({ id, object: "response", deleted: true });
  });

  declare(app, "POST /v1/responses/:response_id/cancel", about.cancel, async (context) => {
    await readNoFields(context);
    stored.get(tenantIdOf(context), context.req.param("response_id"));
    throw new ApiError("invalid_request", {
      message: "Only a response that is made in the background can be cancelled, and this one has ended.",
    });
  });

  declare(app, "GET /v1/responses/:response_id/input_items", about.items, async (context) => {
    const query = readQuery(context, itemsQuery);
    const reading = { stored, tenantId: tenantIdOf(context), budget: context.get("budget") };
    return context.json(itemPage(await inputItemsOf(reading, context.req.param("response_id")), query));
  });
}

function addCountRoute(app: Hono<AppEnv>, { stored, filters, limiter, pipeline }: ResponsesDeps): void {
  const schema = inputTokensSchema(filters);
  declare(app, "POST /v1/responses/input_tokens", about.count(schema), async (context) => {
    const tenantId = tenantIdOf(context);
    const parsed = await readJson(context, schema, { unsupported: unsupportedResponseFields });
    const { items } = await boundedConversation(context, stored, parsed);
    using _hold = limiter.enter(tenantId);
    try {
      const { variables } = readThinking(context, pipeline, parsed.body.model, wishesOf(parsed));
      const count = await pipeline.countTokens(tenantId, { ...promptOf(parsed, items), variables });
      return context.json({ object: "response.input_tokens", input_tokens: count });
    } catch (error) {
      throw inOwnWords(error, parsed.searchIndex);
    }
  });
}

/** @throws ApiError not_found, invalid_value with `param` */
async function boundedConversation(
  context: Context<AppEnv>,
  stored: StoredResponses,
  parsed: ResponsePrompt,
): Promise<Conversation> {
  const reading = { stored, tenantId: tenantIdOf(context), budget: context.get("budget") };
  const conversation = await conversationOf(reading, parsed);
  if (conversation.items.length <= limits.messages) return conversation;
  const message = `'input' has more than ${limits.messages} items.`;
  throw new ApiError("invalid_value", { message, param: "input" });
}

/**
 * @returns the part of the request that is stored, as JSON; undefined where nothing is stored
 * @throws ApiError invalid_value: it is too much to be kept
 */
function keptInputOf(id: ResponseId, { body, items }: ResponsesBody): string | undefined {
  if (body.store === false) return undefined;
  const input = keptInput(id, items);
  const { instructions = "", tools = [], metadata = {}, text } = body;
  // These fields are stored with the answer, which repeats them.
  const echoed = JSON.stringify([instructions, tools, metadata, text?.format?.shown]);
  if (Buffer.byteLength(input) + Buffer.byteLength(echoed) <= limits.storedResponses.requestBytes) return input;
  const what = `new input, instructions and tools of at most ${limits.storedResponses.requestBytes} bytes together`;
  throw new ApiError("invalid_value", {
    message: `A response that is kept has ${what}; or set 'store' to false.`,
    param: "input",
  });
}

async function respond(
  context: Context<AppEnv>,
  deps: ResponsesDeps,
  parsed: ResponsesBody,
  { items, usedSeqs }: Conversation,
): Promise<Response> {
  const stream = parsed.body.stream ?? false;
  const requestId = context.get("requestId");
  const tenantId = tenantIdOf(context);
  const asked = readThinking(context, deps.pipeline, parsed.body.model, wishesOf(parsed));
  const request = { ...requestOf(parsed, items), ...asked };
  const id = deps.stored.newId();
  const inputItems = keptInputOf(id, parsed);
  const roomBytes = inputItems === undefined ? 0 : Buffer.byteLength(inputItems);
  const release = inputItems === undefined ? () => undefined : deps.stored.reserve(tenantId, roomBytes);
  const previousId = (parsed.body.previous_response_id ?? null) as ResponseId | null;
  const answer = async (run: ChatRun, { onEnd, ...rest }: Completion): Promise<Response> => {
    const completion = {
      ...rest,
      onEnd: () => {
        release();
        onEnd();
      },
    };
    const [choice] = completion.choices;
    if (choice === undefined) throw new Error("a response is one choice");
    const logprobsOf = showsLogprobs(parsed.body) ? logprobsDescriber(deps.tokenBytes) : () => [];
    const isBatchLine = context.env?.batch !== undefined;
    const citations = new ChoiceCitations(run, choice);
    const facts = { id, requestId, createdMs: deps.nowMs(), parsed, items, isBatchLine, logprobsOf };
    const parts = { ...facts, run, choice, citations };
    const earlierId = comparedWith(parsed.body);
    const finish = () => {
      const comparison = comparePrompt({ compared: deps.compared, tenantId, id, earlierId, request }, run, choice);
      const body = responseBody({ ...parts, comparison }, deps.nowMs());
      if (inputItems !== undefined) {
        deps.stored.add(tenantId, { id, previousId, usedSeqs, inputItems, body: JSON.stringify(kept(body)) });
      }
      return body;
    };
    if (!stream) {
      return await answerWhole(context, completion, async () => {
        await citations.find();
        return finish();
      });
    }
    const numbered = new ResponseEvents();
    const write: Parameters<typeof answerInEvents>[2] = (to, forEachEvent) =>
      writeResponse(to, forEachEvent, parts, { numbered, finish });
    return await answerInEvents(context, completion, write, {
      onError: (error) => logFailure(deps.log, error, requestId),
      framing: numbered.framing,
    });
  };
  try {
    return await runChat(context, deps, { request, stream }, answer);
  } catch (error) {
    release();
    throw error;
  }
}

/**
 * Takes the text of found files and the quotes out, since deleting a file would not reach a copy here, and log-probabilities, which are
 * many times as large as the text.
 */
function kept(body: ReturnType<typeof responseBody>): JsonObject {
  const output = body.output.map((item) => {
    if ("queries" in item) return { ...item, results: null };
    return item.type === "message"
      ? { ...item, content: item.content.map((part) => ({ ...part, logprobs: [] })) }
      : item;
  });
  const { spangate, ...rest } = body;
  if (spangate === undefined) return { ...body, output };
  const citations = spangate.citations?.map((citation) => ({ ...citation, quote: undefined }));
  return { ...rest, output, spangate: { ...spangate, ...(citations === undefined ? {} : { citations }) } };
}

function itemPage(
  items: readonly (Item & { readonly id?: string })[],
  { limit, order, after }: z.output<typeof itemsQuery>,
) {
  const ordered = order === "asc" ? items : items.toReversed();
  const start = after === undefined ? 0 : ordered.findIndex(({ id }) => id === after) + 1;
  if (after !== undefined && start === 0) throw new ApiError("not_found", { param: "after" });
  const data = ordered.slice(start, start + limit);
  const hasMore = start + limit < ordered.length;
  return { object: "list", data, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null, has_more: hasMore };
}

/** Translates names of fields in errors: the pipeline uses those of chat completions. */
function inOwnWords(error: unknown, searchIndex: number): unknown {
  if (!(error instanceof ApiError) || error.param === undefined) return error;
  const names: Readonly<Record<string, string>> = { messages: "input", max_tokens: "max_output_tokens" };
  const param = names[error.param] ?? error.param.replace(/^file_search\./, `tools[${searchIndex}].`);
  const { code, message, retryAfterS, cause } = error;
  return new ApiError(code, { message, param, cause, ...(retryAfterS === undefined ? {} : { retryAfterS }) });
}
