/**
 * A pool of workers in virtual time: the gateway's own dispatcher over real engines, whose steps take as long as their
 * rows. Requests over fragments arrive, are routed, and what they cost is counted. The same seed gives the same life.
 */

import type { TenantId } from "../../db/ids.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { Dispatcher } from "../../gateway/dispatch/dispatcher.ts";
import { PendingBlocks } from "../../gateway/dispatch/kv/pending-blocks.ts";
import { Residency } from "../../gateway/dispatch/kv/residency.ts";
import { UseCounts } from "../../gateway/dispatch/kv/use-counts.ts";
import { FragmentPlacement, fragmentHolders } from "../../gateway/dispatch/placement/fragment-placement.ts";
import { Placement } from "../../gateway/dispatch/request/placement.ts";
import { Registry } from "../../gateway/dispatch/workers/registry.ts";
import { foldSpan, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { GatewayMessage, PlanRun, SegmentRef, TokenPlan, WorkerMessage } from "../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { Engine } from "../../worker/engine/loop.ts";
import { fakeCard } from "../dispatch/fake-core.ts";
import { greedy } from "../dispatch/rig.ts";
import { FakeBackend, fakeShape } from "../support/fake-backend.ts";
import type { PoolAnswer, PoolOptions, PoolReport, PoolRequest } from "./pool-types.ts";

export type { Policy, PoolOptions, PoolReport, PoolRequest } from "./pool-types.ts";

const blockTokens = 8;
const digest = "pool";
export const stepTokens = 128;
const stepPromptTokens = 64;
/** Time of a step: reading the weights, then its rows. */
export const stepMs = (rows: number): number => 4 + 0.1 * rows;

const corpusSaltOf = (corpus: number): CacheSalt => `corpus-${corpus}` as CacheSalt;

interface SimWorker {
  readonly id: string;
  readonly engine: Engine;
  readonly backend: FakeBackend;
  outbox: WorkerMessage[];
  endsAtMs: number | undefined;
  busyMs: number;
}

export class PoolWorld {
  readonly registry = new Registry();
  readonly pendingBlocks = new PendingBlocks((root) => this.#corpusRoots.get(root));
  readonly residency = new Residency((workerId, root) => this.pendingBlocks.ownerOf(workerId, root));
  readonly uses = new UseCounts(10_000, () => this.#nowMs);
  readonly #corpusRoots = new Map<BlockKey, TenantId>();
  readonly #fragmentHomes = new FragmentPlacement(100);
  readonly #options: PoolOptions;
  readonly #dispatcher: Dispatcher;
  readonly #workers: SimWorker[] = [];
  readonly #arrived = new Map<string, PoolRequest>();
  readonly #ttftMs = new Map<string, number>();
  /** In the order of their ends. */
  readonly answers: PoolAnswer[] = [];
  readonly refusals: { readonly tenant: number; readonly code: string }[] = [];
  #nowMs = 0;
  #failures = 0;
  #sent = 0;

  constructor(options: PoolOptions) {
    this.#options = options;
    this.#dispatcher = new Dispatcher({
      registry: this.registry,
      residency: this.residency,
      pendingBlocks: this.pendingBlocks,
      uses: this.uses,
      supervisor: { send: (workerId, message) => this.#receive(workerId, message) },
      log: () => undefined,
      maxAttempts: 3,
      maxDeaths: 1_000,
      maxRunningPerWorker: options.maxRunningPerWorker ?? 1_000,
      maxWaiting: 10_000,
      maxWaitingTokens: 100_000_000,
      nowMs: () => this.#nowMs,
      abortGraceMs: 1,
    });
    for (let index = 0; index < options.workerCount; index++) this.#addWorker(`worker-${index}`);
  }

  get nowMs(): number {
    return this.#nowMs;
  }

  engines(): readonly (readonly [workerId: string, engine: Engine])[] {
    return this.#workers.map(({ id, engine }) => [id, engine] as const);
  }

  /** Requests in the order of their arrival, until the last has ended. */
  async run(requests: readonly PoolRequest[]): Promise<void> {
    for (const [index, request] of requests.entries()) {
      await this.#advanceTo(request.atMs);
      const workerId = this.#options.policy?.(this.registry.ready(), request, index);
      this.#submit(this.planOf(request), request, workerId);
    }
    await this.#advanceTo(Number.POSITIVE_INFINITY);
  }

  /** Fragments of a corpus, on the workers that `homes` chooses. */
  async prepare(corpus: number, fragments: readonly number[], homes: "placed" | "one" | "all"): Promise<void> {
    for (const fragment of fragments) {
      const run = this.spanRun(corpus, fragment);
      for (const workerId of this.#homes(run, corpus, homes)) {
        const request = {
          atMs: this.#nowMs,
          tenant: corpus,
          corpus,
          fragments: [],
          questionTokens: 0,
          answerTokens: 0,
        };
        this.#submit({ runs: [run] }, request, workerId);
      }
      await this.#advanceTo(Number.POSITIVE_INFINITY);
    }
  }

  report(): PoolReport {
    const stats = this.#workers.map(({ engine }) => engine.stats());
    const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
    const busyMs = this.#workers.map((worker) => worker.busyMs);
    return {
      computedTokens: sum(stats.map(({ computedTokens }) => computedTokens)),
      hitShare: sum(stats.map(({ hitTokens }) => hitTokens)) / sum(stats.map(({ queriedTokens }) => queriedTokens)),
      ttftMs: [...this.#ttftMs.values()],
      makespanMs: this.#nowMs,
      imbalance: Math.max(...busyMs) / (sum(busyMs) / busyMs.length),
      failures: this.#failures,
    };
  }

  spanRun(corpus: number, fragment: number): PlanRun {
    const root = rootKey(digest, corpusSaltOf(corpus), "span");
    this.#corpusRoots.set(root, `tenant_${corpus}`);
    const tokenIds = Int32Array.from({ length: this.#options.fragmentTokens }, (_, i) => {
      return (Math.imul(fragment + 1, 0x9e3779b1) >>> (i % 24)) % fakeShape.vocabSize;
    });
    const blockKeys = runBlockKeys(root, tokenIds, blockTokens, true);
    return { kind: "span", tokenIds, position: 0, sees: [], blockKeys, rootKey: root, spanId: `f${fragment}` };
  }

  planOf({ tenant, corpus, fragments, questionTokens }: PoolRequest): TokenPlan {
    const runs: PlanRun[] = [];
    const sees: SegmentRef[] = [];
    let key = rootKey(digest, `tenant_${tenant}` as CacheSalt, "main");
    let position = 0;
    for (const fragment of fragments) {
      const run = this.spanRun(corpus, fragment);
      sees.push({ run: runs.length, firstToken: 0, tokenCount: run.tokenIds.length, offset: position });
      runs.push(run);
      key = foldSpan(key, run.blockKeys.at(-1) ?? run.rootKey);
      position += run.tokenIds.length;
    }
    const tokenIds = Int32Array.from({ length: questionTokens }, (_, i) => (i + this.#sent) % fakeShape.vocabSize);
    const blockKeys = runBlockKeys(key, tokenIds, blockTokens, false);
    runs.push({ kind: "main", tokenIds, position, sees, blockKeys, rootKey: key });
    return { runs };
  }

  #addWorker(id: string): void {
    const { blockCount } = this.#options;
    const backend = new FakeBackend({ blockCount, blockTokens, contextTokens: 1 << 16 });
    const worker: SimWorker = {
      id,
      backend,
      engine: new Engine({
        backend,
        eosTokenIds: [],
        limits: {
          maxRunningRequests: 32,
          maxWaitingRequests: 10_000,
          stepTokens,
          prefillTokensBesideDecodes: stepPromptTokens,
        },
        clock: () => this.#nowMs,
        emit: (message) => worker.outbox.push(message),
      }),
      outbox: [],
      endsAtMs: undefined,
      busyMs: 0,
    };
    this.#workers.push(worker);
    this.registry.add(id, "cpu");
    this.registry.becameReady(id, { ...fakeCard, digest, blockTokens, blockCount, stepPromptTokens });
  }

  #homes(run: PlanRun, corpus: number, homes: "placed" | "one" | "all"): readonly string[] {
    if (homes === "all") return this.#workers.map(({ id }) => id);
    if (homes === "one")
      return this.#workers
        .slice(corpus % this.#workers.length)
        .map(({ id }) => id)
        .slice(0, 1);
    const spanKey = run.blockKeys.at(-1) ?? run.rootKey;
    const workers = fragmentHolders(this.registry.ready(), this.residency);
    const uses = this.uses.of(spanKey);
    const fragment = { corpus: corpusSaltOf(corpus), spanKey, blockCount: run.blockKeys.length, uses };
    return this.#fragmentHomes.of(fragment, workers, this.residency.holders(spanKey));
  }

  #submit(plan: TokenPlan, request: PoolRequest, workerId: string | undefined): void {
    const requestId = `r${this.#sent++}`;
    this.#arrived.set(`${requestId}.1`, request);
    const job = {
      requestId,
      tenantId: `tenant_${request.tenant}` as const,
      plan,
      params: { ...greedy(request.answerTokens), ignoreEos: true },
      reuse: true,
      deadlineMs: 600_000,
      affinity: `tenant_${request.tenant}`,
      placement: workerId === undefined ? undefined : new Placement(workerId),
    };
    try {
      // Read by nobody here: what the worker says is counted as it is delivered.
      void this.#dispatcher.submit(job);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.refusals.push({ tenant: request.tenant, code: error.code });
    }
  }

  #receive(workerId: string, message: GatewayMessage): boolean {
    const worker = this.#workers.find(({ id }) => id === workerId);
    if (message.type === "submit") worker?.engine.submit(message);
    else if (message.type === "abort") worker?.engine.abort(message.requestId);
    else if (message.type === "evict") worker?.engine.evict(message.blockKeys, message.owner);
    return true;
  }

  /** Steps begin and end until the given time, or until there is nothing to do. */
  async #advanceTo(untilMs: number): Promise<void> {
    for (;;) {
      for (const worker of this.#workers) if (worker.endsAtMs === undefined) await this.#beginStep(worker);
      const ends = this.#workers.map(({ endsAtMs }) => endsAtMs ?? Number.POSITIVE_INFINITY);
      const nextMs = Math.min(...ends);
      if (nextMs > untilMs || nextMs === Number.POSITIVE_INFINITY) break;
      this.#nowMs = nextMs;
      for (const worker of this.#workers) if (worker.endsAtMs === nextMs) this.#endStep(worker);
    }
    if (untilMs !== Number.POSITIVE_INFINITY) this.#nowMs = Math.max(this.#nowMs, untilMs);
  }

  /** What a step says is held back until its time is over. */
  async #beginStep(worker: SimWorker): Promise<void> {
    const before = worker.backend.rowCount;
    if (!(await worker.engine.step())) return;
    const tookMs = stepMs(worker.backend.rowCount - before);
    worker.endsAtMs = this.#nowMs + tookMs;
    worker.busyMs += tookMs;
  }

  #endStep(worker: SimWorker): void {
    worker.endsAtMs = undefined;
    const messages = worker.outbox;
    worker.outbox = [];
    for (const message of messages) {
      if (message.type === "failed") this.#failures += 1;
      if (message.type === "tokens") this.#noteToken(message.requestId);
      if (message.type === "finished") this.#noteEnd(message);
      this.#dispatcher.onMessage(worker.id, message);
    }
  }

  #noteToken(requestId: string): void {
    const request = this.#arrived.get(requestId);
    if (request !== undefined && !this.#ttftMs.has(requestId)) this.#ttftMs.set(requestId, this.#nowMs - request.atMs);
  }

  #noteEnd({ requestId, usage }: Extract<WorkerMessage, { type: "finished" }>): void {
    const ttftMs = this.#ttftMs.get(requestId);
    const tenant = this.#arrived.get(requestId)?.tenant;
    if (tenant !== undefined && ttftMs !== undefined) this.answers.push({ tenant, ttftMs, ...usage });
  }
}
