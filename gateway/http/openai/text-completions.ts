/** POST /v1/completions: texts and token ids go on as they are, without a chat template. */
import type { Hono } from "hono";
import { z } from "zod";
import { limits as contractLimits } from "../../../worker/contract/limits.ts";
import type { TokenLogprob } from "../../../worker/contract/messages.ts";
import type { ApiError } from "../../base/errors.ts";
import type { Log } from "../../base/log.ts";
import { limits } from "../../config.ts";
import type { ChatRun, Pipeline } from "../../generate/pipeline.ts";
import type { TextRequest } from "../../generate/requests.ts";
import { shareOf, sumOf } from "../../generate/usage-counters.ts";
import type { TokenBytes } from "../../text/detokenizer.ts";
import { type Choice, emptyChoices, endsOf, finishReasonOf } from "../generation/choice.ts";
import { answerStreamed, answerWhole, type ChunkShape } from "../generation/completion.ts";
import { type AnswerHead, spangateOf, usageBody } from "../generation/report.ts";
import { requestFields, spangateFields } from "../generation/request-fields.ts";
import { type ChatRunDeps, runJob } from "../generation/run.ts";
import { generateParams, samplingFields } from "../generation/sampling.ts";
import { logFailure } from "../middleware/every-request.ts";
import { readJson } from "../transport/body.ts";
import { type AppEnv, tenantIdOf } from "../transport/context.ts";
import { optional, tokenIds } from "../transport/fields.ts";
import { declare, type RouteAbout } from "../transport/route.ts";
import { chatFields, unsupportedChatFields } from "./chat-schema.ts";

export interface TextCompletionDeps extends Pick<ChatRunDeps, "limiter"> {
  readonly pipeline: Pick<Pipeline, "complete">;
  readonly tokenBytes: TokenBytes;
  readonly nowMs: () => number;
  readonly log: Log;
}

export const tokenIdList = tokenIds(contractLimits.maxRequestTokens);
const several = limits.completionChoices;
const listOf = <Item extends z.ZodType>(item: Item) => z.array(item).min(1).max(several);
const anyPrompt = z.union([z.string(), listOf(z.string()), tokenIdList, listOf(tokenIdList)], {
  error: "must be a text, a list of token ids, or a list of either",
});
/** A list of prompts is counted before it is read as one kind after the other. */
const prompt = z.preprocess((given, context) => {
  const isIds = Array.isArray(given) && typeof given[0] === "number";
  const [most, what] = isIds ? [contractLimits.maxRequestTokens, "token ids"] : [several, "prompts"];
  if (!Array.isArray(given) || given.length <= most) return given;
  context.addIssue({ code: "custom", message: `has more than ${most} ${what}`, input: given });
  return z.NEVER;
}, anyPrompt);

const schema = z
  .strictObject({
    model: requestFields.model,
    prompt,
    // As the clients know it.
    max_tokens: optional(z.int().min(1)).transform((count) => count ?? 16),
    min_tokens: chatFields.min_tokens,
    ignore_eos: chatFields.ignore_eos,
    ...samplingFields,
    stop_token_ids: chatFields.stop_token_ids,
    n: requestFields.n,
    logprobs: optional(z.int().min(0).max(contractLimits.maxTopLogprobs)),
    logit_bias: chatFields.logit_bias,
    stream: requestFields.stream,
    stream_options: requestFields.stream_options,
    prompt_cache_key: chatFields.prompt_cache_key,
    cache_salt: requestFields.cache_salt,
    spangate: optional(z.strictObject(spangateFields)),
    // Values that mean what this server does anyway.
    echo: optional(z.literal(false, "prompts are not sent back")),
    best_of: optional(z.literal(1, "every completion is answered; ask for n")),
    user: requestFields.user,
  })
  .superRefine((body, context) => {
    const refuse = (path: string, message: string): void => {
      context.addIssue({ code: "custom", path: [path], message, input: body });
    };
    if (body.stream_options !== undefined && body.stream !== true) refuse("stream_options", "needs stream: true");
    if ((body.min_tokens ?? 0) > body.max_tokens) refuse("min_tokens", "is more than max_tokens");
    const promptCount = promptsOf(body.prompt).length;
    if (promptCount * (body.n ?? 1) > several) refuse("n", `makes more than ${several} completions`);
  });
type Body = z.output<typeof schema>;

const unsupportedFields: ReadonlySet<string> = new Set([...unsupportedChatFields, "suffix", "response_format"]);

const about: RouteAbout = {
  summary: "Completions of texts or token ids, without a chat template.",
  body: schema,
  answerTypes: ["application/json", "text/event-stream"],
};

export function addTextCompletionRoutes(app: Hono<AppEnv>, deps: TextCompletionDeps): void {
  declare(app, "POST /v1/completions", about, async (context) => {
    tenantIdOf(context);
    const body = await readJson(context, schema, { unsupported: unsupportedFields });
    const request = requestOf(body);
    const choices = emptyChoices(request.prompts.length * request.choiceCount);
    const requestId = context.get("requestId");
    return await runJob(context, deps, {
      choices,
      stream: body.stream ?? false,
      start: (job) => deps.pipeline.complete({ ...job, request }),
      answer: async (run, completion) => {
        const head = { id: `cmpl-${requestId}`, created: Math.floor(deps.nowMs() / 1000), model: run.model };
        const logprobsOf = body.logprobs === undefined ? () => () => null : logprobsFormatter(deps.tokenBytes);
        const facts = () => factsOf(requestId, run, choices, request.choiceCount);
        if (body.stream !== true) {
          return await answerWhole(context, completion, () => wholeAnswer(head, choices, logprobsOf, facts));
        }
        const summary = body.stream_options?.include_usage === true ? facts : undefined;
        const shape = chunkShape(head, choices, logprobsOf, summary);
        const onError = (error: ApiError): void => logFailure(deps.log, error, requestId);
        return await answerStreamed(context, completion, shape, { onError });
      },
    });
  });
}

function promptsOf(given: Body["prompt"]): TextRequest["prompts"] {
  if (typeof given === "string") return [given];
  const areIds = (list: typeof given): list is readonly number[] => typeof list[0] === "number";
  return areIds(given) ? [given] : given;
}

function requestOf(body: Body): TextRequest {
  const { logprobs, ...sampling } = body;
  return {
    model: body.model,
    prompts: promptsOf(body.prompt),
    maxTokens: body.max_tokens,
    params: generateParams({ ...sampling, logprobs: logprobs !== undefined, top_logprobs: logprobs }),
    choiceCount: body.n ?? 1,
    stops: body.stop ?? [],
    cacheSalt: body.cache_salt,
    cacheKey: body.prompt_cache_key,
    reuse: body.spangate?.reuse ?? true,
    sparse: body.spangate?.sparse,
    diagnose: body.spangate?.prompt_cache_diagnostics ?? false,
  };
}

/** Log-probabilities of the next tokens of one choice; text offsets continue from the tokens before. */
type FormatLogprobs = (logprobs: readonly TokenLogprob[]) => object | null;

const logprobsFormatter = (tokenBytes: TokenBytes) => (): FormatLogprobs => {
  let offset = 0;
  const nameOf = (tokenId: number): string => tokenBytes.describe(tokenId).token;
  return (logprobs) => {
    const tokens = logprobs.map(({ tokenId }) => nameOf(tokenId));
    return {
      tokens,
      token_logprobs: logprobs.map(({ logprob }) => logprob),
      top_logprobs: logprobs.map(({ top }) => Object.fromEntries(top.map(([id, value]) => [nameOf(id), value]))),
      text_offset: tokens.map((token) => {
        offset += token.length;
        return offset - token.length;
      }),
    };
  };
};

const choiceOf = (index: number, text: string, logprobs: object | null, finishReason: string | null) => {
  return { index, text, logprobs, finish_reason: finishReason };
};

function wholeAnswer(
  head: AnswerHead,
  choices: readonly Choice[],
  logprobsOf: () => FormatLogprobs,
  facts: () => object,
) {
  return {
    ...head,
    object: "text_completion",
    choices: choices.map(({ text, logprobs, end }, index) =>
      choiceOf(index, text, logprobsOf()(logprobs), finishReasonOf(end?.reason)),
    ),
    ...facts(),
  };
}

function chunkShape(
  head: AnswerHead,
  choices: readonly Choice[],
  logprobsOf: () => FormatLogprobs,
  summary: (() => object) | undefined,
): ChunkShape {
  const formats = choices.map(logprobsOf);
  return {
    shared: { ...head, object: "text_completion" },
    text: (index, { text, logprobs }) => choiceOf(index, text, formats[index]?.(logprobs) ?? null, null),
    end: (index, finishReason) => choiceOf(index, "", null, finishReason),
    summary,
  };
}

/** Each prompt counts once, as the first of its choices found it. */
function factsOf(requestId: string, run: ChatRun, choices: readonly Choice[], choiceCount: number) {
  const ends = endsOf(choices);
  const shares = choices.flatMap(({ end }, index) =>
    end === undefined ? [] : shareOf(end, index % choiceCount === 0),
  );
  return { usage: usageBody(sumOf(shares)), spangate: spangateOf(requestId, run, ends) };
}
