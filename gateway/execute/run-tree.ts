/**
 * Runs the generates of a query. Each runs once, as soon as the outputs in its prompt are there, in parallel with all
 * others that can run. Meanwhile the rest of its prompt is prepared. Outputs enter other prompts as token ids.
 */
import type { TenantId } from "../../db/ids.ts";
import { prepareOnly } from "../../worker/contract/greedy-sampling.ts";
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { Pace } from "../base/pace.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import { Placement } from "../dispatch/request/placement.ts";
import type { DispatchRequest, FinishedEvent } from "../dispatch/request/request.ts";
import { generate } from "../generate/completion.ts";
import { completionTokens } from "../generate/context-budget.ts";
import type { CompletionEvent, EndEvent } from "../generate/events.ts";
import { sparseParams } from "../generate/sparse.ts";
import type { LowerDocument } from "../lower/plan.ts";
import type { GeneratedOutput, LoweredGenerate, QueryContext } from "../lower/query-context.ts";
import type { Generate, Repeat } from "../query/ir.ts";
import { type RequestTrace, traced } from "../telemetry/tracer.ts";
import type { TokenBytes } from "../text/detokenizer.ts";
import { atPath } from "./located.ts";
import { outputTokens } from "./output-tokens.ts";
import { generateParams, randomSeed } from "./params.ts";
import {
  generateOf,
  type Inner,
  innerOfSpans,
  inputPlace,
  type PromptParts,
  promptParts,
  sampleCount,
} from "./prompt-parts.ts";
import { asShown, TreeReport } from "./report.ts";
import { Slots } from "./slots.ts";

/** The part of the lowerer that the executor uses. */
export interface QueryLowering {
  lowerInSlices(node: Generate, context: QueryContext, path: string): Promise<LoweredGenerate>;
  /** The runs that depend on no output, as a plan of their own. undefined: there are none. */
  preparable(lowered: LoweredGenerate): TokenPlan | undefined;
}

export interface TreeDeps {
  readonly dispatcher: Pick<Dispatcher, "submit">;
  readonly tokenBytes: TokenBytes;
  readonly card: ModelCard;
  readonly lowerer: QueryLowering;
  /** How many requests of one tree run on workers at the same time. */
  readonly concurrency: number;
  /** The value for `max_tokens: 0`, where the context has space for that many. */
  readonly defaultTokens: number;
  /** Called with the end of a run that nobody waits for any more. */
  readonly onLateEnd?: ((tenantId: TenantId, end: EndEvent) => void) | undefined;
}

export interface TreeJob {
  readonly requestId: string;
  readonly tenantId: TenantId;
  readonly salt: CacheSalt;
  /** The query's fragments by id. More may be added until the tree is run. */
  readonly fragments: ReadonlyMap<string, LowerDocument>;
  /** false: the outermost generates compute their whole prompts (the baseline of measurements). */
  readonly reuse: boolean;
  /** true: the report says why KV was not found. */
  readonly diagnose?: boolean | undefined;
  /** true: the caller shows nothing before the end, so a failed run may start again. */
  readonly restartable: boolean;
  /** Aborts all runs of the tree. */
  readonly signal: AbortSignal;
  /** When the query arrived, on the clock of performance.now() like all ends; no text was read before. */
  readonly startMs: number;
  readonly endMs: number;
  readonly affinity: string;
  readonly trace?: RequestTrace | undefined;
}

/** A generate that can be submitted now. */
interface Ready {
  readonly lowered: LoweredGenerate;
  readonly maxTokens: number;
  readonly seed: number;
}

type Submission = Pick<DispatchRequest, "plan" | "params" | "reuse" | "restartable" | "closeTokenIds" | "sparse">;

export class TreeRun {
  readonly report: TreeReport;
  readonly #deps: TreeDeps;
  readonly #job: TreeJob;
  readonly #slots: Slots;
  readonly #lowering = new Slots(1);
  readonly #pace = new Pace();
  readonly #placement = new Placement();
  readonly #started = new Map<Generate | Repeat, Promise<readonly GeneratedOutput[]>>();
  readonly #outputs = new Map<Generate | Repeat, readonly GeneratedOutput[]>();
  #requestCount = 0;

  constructor(deps: TreeDeps, job: TreeJob) {
    this.#deps = deps;
    this.#job = job;
    this.#slots = new Slots(deps.concurrency);
    this.report = new TreeReport((end) => deps.onLateEnd?.(job.tenantId, end));
  }

  /**
   * Runs what the outermost generate needs, then starts its samples; each sample is a stream of events.
   * @throws ApiError naming a node by its path. The caller must then abort the job's signal.
   */
  async choices(outer: Inner): Promise<readonly AsyncGenerator<CompletionEvent, void>[]> {
    const starting = this.#located(outer, () => this.#ready(outer, this.#job.reuse));
    const order = this.report.reserve(sampleCount(outer.node));
    const ready = await starting;
    return order.map((slot, index) => this.#choice(outer, ready, slot, index));
  }

  /** Outputs of an inner generate. Each object runs once, so all calls with it get the same promise. */
  outputs(inner: Inner): Promise<readonly GeneratedOutput[]> {
    const started = this.#started.get(inner.node);
    if (started !== undefined) return started;
    const outputs = this.#located(inner, () => this.#generate(inner));
    // Whoever needs the outputs awaits them. When the tree has already failed, nobody does.
    outputs.catch(() => undefined);
    this.#started.set(inner.node, outputs);
    return outputs;
  }

  /** Computes and keeps the KV of a generate's prompt, except for unknown outputs. */
  async prepare(node: Generate, path: string): Promise<FinishedEvent | undefined> {
    try {
      return await this.#compute(await this.#lower(node, path));
    } catch (error) {
      throw atPath(error, path);
    }
  }

  /** Computes and keeps these inputs as children of a commutative join, for the prompts that will read them. */
  async prepareSpans(node: Generate, spans: PromptParts["spans"], path: string): Promise<FinishedEvent | undefined> {
    const children = spans.map(({ input }) => input);
    return await this.prepare({ kind: "generate", options: node.options, input: { kind: "plus", children } }, path);
  }

  /** Context for lowering in which outputs that do not exist yet are stand-ins. */
  context(): QueryContext {
    const { salt, fragments } = this.#job;
    return { salt, fragments, outputs: (node) => this.#outputs.get(node) ?? this.#standIns(node) };
  }

  async #generate(inner: Inner): Promise<readonly GeneratedOutput[]> {
    const { node, path, place } = inner;
    const starting = this.#ready(inner, true);
    const order = this.report.reserve(sampleCount(node));
    const { lowered, maxTokens, seed } = await starting;
    const { plan, closeTokenIds } = lowered;
    const { options } = generateOf(node);
    const sparse = sparseParams(this.#deps.card, options.sparse, plan);
    const sample = async (slot: number, index: number): Promise<GeneratedOutput> => {
      const params = generateParams(options, maxTokens, seed, index, path);
      const submission = { plan, params, reuse: true, restartable: true, closeTokenIds, sparse };
      const onRunEnd = (end: EndEvent): void =>
        this.report.ended(slot, { path, place, index, end: asShown(end, lowered.promptTokens) });
      const { tokenIds } = await this.#submitOutput(submission, options.stop ?? [], onRunEnd);
      return { tokenIds, known: true };
    };
    const outputs = await Promise.all(order.map(sample));
    this.#outputs.set(node, outputs);
    return outputs;
  }

  /** @param ahead true: computes the known part of the prompt while its inner generates run */
  async #ready(inner: Inner, ahead: boolean): Promise<Ready> {
    const { card, defaultTokens } = this.#deps;
    const node = generateOf(inner.node);
    await this.#runNeeded(inner, node, ahead);
    const lowered = await this.#lower(node, inner.path);
    const { maxTokens: wanted, seed = randomSeed() } = node.options;
    const room = completionTokens(card, lowered.plan, {
      wanted: wanted === 0 ? undefined : wanted,
      closeTokens: lowered.closeTokenIds.length,
      promptParam: inner.path,
      wantedParam: `${inner.path}.g.max_tokens`,
    });
    return { lowered, seed, maxTokens: wanted === 0 ? Math.min(room, defaultTokens) : wanted };
  }

  /** Lowers one generate at a time, in the order of the calls. A wide tree yields, and its inner prompts come first. */
  async #lower(node: Generate, path: string): Promise<LoweredGenerate> {
    const { lowerer } = this.#deps;
    using _hold = await this.#lowering.enter(this.#job.signal);
    await this.#pace.breathe();
    return await traced(this.#job.trace, "lowering", () => lowerer.lowerInSlices(node, this.context(), path));
  }

  /** Runs inner generates and effects, and meanwhile computes the part of the prompt that needs none of them. */
  async #runNeeded(inner: Inner, node: Generate, ahead: boolean): Promise<void> {
    const { inner: needed, effects, spans } = promptParts(node.input, inputPlace(inner));
    const runs: Promise<unknown>[] = [...needed, ...effects].map((one) => this.outputs(one));
    if (spans.length > 0) runs.push(this.#runSpans(node, spans, inner.path));
    if (needed.length > 0) runs.push(this.#lookAhead(node, inner.path, ahead));
    await Promise.all(runs);
  }

  /** Runs the generates whose outputs stand in the spans, then computes the spans. */
  async #runSpans(node: Generate, spans: PromptParts["spans"], path: string): Promise<void> {
    await Promise.all(innerOfSpans(spans).map((inner) => this.outputs(inner)));
    await this.prepareSpans(node, spans, path);
  }

  /** Lowers the prompt with stand-ins, so that a prompt which can never fit fails before its inner generates run. */
  async #lookAhead(node: Generate, path: string, computes: boolean): Promise<void> {
    const lowered = await this.#lower(node, path);
    // An error while computing ahead comes again when the prompt itself is run, so it is ignored here.
    if (computes) await this.#compute(lowered).catch(() => undefined);
  }

  /** Computes and keeps the runs that depend on no unknown output. */
  async #compute(lowered: LoweredGenerate): Promise<FinishedEvent | undefined> {
    const plan = this.#deps.lowerer.preparable(lowered);
    if (plan === undefined) return undefined;
    const { end } = await this.#submitOutput({ plan, params: prepareOnly, reuse: true }, []);
    this.report.prepared(end.report);
    return end.report;
  }

  async *#choice(outer: Inner, ready: Ready, slot: number, index: number): AsyncGenerator<CompletionEvent, void> {
    const { dispatcher, tokenBytes, card } = this.#deps;
    const { reuse, restartable } = this.#job;
    const { options } = generateOf(outer.node);
    using _hold = await this.#slots.enter(this.#job.signal);
    try {
      const params = generateParams(options, ready.maxTokens, ready.seed, index, outer.path);
      const { plan } = ready.lowered;
      const sparse = sparseParams(card, options.sparse, plan);
      const request = this.#request({ plan, params, reuse, restartable, sparse });
      const shown = (end: EndEvent): EndEvent => asShown(end, ready.lowered.promptTokens);
      const onRunEnd = (end: EndEvent): void =>
        this.report.outerEnded(slot, { path: outer.path, place: outer.place, index, end: shown(end) });
      const reading = { stops: options.stop ?? [], reasoning: ready.lowered.reasoning };
      for await (const event of generate(dispatcher, tokenBytes, { ...request, ...reading, onRunEnd })) {
        yield event.type === "end" ? shown(event) : event;
      }
    } catch (error) {
      throw atPath(error, outer.path);
    }
  }

  async #submitOutput(submission: Submission, stops: readonly string[], onRunEnd?: (end: EndEvent) => void) {
    using _hold = await this.#slots.enter(this.#job.signal);
    const { dispatcher, tokenBytes } = this.#deps;
    return await outputTokens(dispatcher, tokenBytes, { ...this.#request(submission), stops, onRunEnd });
  }

  #request(submission: Submission) {
    const { requestId, tenantId, signal, startMs, endMs, affinity, diagnose } = this.#job;
    const deadlineMs = Math.max(1, endMs - performance.now());
    this.#requestCount += 1;
    const shared = { tenantId, readAtMs: startMs, deadlineMs, signal, affinity, diagnose, placement: this.#placement };
    const restartable = submission.restartable ?? true;
    return { ...submission, ...shared, restartable, requestId: `${requestId}.${this.#requestCount}` };
  }

  #standIns(node: Generate | Repeat): readonly GeneratedOutput[] {
    const { maxTokens } = generateOf(node).options;
    const { card, defaultTokens } = this.#deps;
    const tokenIds = new Int32Array(Math.min(maxTokens === 0 ? defaultTokens : maxTokens, card.contextTokens));
    return Array.from({ length: sampleCount(node) }, () => ({ tokenIds, known: false }));
  }

  async #located<T>(inner: Inner, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      throw atPath(error, inner.path);
    }
  }
}
