/**
 * The way of one request: resolve its documents, lower, dispatch, detokenize. Text, corpora and workers meet only here.
 */
import type { FileId, TenantId } from "../../db/ids.ts";
import type { ByteGrammar } from "../../worker/contract/grammar.ts";
import type { SamplingParams, TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import { Pace } from "../base/pace.ts";
import type { RequestUse } from "../corpus/base/ports.ts";
import type { Awaitable, RetrievedFragment } from "../corpus/search/retrieve.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { Lowerer, LowerMessage } from "../lower/plan.ts";
import { type RequestTrace, type TraceOf, traced } from "../telemetry/tracer.ts";
import type { TokenBytes } from "../text/detokenizer.ts";
import { schemaParam } from "../tools/answer-rules.ts";
import type { CallReaderOptions } from "../tools/call-reader.ts";
import type { Grammars } from "../tools/grammars.ts";
import { openTools } from "../tools/open-tools.ts";
import { generate, type MergedEvents, mergeCompletions } from "./completion.ts";
import { checkPromptIds, checkTokenIds, completionTokens, tokenCount } from "./context-budget.ts";
import type { EndEvent } from "./events.ts";
import { type AnswerSources, planDocuments, type ReadFiles, readDocuments } from "./plan-documents.ts";
import type { AnswerParams, ChatRequest, FileSearch, PromptRequest, TextRequest } from "./requests.ts";
import { checkSparse, sparseParams } from "./sparse.ts";
import { type OpenedThinking, openThinking } from "./thinking.ts";

export interface ChatJob extends Job {
  readonly request: ChatRequest;
}

export interface TextJob extends Job {
  readonly request: TextRequest;
}

interface SubmitFacts {
  readonly readAtMs: number;
  /** The field that an error of the prompt names. */
  readonly promptParam: string;
  /** How the answers are sampled, the model's own defaults filled in. */
  readonly sampling: SamplingParams;
  readonly retrieved: readonly RetrievedFragment[];
  readonly calls?: CallReaderOptions | undefined;
  readonly goesOn?: boolean | undefined;
  readonly thinking?: OpenedThinking | undefined;
  readonly grammar?: ByteGrammar | undefined;
  /** The field that an error of the grammar names. */
  readonly schemaParam?: string | undefined;
}

interface Job {
  readonly requestId: string;
  readonly tenantId: TenantId;
  readonly signal: AbortSignal;
  /**
   * Whether the caller shows nothing before the end, so that an answer that was lost with its worker can be generated
   * again.
   */
  readonly restartable: boolean;
}

export interface ChatRun extends AnswerSources {
  readonly model: string;
  readonly retrieved: readonly RetrievedFragment[];
  readonly promptTokens: number;
  /** Whether thinking may come before the answer. */
  readonly thinks: boolean;
  /** What the answer was sampled with, the model's own defaults filled in. */
  readonly sampling: Pick<SamplingParams, "temperature" | "topP">;
  /**
   * Yields one `end` event for each choice and then ends; throws ApiError. A caller that leaves the loop aborts what
   * still runs.
   */
  readonly events: MergedEvents;
}

export interface PipelineDeps {
  readonly dispatcher: Pick<Dispatcher, "submit">;
  readonly tokenBytes: TokenBytes;
  /** The card of the served model; undefined while no worker was ever ready. */
  readonly card: () => ModelCard | undefined;
  readonly lowererFor: (card: ModelCard) => Lowerer;
  readonly grammars: Pick<Grammars, "of">;
  readonly cacheSalt: (tenantId: TenantId, subdivision: string | undefined) => CacheSalt;
  readonly retrieve: (
    tenantId: TenantId,
    query: string,
    search: FileSearch,
    signal: AbortSignal,
  ) => Awaitable<readonly RetrievedFragment[]>;
  readonly readFiles: ReadFiles;
  /** Called when a request that used retrieved fragments has ended. */
  readonly fragmentsUsed: (fragments: readonly RetrievedFragment[], use: RequestUse) => void;
  readonly requestMs: number;
  /** Absent: nothing is traced. */
  readonly traceOf?: TraceOf;
  /** Called for every run that has ended, read or not. `isFirst` is true for the first choice of its prompt. */
  readonly onRunEnd?: (tenantId: TenantId, end: EndEvent, isFirst: boolean) => void;
}

export class Pipeline {
  readonly #deps: PipelineDeps;

  constructor(deps: PipelineDeps) {
    this.#deps = deps;
  }

  /** Runs a chat request. @throws ApiError before anything runs; later failures are thrown by `events` */
  async chat(job: ChatJob): Promise<ChatRun> {
    const readAtMs = performance.now();
    const lowered = await this.#lower(job.tenantId, job.request, job);
    const { card, documents, retrieved, plan, calls, goesOn, thinking, grammar, schemaParam } = lowered;
    const sampling = samplingOf(job.request.params, card);
    const reading = { calls, goesOn, thinking, grammar, schemaParam };
    const facts = { readAtMs, promptParam: "messages", sampling, retrieved, ...reading };
    const events = await this.#submit(job, card, [plan], facts);
    const question = questionOf(job.request.messages) ?? "";
    const thinks = thinking !== undefined;
    const promptTokens = tokenCount(plan.runs);
    return { model: card.id, question, documents, retrieved, promptTokens, thinks, sampling, events };
  }

  /**
   * Runs completions of texts. Choice `i` belongs to prompt `floor(i / choiceCount)`.
   * @throws ApiError as `chat` does
   */
  async complete(job: TextJob): Promise<ChatRun> {
    const readAtMs = performance.now();
    const { model, prompts, cacheSalt } = job.request;
    const card = this.modelCard(model);
    const salt = this.#deps.cacheSalt(job.tenantId, cacheSalt);
    const plans: TokenPlan[] = [];
    for (const prompt of prompts) {
      plans.push(await textPlan(prompt, { card, lowerer: this.#deps.lowererFor(card), salt }, job.request.maxTokens));
    }
    const sampling = samplingOf(job.request.params, card);
    const events = await this.#submit(job, card, plans, { readAtMs, promptParam: "prompt", sampling, retrieved: [] });
    const promptTokens = plans.reduce((sum, plan) => sum + tokenCount(plan.runs), 0);
    const nothing = { question: "", documents: [], retrieved: [], thinks: false };
    return { model: card.id, ...nothing, promptTokens, sampling, events };
  }

  /** The token ids of a text as `complete` would read it. @throws ApiError */
  async encodeText(tenantId: TenantId, text: string, withOpening: boolean): Promise<Int32Array> {
    const card = this.modelCard(undefined);
    const salt = this.#deps.cacheSalt(tenantId, undefined);
    return await this.#deps.lowererFor(card).encodeText(text, salt, withOpening);
  }

  /**
   * The token ids of the whole prompt that this chat request would have.
   * @throws ApiError as `chat` does for a prompt
   */
  async promptTokenIds(tenantId: TenantId, request: PromptRequest): Promise<readonly number[]> {
    const { plan } = await this.#lower(tenantId, request);
    return plan.runs.flatMap((run) => [...run.tokenIds]);
  }

  /** Runs each plan `choiceCount` times. @throws ApiError when any run is refused; then all other runs are aborted */
  async #submit(
    { requestId, tenantId, request, signal: outer, restartable }: ChatJob | TextJob,
    card: ModelCard,
    plans: readonly TokenPlan[],
    { readAtMs, promptParam, sampling, retrieved, grammar, thinking, schemaParam, calls, goesOn }: SubmitFacts,
  ): Promise<MergedEvents> {
    const asked = { wanted: request.maxTokens, promptParam, wantedParam: "max_tokens" };
    const runs = plans.map((plan) => ({ plan, maxTokens: completionTokens(card, plan, asked) }));
    checkTokenIds(card, { ...request.params, sampling });
    checkSparse(card, request.sparse, "spangate.sparse");
    const ender = new AbortController();
    const signal = AbortSignal.any([outer, ender.signal]);
    const submit = ({ plan, maxTokens }: (typeof runs)[number], index: number) =>
      generate(this.#deps.dispatcher, this.#deps.tokenBytes, {
        requestId: `${requestId}.${index}`,
        tenantId,
        plan,
        // Each choice of a request draws from its own stream of random numbers.
        params: {
          ...request.params,
          sampling: { ...sampling, seed: sampling.seed + (index % request.choiceCount) },
          maxTokens,
          grammar,
          thinking: thinking?.limit,
        },
        stops: request.stops,
        calls,
        reasoning: thinking?.reading,
        goesOn,
        reuse: request.reuse,
        retention: request.retention,
        sparse: sparseParams(card, request.sparse, plan),
        // All choices share the prompt, so only the first one reports why KV was not found.
        diagnose: request.diagnose && index % request.choiceCount === 0,
        readAtMs,
        deadlineMs: this.#deps.requestMs,
        signal,
        restartable,
        affinity: `${tenantId} ${request.cacheKey ?? ""}`,
        onRunEnd: (end) => this.#deps.onRunEnd?.(tenantId, end, index % request.choiceCount === 0),
      });
    const completions: ReturnType<typeof generate>[] = [];
    try {
      const all = runs.flatMap((run) => Array.from({ length: request.choiceCount }, () => run));
      const pace = new Pace();
      for (const [index, run] of all.entries()) {
        completions.push(submit(run, index));
        await pace.breathe();
      }
    } catch (error) {
      // The choices before the refused one run already, so they are aborted.
      ender.abort();
      throw error;
    }
    return mergeCompletions(() => completions, {
      onError: (error) => throwNamed(error, schemaParam),
      onEnd: () => {
        // With a reason of its own: without one, each answer's end would make an exception with its stack.
        ender.abort(answerEnded);
        if (retrieved.length > 0)
          this.#deps.fragmentsUsed(retrieved, { tenantId, retention: request.retention, readAtMs });
      },
    });
  }

  /**
   * The number of tokens of the prompt that this chat request would have.
   * @throws ApiError as `chat` does for a prompt
   */
  async countTokens(tenantId: TenantId, request: PromptRequest): Promise<number> {
    const { plan } = await this.#lower(tenantId, request);
    return tokenCount(plan.runs);
  }

  /** Whether this model's thinking can be told from its answers, and so be bounded. @throws ApiError as `modelCard` */
  marksThinking(model: string | undefined): boolean {
    return this.#deps.lowererFor(this.modelCard(model)).templateFacts.reasoning !== undefined;
  }

  /** Whether the template may show what an assistant thought before an earlier message. @throws ApiError as `modelCard` */
  showsThinking(model: string | undefined): boolean {
    return this.#deps.lowererFor(this.modelCard(model)).templateFacts.showsThinking;
  }

  /** The names among these that the model's chat template does not read. @throws ApiError not_ready, model_not_found */
  unreadVariables(model: string | undefined, names: readonly string[]): readonly string[] {
    const { templateFacts } = this.#deps.lowererFor(this.modelCard(model));
    return names.filter((name) => !templateFacts.reads(name));
  }

  /** The card of the served model. An undefined name accepts any model. @throws ApiError not_ready, model_not_found */
  modelCard(name: string | undefined): ModelCard {
    const card = this.#deps.card();
    if (card === undefined) throw new ApiError("not_ready", { retryAfterS: 2 });
    if (name === undefined || card.id === name) return card;
    throw new ApiError("model_not_found", {
      message: `The model '${name.slice(0, 64)}' does not exist.`,
      param: "model",
    });
  }

  /**
   * Lowers a prompt.
   * @param answer the limits and format of the answer; absent: nothing is generated, so no grammar is made
   */
  async #lower(tenantId: TenantId, request: PromptRequest, answer?: ChatJob) {
    const trace = answer && this.#deps.traceOf?.(answer.requestId);
    const card = this.modelCard(request.model);
    const lowerer = this.#deps.lowererFor(card);
    const salt = this.#deps.cacheSalt(tenantId, request.cacheSalt);
    const opened = openTools(request, lowerer.templateFacts, salt, answer?.request.format);
    const { messages, tools, reading } = opened;
    const thinking = answer && openThinking(lowerer, messages, answer.request);
    const rules = opened.rules && { ...opened.rules, ...(thinking?.mayThink ? { thinking: thinking.reading } : {}) };
    // A schema that cannot be enforced is refused before any corpus is searched.
    const compile = answer && rules && (() => this.#deps.grammars.of(tenantId, rules, answer.signal));
    const grammar = compile && (await traced(trace, "grammar", compile));
    const signal = answer?.signal ?? AbortSignal.timeout(this.#deps.requestMs);
    const documents = await readDocuments(
      request.documents,
      async (files) => await traced(trace, "reading", () => this.#deps.readFiles(tenantId, files, signal)),
    );
    const retrieved = await this.#retrieve(tenantId, request, signal, trace);
    const saltOfFile = (fileId: FileId) => this.#deps.cacheSalt(tenantId, saltNameOfFile(fileId));
    const shown = planDocuments(documents, retrieved, salt, saltOfFile);
    const { attention, continuesLast, variables } = request;
    const prompt = { messages, tools, continuesLast, variables, documents: shown, salt, attention };
    const lower = async (): Promise<TokenPlan> => {
      await lowerer.warm(prompt, answer !== undefined);
      return lowerer.lower(prompt);
    };
    return {
      card,
      documents,
      retrieved,
      calls: reading,
      thinking,
      goesOn: continuesLast,
      grammar,
      schemaParam: rules && schemaParam(rules),
      plan: await traced(trace, "lowering", lower),
    };
  }

  async #retrieve(
    tenantId: TenantId,
    request: PromptRequest,
    signal: AbortSignal,
    trace: RequestTrace | undefined,
  ): Promise<readonly RetrievedFragment[]> {
    if (request.fileSearch === undefined) return [];
    const question = questionOf(request.messages);
    if (question === undefined) {
      throw new ApiError("invalid_value", {
        message: "file_search searches for the last user message, and there is none with text.",
        param: "messages",
      });
    }
    try {
      const { fileSearch } = request;
      const found = (fragments: readonly RetrievedFragment[]) => ({ "spangate.fragments": fragments.length });
      const retrieve = () => this.#deps.retrieve(tenantId, question, fileSearch, signal);
      return await traced(trace, "retrieval", retrieve, found);
    } catch (error) {
      // The corpus side names its own argument in an error; for the caller that argument is a part of file_search.
      if (!(error instanceof ApiError) || error.param === undefined) throw error;
      throw new ApiError(error.code, { message: error.message, param: `file_search.${error.param}`, cause: error });
    }
  }
}

/**
 * Throws the error with the caller's name for the field.
 * @param schemaParam the request's field that the grammar is made from, if any
 */
function throwNamed(error: unknown, schemaParam: string | undefined): never {
  const isNamed = error instanceof ApiError && error.code === "schema_too_ambiguous" && schemaParam !== undefined;
  throw isNamed ? new ApiError(error.code, { param: schemaParam, cause: error }) : error;
}

/**
 * An upload's text in prompts has a salt of its own within the tenant's, so that it is found whatever the request's
 * `cache_salt`, and all that was computed from it can be evicted by one key when the file is deleted.
 */
export const saltNameOfFile = (fileId: FileId): string => `file ${fileId}`;

/** The text that file_search searches for: the last user message. undefined: no user message has text. */
export function questionOf(messages: readonly LowerMessage[]): string | undefined {
  return messages.findLast((message) => message.role === "user")?.content.trim() || undefined;
}

/** How a request is sampled: as it says itself, else as the model's folder does, else as OpenAI's API does. */
function samplingOf({ sampling: asked }: AnswerParams, { samplingDefaults: folder = {} }: ModelCard): SamplingParams {
  return {
    ...asked,
    temperature: asked.temperature ?? folder.temperature ?? 1,
    topP: asked.topP ?? folder.topP ?? 1,
    topK: asked.topK ?? folder.topK ?? 0,
    minP: asked.minP ?? folder.minP ?? 0,
    repetitionPenalty: asked.repetitionPenalty ?? folder.repetitionPenalty ?? 1,
  };
}

const answerEnded = "the answer has ended";

interface TextPlanParts {
  readonly card: ModelCard;
  readonly lowerer: Pick<Lowerer, "lowerText">;
  readonly salt: CacheSalt;
}

/**
 * The plan of a prompt that is given as a text or as token ids, without a chat template.
 * @param wanted tokens of the completion; undefined: as many as fit
 * @throws ApiError invalid_value; context_length_exceeded before the request's other prompts are encoded
 */
async function textPlan(
  prompt: string | readonly number[],
  { card, lowerer, salt }: TextPlanParts,
  wanted: number | undefined,
): Promise<TokenPlan> {
  if (typeof prompt !== "string") checkPromptIds(card, prompt);
  const plan = await lowerer.lowerText(prompt, salt);
  if (tokenCount(plan.runs) === 0) {
    throw new ApiError("invalid_value", { message: "A prompt needs at least one token.", param: "prompt" });
  }
  completionTokens(card, plan, { wanted, promptParam: "prompt", wantedParam: "max_tokens" });
  return plan;
}
