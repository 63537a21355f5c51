/** Runs, prepares and explains tenants' span queries. This class shows the whole way of a query. */
import type { z } from "zod";
import type { TenantId } from "../../db/ids.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import { Pace } from "../base/pace.ts";
import { limits } from "../config.ts";
import type { RequestUse } from "../corpus/base/ports.ts";
import type { Awaitable } from "../corpus/search/retrieve.ts";
import { type MergedEvents, mergeCompletions } from "../generate/completion.ts";
import type { AnswerSources } from "../generate/plan-documents.ts";
import type { QueryContext } from "../lower/query-context.ts";
import type { Query } from "../query/ir.ts";
import type { FragmentUse } from "../query/planner.ts";
import { type Rewritten, rewriteInSteps } from "../query/rules/rewrite.ts";
import { type TraceOf, traced } from "../telemetry/tracer.ts";
import { textOfTokens } from "../text/detokenizer.ts";
import { checkQuery, choiceCount, outermostOf } from "./check-query.ts";
import { type Explanation, explain, type Residents } from "./explain.ts";
import { markOrigins } from "./origins.ts";
import { type PreparedSpans, prepareTree } from "./prepare-tree.ts";
import { allRuns, generateOf, type Inner } from "./prompt-parts.ts";
import type { TreeReport } from "./report.ts";
import { type FoundFragment, Resolver, type Search, type Sources } from "./resolve.ts";
import { type QueryLowering, type TreeDeps, type TreeJob, TreeRun } from "./run-tree.ts";
import { sourcesOfChoices } from "./sources.ts";

export interface QueryJob
  extends Pick<TreeJob, "requestId" | "tenantId" | "reuse" | "diagnose" | "restartable" | "signal"> {
  readonly query: Query;
}

export interface QueryRun {
  readonly model: string;
  readonly choiceCount: number;
  /** The answer's events, with one `end` for each choice. Nothing runs before the first is read. Throws ApiError. */
  readonly events: MergedEvents;
  readonly report: TreeReport;
  /** What each choice may rest on. Call when `events` have ended. */
  readonly sources: () => Promise<readonly AnswerSources[]>;
}

export interface QueryServiceDeps extends Pick<TreeDeps, "dispatcher" | "tokenBytes" | "onLateEnd"> {
  /** The model's card. undefined: no worker has been ready yet. */
  readonly card: () => ModelCard | undefined;
  readonly lowererFor: (card: ModelCard) => QueryLowering;
  readonly cacheSalt: (tenantId: TenantId) => CacheSalt;
  readonly retrieve: (tenantId: TenantId, search: Search, signal: AbortSignal) => Awaitable<readonly FoundFragment[]>;
  readonly fragments: (tenantId: TenantId, ids: readonly string[]) => readonly (FoundFragment | undefined)[];
  /** Called with the fragments that a query has used, when it has ended. */
  readonly fragmentsUsed: (fragments: readonly FoundFragment[], use: RequestUse) => void;
  readonly countTokens: (text: string) => number;
  /** Schema of a retrieve's filters. */
  readonly filters: z.ZodType;
  readonly residents: Residents;
  readonly reduceArity: number | undefined;
  /** Absent: nothing is traced. */
  readonly traceOf?: TraceOf;
}

/** One query while it is processed. Disposing of it ends everything of it that still runs. */
interface Opened extends Disposable {
  readonly tree: TreeRun;
  readonly resolver: Resolver;
  /** Resolves retrieval, then applies the rewrite rules. */
  readonly rewritten: () => Promise<Rewritten>;
}

export class QueryService {
  readonly #deps: QueryServiceDeps;

  constructor(deps: QueryServiceDeps) {
    this.#deps = deps;
  }

  /** @throws ApiError for what is found before anything runs; `events` throws later errors */
  execute(job: QueryJob): QueryRun {
    const choices = choiceCount(job.query);
    const pace = new Pace();
    const card = this.#check(job.query);
    const opened = this.#open(card, job, (tree, inner) => this.#textsOf(tree, inner), pace);
    let outers: readonly Inner[] = [];
    const events = this.#events(job, opened, (started) => {
      outers = started;
    });
    const sources = () => sourcesOfChoices(outers, (node) => opened.resolver.sourceOf(node));
    return { model: card.id, choiceCount: choices, events, report: opened.tree.report, sources };
  }

  /** Computes and keeps the KV of the query's prompts without generating. @throws ApiError, the signal's reason */
  async prepare(job: QueryJob): Promise<PreparedSpans> {
    choiceCount(job.query);
    const pace = new Pace();
    using opened = this.#open(this.#check(job.query), job, refuseGenerated("prepared"), pace);
    return await prepareTree(opened.tree, (await opened.rewritten()).query);
  }

  /** Shows what would run, without running it. @throws ApiError, the signal's reason */
  async explain(job: QueryJob): Promise<Explanation> {
    choiceCount(job.query);
    const pace = new Pace();
    const card = this.#check(job.query);
    using opened = this.#open(card, job, refuseGenerated("explained"), pace);
    const rewritten = await opened.rewritten();
    const { residents } = this.#deps;
    const lowerer = this.#deps.lowererFor(card);
    const { signal } = job;
    return await explain(job.query, rewritten, { card, lowerer, residents, context: opened.tree.context(), signal });
  }

  /** The fragments that a query uses, for ordering many queries. Empty when a generate writes the query's search. */
  async uses(job: QueryJob): Promise<readonly FragmentUse[]> {
    choiceCount(job.query);
    const pace = new Pace();
    const card = this.#check(job.query);
    using opened = this.#open(card, job, refuseGenerated("planned"), pace);
    try {
      const { query } = await opened.rewritten();
      return await usesOf(query, this.#deps.lowererFor(card), opened.tree.context(), card.blockTokens);
    } catch (error) {
      if (error instanceof ApiError && error.code === "unsupported_field") return [];
      throw error;
    }
  }

  /** @throws ApiError not_ready, model_not_found, invalid_value */
  #check(query: Query): ModelCard {
    const card = this.#deps.card();
    if (card === undefined) throw new ApiError("not_ready", { retryAfterS: 2 });
    checkQuery(query, card, this.#deps.filters);
    return card;
  }

  /** @param pace begun before the query was checked, since each look at all of a large query takes a slice */
  #open(
    card: ModelCard,
    job: QueryJob,
    textsOf: (tree: TreeRun, inner: Inner) => Promise<readonly string[]>,
    pace: Pace,
  ): Opened {
    const { dispatcher, tokenBytes, lowererFor, cacheSalt, retrieve, fragments, countTokens, onLateEnd } = this.#deps;
    const { requestId, tenantId, reuse, diagnose, restartable } = job;
    const trace = this.#deps.traceOf?.(requestId);
    const ender = new AbortController();
    const sources: Sources = {
      retrieve: (search) => retrieve(tenantId, search, signal),
      fragments: (ids) => fragments(tenantId, ids),
      augment: { maxTokens: limits.augmentPartTokens, maxFragments: limits.augmentParts, countTokens },
      maxAugmentChars: limits.augmentChars,
      generated: (inner) => textsOf(tree, inner),
    };
    const signal = AbortSignal.any([job.signal, ender.signal]);
    const startMs = performance.now();
    const resolver = new Resolver(sources, signal);
    const bounds = { concurrency: limits.queryConcurrency, defaultTokens: limits.queryDefaultTokens };
    const tree = new TreeRun(
      { dispatcher, tokenBytes, card, lowerer: lowererFor(card), onLateEnd, ...bounds },
      {
        requestId,
        tenantId,
        salt: cacheSalt(tenantId),
        fragments: resolver.fragments,
        reuse,
        diagnose,
        restartable,
        signal,
        trace,
        startMs,
        endMs: startMs + limits.requestMs,
        affinity: `${tenantId} `,
      },
    );
    return {
      tree,
      resolver,
      rewritten: async () => {
        await pace.breathe();
        const marked = markOrigins(job.query);
        await pace.breathe();
        const resolved = await traced(trace, "retrieval", () => resolver.resolve(marked));
        await pace.breathe();
        return await this.#rewrite(resolved);
      },
      [Symbol.dispose]: () => {
        ender.abort();
        if (resolver.found.length > 0) this.#deps.fragmentsUsed(resolver.found, { tenantId, readAtMs: startMs });
      },
    };
  }

  /** Rewrites a query in steps between which other work runs. */
  async #rewrite(query: Query): Promise<Rewritten> {
    const { reduceArity } = this.#deps;
    const steps = rewriteInSteps(query, reduceArity === undefined ? {} : { reduceArity });
    const pace = new Pace();
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
      await pace.breathe();
    }
  }

  #events(
    job: QueryJob,
    { tree, rewritten, [Symbol.dispose]: onEnd }: Opened,
    onStart: (outers: readonly Inner[]) => void,
  ): MergedEvents {
    const start = async () => {
      const outers = outermostOf((await rewritten()).query);
      onStart(outers);
      return (await Promise.all(outers.map((outer) => tree.choices(outer)))).flat();
    };
    const onError = (error: unknown): void => {
      // When the caller has left and everything was aborted, nobody reads the error.
      if (!job.signal.aborted) throw error;
    };
    return mergeCompletions(start, { onError, onEnd });
  }

  /** The texts of a generate that stands inside a retrieve's question. */
  async #textsOf(tree: TreeRun, inner: Inner): Promise<readonly string[]> {
    const [run] = outermostOf((await this.#rewrite(inner.node)).query);
    if (run === undefined) return [];
    const outputs = await tree.outputs(run);
    return outputs.map(({ tokenIds }) => textOfTokens(this.#deps.tokenBytes, tokenIds));
  }
}

function refuseGenerated(done: string): (tree: TreeRun, inner: Inner) => Promise<readonly string[]> {
  return (_tree, { path }) => {
    const message = `${path}: its output is searched for, so the query cannot be ${done} without running it.`;
    return Promise.reject(new ApiError("unsupported_field", { message, param: path }));
  };
}

/**
 * The stored runs that a query's prompts are made of, for the planner that orders many queries. Each run is listed
 * once, with the tokens of the blocks that it fills. Runs that depend on outputs are left out, since no other query has
 * them.
 * @throws ApiError as lowering does
 */
async function usesOf(
  rewritten: Query,
  lowerer: QueryLowering,
  context: QueryContext,
  blockTokens: number,
): Promise<readonly FragmentUse[]> {
  const pace = new Pace();
  const uses = new Map<string, FragmentUse>();
  for (const { node, path } of allRuns(outermostOf(rewritten))) {
    await pace.breathe();
    const generate = generateOf(node);
    const known = lowerer.preparable(await lowerer.lowerInSlices(generate, context, path));
    for (const { blockKeys } of known?.runs ?? []) {
      const key = blockKeys.at(-1);
      if (key !== undefined) uses.set(key, { key, tokens: blockKeys.length * blockTokens });
    }
  }
  return [...uses.values()];
}
