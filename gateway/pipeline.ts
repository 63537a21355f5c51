/** One request on one screen: resolve, lower, dispatch, detokenize. The only place where text, corpora and workers meet. */
import type { ByteGrammar } from "../worker/contract/grammar.ts";
import type { GenerateParams, TokenPlan } from "../worker/contract/messages.ts";
import type { ModelCard } from "../worker/contract/model-card.ts";
import type { RetentionTime } from "../worker/contract/owners.ts";
import type { CacheSalt } from "../worker/contract/units.ts";
import type { Awaitable, HybridWeights, RetrievedFragment } from "./corpus/retrieve.ts";
import type { Dispatcher } from "./dispatch/dispatcher.ts";
import { ApiError } from "./errors.ts";
import { type CompletionEvent, type EndEvent, generate, mergeCompletions } from "./generation.ts";
import type { TokenBytes } from "./lower/detokenizer.ts";
import type { LowerDocument, Lowerer, LowerMessage } from "./lower/plan.ts";
import { completionTokens, tokenCount } from "./room.ts";
import { traced } from "./telemetry/tracer.ts";
import { checkPromptIds, checkTokenIds } from "./token-checks.ts";
import type { CallReaderOptions } from "./tools/call-reader.ts";
import { openTools } from "./tools/open-tools.ts";
import type { ToolUse } from "./tools/tool-use.ts";

export interface FileSearch {
  readonly vectorStoreIds: readonly string[];
  readonly maxResults: number;
  readonly filters?: unknown;
  readonly scoreThreshold?: number | undefined;
  readonly weights?: HybridWeights | undefined;
}

/** What a prompt is made of. */
export interface PromptRequest {
  readonly model: string;
  readonly messages: readonly LowerMessage[];
  /** undefined: none is shown, and none is called. */
  readonly tools?: ToolUse | undefined;
  readonly documents: readonly { readonly id: string; readonly text: string; readonly title?: string | undefined }[];
  readonly fileSearch: FileSearch | undefined;
  readonly cacheSalt: string | undefined;
  readonly attention: "span" | "full";
}

/** A chat request, checked and with its defaults filled in. */
export interface ChatRequest extends PromptRequest {
  /** undefined: as many as the context has room for. */
  readonly maxTokens: number | undefined;
  readonly params: Omit<GenerateParams, "maxTokens">;
  readonly choiceCount: number;
  readonly stops: readonly string[];
  readonly cacheKey: string | undefined;
  readonly reuse: boolean;
  /** How long its KV is to be kept after this use; absent: as long as there is room. */
  readonly retention?: RetentionTime | undefined;
  /** The answer is to tell why KV was not found. */
  readonly diagnose: boolean;
}

/** A text-completion request, checked and with its defaults filled in. */
export interface TextRequest extends Omit<ChatRequest, Exclude<keyof PromptRequest, "model" | "cacheSalt">> {
  readonly prompts: readonly (string | readonly number[])[];
}

export interface ChatJob extends Job {
  readonly request: ChatRequest;
}

export interface TextJob extends Job {
  readonly request: TextRequest;
}

interface SubmitFacts {
  readonly readAtMs: number;
  /** What an error names. */
  readonly promptParam: string;
  readonly retrieved: readonly RetrievedFragment[];
  readonly calls?: CallReaderOptions | undefined;
}

interface Job {
  readonly requestId: string;
  readonly tenantId: string;
  readonly signal: AbortSignal;
  /** The caller shows nothing before the end, so a lost worker's part of the answer can be made again. */
  readonly restartable: boolean;
}

export interface ChatRun {
  readonly model: string;
  readonly retrieved: readonly RetrievedFragment[];
  readonly promptTokens: number;
  /** Ends after one `end` event per choice; throws ApiError. Leaving the loop aborts what still runs. */
  readonly events: AsyncGenerator<readonly [index: number, event: CompletionEvent], void>;
}

export interface PipelineDeps {
  readonly dispatcher: Pick<Dispatcher, "submit">;
  readonly tokenBytes: TokenBytes;
  /** undefined while no worker was ever ready. */
  readonly card: () => ModelCard | undefined;
  readonly lowererFor: (card: ModelCard) => Lowerer;
  readonly cacheSalt: (tenantId: string, subdivision: string | undefined) => CacheSalt;
  readonly retrieve: (tenantId: string, query: string, search: FileSearch) => Awaitable<readonly RetrievedFragment[]>;
  /** Called when a request that used retrieved fragments has ended. */
  readonly fragmentsUsed: (fragments: readonly RetrievedFragment[]) => void;
  readonly requestMs: number;
  /** Told of every run that has ended, read or not; `isFirst` of the first choice of its prompt. */
  readonly onRunEnd?: (tenantId: string, end: EndEvent, isFirst: boolean) => void;
}

export class Pipeline {
  readonly #deps: PipelineDeps;

  constructor(deps: PipelineDeps) {
    this.#deps = deps;
  }

  /** @throws ApiError before anything runs; what fails later is thrown by `events` */
  async chat(job: ChatJob): Promise<ChatRun> {
    const readAtMs = performance.now();
    const { card, retrieved, plan, opened } = await this.#lower(job.tenantId, job.request, job.request.params.grammar);
    const { reading: calls, grammar } = opened;
    const request = { ...job.request, params: { ...job.request.params, grammar } };
    const facts = { readAtMs, promptParam: "messages", retrieved, calls };
    const events = this.#submit({ ...job, request }, card, [plan], facts);
    return { model: card.id, retrieved, promptTokens: tokenCount(plan.runs), events };
  }

  /** Completions of texts; choice `i` is of prompt `i / choiceCount`. @throws ApiError as `chat` does */
  async complete(job: TextJob): Promise<ChatRun> {
    const readAtMs = performance.now();
    const { model, prompts, cacheSalt } = job.request;
    const card = this.modelCard(model);
    const salt = this.#deps.cacheSalt(job.tenantId, cacheSalt);
    const lowerer = this.#deps.lowererFor(card);
    const plans: TokenPlan[] = [];
    for (const prompt of prompts) {
      if (typeof prompt !== "string") checkPromptIds(card, prompt);
      const plan = await lowerer.lowerText(prompt, salt);
      if (tokenCount(plan.runs) === 0) {
        throw new ApiError("invalid_value", { message: "A prompt needs at least one token.", param: "prompt" });
      }
      plans.push(plan);
    }
    const events = this.#submit(job, card, plans, { readAtMs, promptParam: "prompt", retrieved: [] });
    const promptTokens = plans.reduce((sum, plan) => sum + tokenCount(plan.runs), 0);
    return { model: card.id, retrieved: [], promptTokens, events };
  }

  /** Ids of a text as `complete` takes it. @throws ApiError */
  async encodeText(tenantId: string, text: string, withOpening: boolean): Promise<Int32Array> {
    const card = this.modelCard(undefined);
    const salt = this.#deps.cacheSalt(tenantId, undefined);
    return await this.#deps.lowererFor(card).encodeText(text, salt, withOpening);
  }

  /** Ids of the whole prompt that a chat with this request would have. @throws ApiError as `chat` does for a prompt */
  async promptTokenIds(tenantId: string, request: PromptRequest): Promise<readonly number[]> {
    const { plan } = await this.#lower(tenantId, request);
    return plan.runs.flatMap((run) => [...run.tokenIds]);
  }

  /** Runs each plan `choiceCount` times. @throws ApiError when one of them is refused; none of the others goes on */
  #submit(
    { requestId, tenantId, request, signal: outer, restartable }: ChatJob | TextJob,
    card: ModelCard,
    plans: readonly TokenPlan[],
    { readAtMs, promptParam, retrieved, calls }: SubmitFacts,
  ): ChatRun["events"] {
    const asked = { wanted: request.maxTokens, promptParam, wantedParam: "max_tokens" };
    const runs = plans.map((plan) => ({ plan, maxTokens: completionTokens(card, plan, asked) }));
    checkTokenIds(card, request.params);
    const ender = new AbortController();
    const signal = AbortSignal.any([outer, ender.signal]);
    const submit = ({ plan, maxTokens }: (typeof runs)[number], index: number) =>
      generate(this.#deps.dispatcher, this.#deps.tokenBytes, {
        requestId: `${requestId}.${index}`,
        tenantId,
        plan,
        params: { ...forChoice(request.params, index % request.choiceCount), maxTokens },
        stops: request.stops,
        calls,
        reuse: request.reuse,
        retention: request.retention,
        // Choices share the prompt: the first tells what became of it.
        diagnose: request.diagnose && index % request.choiceCount === 0,
        readAtMs,
        deadlineMs: this.#deps.requestMs,
        signal,
        restartable,
        affinity: `${tenantId} ${request.cacheKey ?? ""}`,
        onRunEnd: (end) => this.#deps.onRunEnd?.(tenantId, end, index % request.choiceCount === 0),
      });
    let completions: readonly ReturnType<typeof generate>[];
    try {
      const all = runs.flatMap((run) => Array.from({ length: request.choiceCount }, () => run));
      completions = all.map(submit);
    } catch (error) {
      // The choices before the one that was refused run already.
      ender.abort();
      throw error;
    }
    return this.#untilEnd(mergeCompletions(completions), ender, retrieved);
  }

  /** Tokens of the prompt that a chat with this request would have. @throws ApiError as `chat` does for a prompt */
  async countTokens(tenantId: string, request: PromptRequest): Promise<number> {
    const { plan } = await this.#lower(tenantId, request);
    return tokenCount(plan.runs);
  }

  /** Card of the model that is served under this name, or under any. @throws ApiError not_ready, model_not_found */
  modelCard(name: string | undefined): ModelCard {
    const card = this.#deps.card();
    if (card === undefined) throw new ApiError("not_ready", { retryAfterS: 2 });
    if (name === undefined || card.id === name) return card;
    throw new ApiError("model_not_found", {
      message: `The model '${name.slice(0, 64)}' does not exist.`,
      param: "model",
    });
  }

  async #lower(tenantId: string, request: PromptRequest, format?: ByteGrammar) {
    const card = this.modelCard(request.model);
    const lowerer = this.#deps.lowererFor(card);
    const salt = this.#deps.cacheSalt(tenantId, request.cacheSalt);
    // What cannot be kept of a tool is refused before anything is searched for.
    const opened = openTools(request, lowerer.templateFacts, salt, format);
    const retrieved = await this.#retrieve(tenantId, request);
    const documents = planDocuments(request, retrieved, salt);
    const { messages, tools } = opened;
    const prompt = { messages, tools, documents, salt, attention: request.attention };
    const lower = async (): Promise<TokenPlan> => {
      await lowerer.warm(prompt);
      return lowerer.lower(prompt);
    };
    return { card, retrieved, opened, plan: await traced("lowering", lower) };
  }

  async #retrieve(tenantId: string, request: PromptRequest): Promise<readonly RetrievedFragment[]> {
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
      return await traced("retrieval", () => this.#deps.retrieve(tenantId, question, fileSearch), countOf);
    } catch (error) {
      // The corpus side names its own argument; here that is a part of file_search.
      if (!(error instanceof ApiError) || error.param === undefined) throw error;
      throw new ApiError(error.code, { message: error.message, param: `file_search.${error.param}`, cause: error });
    }
  }

  async *#untilEnd(
    events: ChatRun["events"],
    ender: AbortController,
    retrieved: readonly RetrievedFragment[],
  ): ChatRun["events"] {
    try {
      yield* events;
    } finally {
      ender.abort();
      if (retrieved.length > 0) this.#deps.fragmentsUsed(retrieved);
    }
  }
}

const countOf = (found: readonly RetrievedFragment[]) => ({ "spangate.fragments": found.length });

/** What file_search searches for: the last user message. undefined: there is none with text. */
export function questionOf(messages: readonly LowerMessage[]): string | undefined {
  return messages.findLast((message) => message.role === "user")?.content.trim() || undefined;
}

/** Documents of the request with the tenant's salt, then fragments with their corpora's, best first. */
function planDocuments(
  request: PromptRequest,
  retrieved: readonly RetrievedFragment[],
  salt: CacheSalt,
): readonly LowerDocument[] {
  const own = request.documents.map((document) => ({ ...document, salt }));
  return [...own, ...retrieved.map(({ id, text, salt: corpusSalt }) => ({ id, text, salt: corpusSalt }))];
}

/** Choices of one request draw from different streams of random numbers. */
function forChoice(params: Omit<GenerateParams, "maxTokens">, index: number): Omit<GenerateParams, "maxTokens"> {
  if (index === 0) return params;
  return { ...params, sampling: { ...params.sampling, seed: params.sampling.seed + index } };
}
