/** POST /v1/chat/completions */
import type { Context, Hono } from "hono";
import type { z } from "zod";
import type { TokenLogprob } from "../../worker/contract/messages.ts";
import type { ApiError } from "../errors.ts";
import type { CompletionEvent } from "../generation.ts";
import type { Log } from "../log.ts";
import type { TokenBytes } from "../lower/detokenizer.ts";
import type { Metrics } from "../metrics.ts";
import type { ChatRun, Pipeline } from "../pipeline.ts";
import { type AppEnv, tenantIdOf } from "./auth.ts";
import { readJson } from "./body.ts";
import { type AnswerHead, type Choice, logprobsFormatter, spangateOf, usageOf, wholeAnswer } from "./chat-answer.ts";
import { logFailure } from "./failure.ts";
import type { ConcurrencyLimiter } from "./limits.ts";
import { declare } from "./route.ts";
import { type ChatBody, chatSchema, unsupportedChatFields } from "./schemas.ts";
import { type SseStream, sseResponse } from "./sse.ts";

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

type LogprobsOf = ((logprobs: readonly TokenLogprob[]) => object) | undefined;

/** A request that runs: what its answer is made of. */
interface Running {
  readonly body: ChatBody;
  readonly run: ChatRun;
  readonly head: AnswerHead;
  readonly requestId: string;
  readonly choices: readonly Choice[];
  readonly logprobsOf: LogprobsOf;
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
      const run = await deps.pipeline.chat({
        requestId,
        tenantId,
        request: body.request,
        signal,
        restartable: !body.stream,
      });
      const head = { id: `chatcmpl-${requestId}`, created: Math.floor(deps.nowMs() / 1000), model: run.model };
      const choices = Array.from(
        { length: body.request.choiceCount },
        (): Choice => ({ text: "", logprobs: [], end: undefined }),
      );
      const logprobsOf = body.request.params.sampling.topLogprobs >= 0 ? formatLogprobs : undefined;
      const running = { body, run, head, requestId, choices, logprobsOf };
      const onEnd = (): void => {
        leave();
        observe(deps.metrics, running);
      };
      if (!body.stream) return await whole(context, running, onEnd);
      return await streamed(context, running, client, onEnd, (error) => logFailure(deps.log, error, requestId));
    } catch (error) {
      leave();
      throw error;
    }
  });
}

async function whole(context: Context<AppEnv>, running: Running, onEnd: () => void): Promise<Response> {
  const { run, choices, head, requestId, logprobsOf } = running;
  try {
    for await (const [index, event] of run.events) collect(choices[index], event);
    return context.json(wholeAnswer(head, requestId, run, choices, logprobsOf));
  } finally {
    onEnd();
  }
}

/** What comes within this time decides the status: an early failure is an HTTP error, not an event in a 200. */
const firstEventMs = 2_000;

async function streamed(
  context: Context<AppEnv>,
  running: Running,
  client: AbortController,
  onEnd: () => void,
  onError: (error: ApiError) => void,
): Promise<Response> {
  const { events } = running.run;
  const first = events.next();
  first.catch(() => undefined);
  const timer = Promise.withResolvers<void>();
  const timeout = setTimeout(timer.resolve, firstEventMs);
  try {
    await Promise.race([first, timer.promise]);
  } catch (error) {
    onEnd();
    throw error;
  } finally {
    clearTimeout(timeout);
  }
  const produce = async (stream: SseStream): Promise<void> => {
    stream.signal.addEventListener("abort", () => client.abort(), { once: true });
    try {
      await writeStream(stream, running, first);
    } finally {
      onEnd();
      void events.return();
    }
  };
  return sseResponse(context, produce, { onError });
}

async function writeStream(
  stream: SseStream,
  running: Running,
  first: ReturnType<ChatRun["events"]["next"]>,
): Promise<void> {
  const { body, run, head, requestId, choices, logprobsOf } = running;
  const shared = { ...head, object: "chat.completion.chunk" };
  const write = (fields: object): Promise<void> =>
    stream.event({
      data: JSON.stringify({
        ...shared,
        ...fields,
        ...(body.includeUsage && !("usage" in fields) ? { usage: null } : {}),
      }),
    });
  const delta = (index: number, fields: object, finishReason: string | null, logprobs: object | null = null) =>
    write({ choices: [{ index, delta: fields, logprobs, finish_reason: finishReason }] });
  for (let index = 0; index < choices.length; index++) await delta(index, { role: "assistant", content: "" }, null);
  for (let next = await first; next.done !== true && !stream.closed; next = await run.events.next()) {
    const [index, event] = next.value;
    collect(choices[index], event);
    if (event.type === "text") await delta(index, { content: event.text }, null, logprobsOf?.(event.logprobs) ?? null);
    else if (event.type === "end") await delta(index, {}, event.reason === "length" ? "length" : "stop");
  }
  if (stream.closed) return;
  const ends = choices.flatMap((choice) => (choice.end === undefined ? [] : [choice.end]));
  const spangate = spangateOf(requestId, run, ends);
  if (body.includeUsage) await write({ choices: [], usage: usageOf(ends), spangate });
  await stream.event({ data: "[DONE]" });
}

function collect(choice: Choice | undefined, event: CompletionEvent): void {
  if (choice === undefined) throw new Error("an event of a choice that was not asked for");
  if (event.type === "end") {
    choice.end = event;
    return;
  }
  if (event.type === "restart") {
    choice.text = "";
    choice.logprobs.length = 0;
    return;
  }
  choice.text += event.text;
  choice.logprobs.push(...event.logprobs);
}

function observe(metrics: Metrics, { choices }: Running): void {
  for (const { end } of choices) {
    if (end === undefined) continue;
    const { timings, usage, workerId: worker } = end.report;
    const seconds = (ms: number): number => ms / 1000;
    metrics.count("vllm:request_success_total", "Requests that ended, by reason.", { finished_reason: end.reason });
    metrics.count("vllm:prompt_tokens_total", "Prompt tokens.", { worker }, usage.promptTokens);
    metrics.count("vllm:generation_tokens_total", "Generated tokens.", { worker }, end.completionTokens);
    metrics.observe(
      "vllm:time_to_first_token_seconds",
      "Arrival in the worker to first token.",
      seconds(timings.ttftMs),
    );
    metrics.observe("vllm:request_queue_time_seconds", "Arrival in the worker to admission.", seconds(timings.queueMs));
    metrics.observe("vllm:request_prefill_time_seconds", "Admission to last prompt token.", seconds(timings.prefillMs));
  }
}
