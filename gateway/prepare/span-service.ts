/** Spans for the corpus side: how a fragment is lowered, and how it is prepared on workers ahead of its use. */
import type { TenantId } from "../../db/ids.ts";
import { prepareOnly } from "../../worker/contract/greedy-sampling.ts";
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { KvTier, WorkerTier } from "../../worker/contract/tiers.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { ApiError } from "../base/errors.ts";
import { unlessAborted } from "../base/hold.ts";
import { limits } from "../config.ts";
import type { PreparedSpan, PrepareFacts, SpanPort, SpanText } from "../corpus/base/ports.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { TenantPart } from "../dispatch/kv/evictions.ts";
import type { PinnedBlocks, Pins } from "../dispatch/kv/pins.ts";
import type { Residency } from "../dispatch/kv/residency.ts";
import type { UseCounts } from "../dispatch/kv/use-counts.ts";
import { FragmentPlacement, fragmentHolders } from "../dispatch/placement/fragment-placement.ts";
import { Placement } from "../dispatch/request/placement.ts";
import type { DispatchRequest, FinishedEvent } from "../dispatch/request/request.ts";
import type { Registry } from "../dispatch/workers/registry.ts";
import type { TenantMeter } from "../generate/token-metering.ts";
import type { KvAccount } from "../kv/account.ts";
import type { KvObjects } from "../kv/objects.ts";
import type { LoweredSpan, Lowerer } from "../lower/plan.ts";

/** KV in files, as far as spans are brought there and taken away. */
type KvFiles = Pick<
  KvObjects,
  "keep" | "trim" | "isKept" | "tiers" | "tiersHolding" | "usage" | "evict" | "evictScopes" | "evictTenant"
> & { readonly account: Pick<KvAccount, "setPinned" | "touch"> };

export interface SpanServiceDeps {
  readonly dispatcher: Pick<Dispatcher, "submit" | "evictions">;
  readonly residency: Residency;
  readonly registry: Pick<Registry, "ready" | "card">;
  readonly uses: Pick<UseCounts, "of">;
  readonly pins: Pick<Pins, "set">;
  /** KV in files; absent: none is kept. */
  readonly kv?: KvFiles;
  /** Bytes of KV that a tenant may keep in a tier, on each worker in "device"; undefined: no quota. */
  readonly kvQuotaBytesOf: (tenantId: TenantId, tier: KvTier) => number | undefined;
  /** Resolves once a model is known. */
  readonly modelReady: () => Promise<void>;
  readonly lowererFor: (card: ModelCard) => Lowerer;
  /** Holds tenants to their token limits; absent: they have none. */
  readonly meter?: TenantMeter;
  /** Called for each plan that was prepared for a tenant. */
  readonly onPrepared?: (tenantId: TenantId, report: FinishedEvent) => void;
}

interface PrepareWork
  extends Required<Pick<PrepareFacts, "readAtMs" | "mayWait">>,
    Pick<PrepareFacts, "tenantId" | "goal"> {
  readonly signal: AbortSignal;
}

/** The part of a worker's pool, or of another tier, that a tenant without a quota may pin. */
const pinnedPart = 1 / 8;
/** A job with a bucket as its target waits so long for the copies of a group, and then tries again. */
const [longestUploadMs, lookAgainMs] = [30_000, 50];
/** What is computed is copied to the host's memory beside the steps; a job waits so long for that. */
const longestCopyMs = 10_000;

export class SpanService implements SpanPort {
  readonly #deps: SpanServiceDeps;
  readonly #homes = new FragmentPlacement(limits.corpusHomes);
  /**
   * Characters since the last yield, counted over all spans that are warmed, so that many short spans yield to other
   * work too.
   */
  readonly #unyielded = { chars: 0 };

  constructor(deps: SpanServiceDeps) {
    this.#deps = deps;
  }

  /** @throws ApiError not_ready while no model is known */
  lowerSpan(span: SpanText): LoweredSpan {
    return this.#lowerer().lowerSpan(span);
  }

  /** @throws ApiError not_ready while no model is known */
  async warmSpan(span: SpanText): Promise<void> {
    await this.#lowerer().warmSpan(span, this.#unyielded);
  }

  /** Prepares spans. It ends early when `signal` aborts, even while no model is known. @throws ApiError */
  async *prepareSpans(
    spans: readonly SpanText[],
    signal: AbortSignal,
    { readAtMs = performance.now(), tenantId, mayWait = true, goal }: PrepareFacts = {},
  ): AsyncGenerator<PreparedSpan, void> {
    const work = { signal, readAtMs, tenantId, mayWait, goal };
    try {
      await unlessAborted(this.#deps.modelReady(), signal);
    } catch (cause) {
      // The spans are not at fault: they can be prepared with another model folder.
      throw new ApiError("not_ready", { cause });
    }
    if (signal.aborted) return;
    let group: SpanText[] = [];
    let groupTokens = 0;
    for (const span of spans) {
      await this.warmSpan(span);
      const { tokenIds, blockKeys } = this.lowerSpan(span);
      const tokenCount = tokenIds.length;
      if (goal !== undefined && this.tiersHolding(blockKeys).includes(goal.tier)) {
        const spanKey = blockKeys.at(-1);
        if (spanKey !== undefined) this.#deps.kv?.account.touch(spanKey);
        yield { id: span.id, tokens: tokenCount, source: goal.tier, worker: null, kept: Promise.resolve() };
        continue;
      }
      if (goal?.tier === "host") this.#requireHostRoom(goal.tokensThere + groupTokens + tokenCount);
      const full = group.length >= limits.prepareSpans || groupTokens + tokenCount > limits.prepareTokens;
      if (group.length > 0 && full) {
        yield* this.#prepare(group, work);
        group = [];
        groupTokens = 0;
      }
      group.push(span);
      groupTokens += tokenCount;
    }
    if (group.length > 0) yield* this.#prepare(group, work);
  }

  evict(blockKeys: readonly BlockKey[], salt: CacheSalt): void {
    this.#deps.kv?.evict(blockKeys, salt);
    this.#deps.dispatcher.evictions.evict(blockKeys, this.#lowerer().spanRoot(salt));
  }

  evictCorpora(salts: readonly CacheSalt[]): void {
    this.#deps.kv?.evictScopes(salts);
    // If no model was ever ready, there is no other KV.
    if (!this.isReady) return;
    const roots = salts.map((salt) => this.#lowerer().spanRoot(salt));
    const [first] = roots;
    if (first !== undefined) this.#deps.dispatcher.evictions.evict(roots, first);
  }

  evictDerived(salt: CacheSalt, tenantId: TenantId): void {
    if (this.isReady) this.#deps.dispatcher.evictions.evictDerived(this.#lowerer().spanRoot(salt), tenantId);
  }

  evictTenant(tenantId: TenantId, part: TenantPart): number {
    if (part === "all") this.#deps.kv?.evictTenant(tenantId);
    return this.#deps.dispatcher.evictions.evictTenant(tenantId, part);
  }

  get isReady(): boolean {
    return this.#deps.registry.card() !== undefined;
  }

  setPinned(tenants: PinnedBlocks, spanKeys: ReadonlySet<BlockKey>, below?: PinnedBlocks): void {
    this.#deps.pins.set(tenants, below);
    this.#deps.kv?.account.setPinned(spanKeys);
  }

  get tiers(): readonly KvTier[] {
    const isHost = this.#deps.registry.ready().some(({ card }) => card?.hostKv !== undefined);
    return ["device", ...(isHost ? ["host" as const] : []), ...(this.#deps.kv?.tiers ?? [])];
  }

  mostPinnedBlocks(tenantId: TenantId, tier: KvTier): number {
    const card = this.#deps.registry.card();
    if (card === undefined) return 0;
    const { bytes, blockBytes } = this.#sizeOf(tier, card);
    const allowed = this.#deps.kvQuotaBytesOf(tenantId, tier) ?? bytes * pinnedPart;
    return Math.floor(Math.min(allowed, bytes) / blockBytes);
  }

  tiersHolding(blockKeys: readonly BlockKey[]): readonly KvTier[] {
    return this.#deps.kv?.tiersHolding(blockKeys) ?? [];
  }

  residentWorkers(spanKey: BlockKey, tier: WorkerTier = "device"): readonly number[] {
    return this.#deps.residency.holders(spanKey, tier).map(workerNumber);
  }

  async keepUsed(span: SpanText, readAtMs: number) {
    const { kv, residency, dispatcher } = this.#deps;
    if (kv === undefined) return undefined;
    await this.warmSpan(span);
    const lowered = this.lowerSpan(span);
    const spanKey = lowered.blockKeys.at(-1);
    const workerId = spanKey === undefined ? undefined : residency.holders(spanKey)[0];
    if (spanKey === undefined || workerId === undefined || kv.isKept(spanKey)) return undefined;
    await kv.trim(span.salt);
    if (dispatcher.evictions.concern({ plan: { runs: [lowered] }, tenantId: "" }, readAtMs)) return undefined;
    await kv.keep(workerId, lowered, span.salt);
    return kv.tiersHolding(lowered.blockKeys).length > 0 ? { spanKey, worker: workerNumber(workerId) } : undefined;
  }

  isKept(spanKey: BlockKey): boolean {
    return this.#deps.kv?.isKept(spanKey) !== false;
  }

  /** Bytes of a tier, on each worker or of all files, and of a block in it. */
  #sizeOf(tier: KvTier, { blockCount, kvBytesPerBlock, hostKv, kvFormat }: ModelCard) {
    if (tier === "device") return { bytes: blockCount * kvBytesPerBlock, blockBytes: kvBytesPerBlock };
    if (tier === "host") {
      const { blockCount: blocks, bytesPerBlock } = hostKv ?? { blockCount: 0, bytesPerBlock: kvBytesPerBlock };
      return { bytes: blocks * bytesPerBlock, blockBytes: bytesPerBlock };
    }
    const shared = this.#deps.kv?.usage().find((use) => use.tier === tier);
    return { bytes: shared?.quotaBytes ?? 0, blockBytes: kvFormat?.blockBytes ?? kvBytesPerBlock };
  }

  /** @throws ApiError storage_full when the workers' memory of the host has no room for so many tokens of spans */
  #requireHostRoom(tokens: number): void {
    const cards = this.#deps.registry.ready().map(({ card }) => card);
    const most = cards.reduce((sum, card) => sum + (card?.hostKv?.blockCount ?? 0) * (card?.blockTokens ?? 0), 0);
    if (tokens <= most) return;
    const message = `The host's memory has room for ${most} tokens of KV: the fragments have more. SPANGATE_KV_HOST_BYTES is its size.`;
    throw new ApiError("storage_full", { message });
  }

  /** Waits until the worker has copied the span down. @throws ApiError storage_full when it does not */
  async #awaitHostCopy(span: SpanText, { workerId }: FinishedEvent, signal: AbortSignal): Promise<void> {
    const { blockKeys } = this.lowerSpan(span);
    const isThere = (): boolean => blockKeys.every((key) => this.#deps.residency.holds(workerId, key, "host"));
    const untilMs = performance.now() + longestCopyMs;
    while (!isThere() && !signal.aborted && performance.now() < untilMs) await Bun.sleep(lookAgainMs);
    if (isThere() || signal.aborted) return;
    throw new ApiError("storage_full", { message: "The host's memory has no room for more KV now." });
  }

  /**
   * Has the worker that holds the span write it to a file, unless its text was evicted meanwhile.
   * @throws ApiError quota_exceeded, storage_full when it has to be there and is not
   */
  async #keep(
    span: SpanText,
    report: FinishedEvent | undefined,
    { signal, readAtMs, goal }: PrepareWork,
  ): Promise<void> {
    const { kv, dispatcher } = this.#deps;
    if (goal?.tier === "host" && report !== undefined) return this.#awaitHostCopy(span, report, signal);
    if (kv === undefined || report === undefined || goal?.tier === "device") return;
    await kv.trim(span.salt, goal?.sinceMs);
    // The text may have been evicted until now.
    const lowered = this.lowerSpan(span);
    const plan = { runs: [lowered] };
    const isWanted = (): boolean => !signal.aborted && !dispatcher.evictions.concern({ plan, tenantId: "" }, readAtMs);
    if (!isWanted()) return;
    const refusal = await kv.keep(report.workerId, lowered, span.salt, { usedBefore: goal?.sinceMs, isWanted });
    const isThere = (): boolean => goal === undefined || kv.tiersHolding(lowered.blockKeys).includes(goal.tier);
    // Files go to a bucket one after the other.
    const untilMs = performance.now() + (goal?.tier === "s3" && refusal === undefined ? longestUploadMs : 0);
    while (!isThere() && !signal.aborted && performance.now() < untilMs) await Bun.sleep(lookAgainMs);
    if (isThere() || signal.aborted) return;
    if (refusal !== "quota")
      throw new ApiError("storage_full", {
        message: "No more KV fits into files, or can be copied to the bucket for now.",
      });
    throw new ApiError("quota_exceeded", { message: "No more KV fits into what the tenant may keep in files." });
  }

  async *#prepare(spans: readonly SpanText[], work: PrepareWork): AsyncGenerator<PreparedSpan, void> {
    const { signal, readAtMs, tenantId, mayWait } = work;
    const { meter } = this.#deps;
    if (tenantId !== undefined && mayWait) meter?.requireTokens(tenantId);
    const onEnd = (tokens: number): void => void (tenantId !== undefined && meter?.spend(tenantId, tokens));
    const homes = spans.map((span) => ({ span, workerIds: this.#homesOf(span) }));
    const workerIds = new Set(homes.flatMap((home) => home.workerIds));
    const ender = new AbortController();
    const either = AbortSignal.any([signal, ender.signal]);
    const prepareOn = async (workerId: string | undefined) => {
      const there = homes.filter((home) => workerId === undefined || home.workerIds.includes(workerId));
      const plan = this.#lowerer().preparePlan(there.map(({ span }) => span));
      const report = await this.#run(plan, { placement: new Placement(workerId), signal: either, readAtMs, onEnd });
      if (tenantId !== undefined) this.#deps.onPrepared?.(tenantId, report);
      return report;
    };
    try {
      // If no worker is ready, there is one plan for any worker, and it waits for the first one.
      const asked = workerIds.size === 0 ? [undefined] : [...workerIds];
      const reports = await Promise.all(asked.map(async (id) => [id, await prepareOn(id)] as const));
      const reportOf = new Map(reports);
      const keeps = homes.map(({ span, workerIds }) => this.#keep(span, reportOf.get(workerIds[0]), work));
      // Whoever waits for it sees its failure.
      for (const kept of keeps) kept.catch(() => undefined);
      for (const [index, { span, workerIds }] of homes.entries()) {
        const report = reportOf.get(workerIds[0]);
        const prepared = report?.spans.find(({ id }) => id === span.id);
        const kept = keeps[index];
        if (report === undefined || prepared === undefined || kept === undefined) continue;
        const { id, tokens, source } = prepared;
        yield { id, tokens, source, worker: workerNumber(report.workerId), kept };
      }
    } finally {
      // When one plan of a group fails, the others are aborted, because the whole group is prepared again.
      ender.abort();
    }
  }

  #homesOf(span: SpanText): readonly string[] {
    const { residency, registry, uses } = this.#deps;
    const { blockKeys } = this.lowerSpan(span);
    const spanKey = blockKeys.at(-1);
    if (spanKey === undefined) return [];
    const workers = fragmentHolders(registry.ready(), residency);
    const fragment = { corpus: span.salt, spanKey, blockCount: blockKeys.length, uses: uses.of(spanKey) };
    const holders = residency.holders(spanKey, "device");
    return this.#homes.of(fragment, workers, holders.length > 0 ? holders : residency.holders(spanKey));
  }

  async #run(
    plan: TokenPlan,
    how: Required<Pick<DispatchRequest, "placement" | "signal" | "readAtMs" | "onEnd">>,
  ): Promise<FinishedEvent> {
    const events = this.#deps.dispatcher.submit({
      requestId: `prepare_${crypto.randomUUID().replaceAll("-", "")}`,
      // The plan's chains all belong to corpora, so no tenant owns the request.
      tenantId: "",
      plan,
      params: prepareOnly,
      reuse: true,
      deadlineMs: limits.requestMs,
      ...how,
    });
    for await (const event of events) if (event.type === "finished") return event;
    throw new ApiError("internal", { cause: new Error("a prepare plan ended without a report") });
  }

  #lowerer(): Lowerer {
    const card = this.#deps.registry.card();
    if (card === undefined) throw new ApiError("not_ready");
    return this.#deps.lowererFor(card);
  }
}

const workerNumber = (workerId: string): number => Number(workerId.replace("worker-", ""));
