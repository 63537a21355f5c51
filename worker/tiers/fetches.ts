/**
 * Objects that are in the bucket alone. When a request lacks some, the gateway is asked for them, if fetching and loading all
 * of them is clearly sooner than computing them, by what both took before. Until an object's file is there its keys count
 * as claimed, as those of loads do; then loads.ts goes on. A request that has waited long enough computes instead. While
 * the bucket is slow no request waits, and what was asked for is there for the next one.
 */
import { extentBlocks, type KvObject, kvObjectSizes } from "../contract/kv-object.ts";
import type { WorkerMessage } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";
import { FetchCosts } from "./load-costs.ts";
import type { LackingRun, Requester } from "./requester.ts";

export interface FetchesOptions {
  readonly blockTokens: number;
  readonly blockBytes: number;
  /** How long it takes to compute so many tokens. */
  readonly computeMs: (tokens: number) => number;
  /** How long it takes to load so many bytes when their files are there. */
  readonly loadMs: (bytes: number) => number;
  readonly emit: (message: WorkerMessage) => void;
  /** Whether a block is being loaded, so that what follows it in its chain is of use. */
  readonly isLoading: (key: BlockKey) => boolean;
  /** Whether the block is where loads bring it. */
  readonly has: (key: BlockKey) => boolean;
  /** Called when nobody waits for an object any more. */
  readonly onChange: () => void;
  readonly nowMs: () => number;
}

interface Fetch {
  readonly object: KvObject;
  /** The keys that requests need not compute for now. */
  readonly claims: readonly BlockKey[];
  readonly deadlineMs: number;
}

/** The blocks of a run that an object has. */
interface Part {
  readonly object: KvObject;
  readonly run: LackingRun;
  readonly first: number;
  readonly end: number;
}

/**
 * A request waits for objects as long as it would take to compute them, at most, and no longer than twice what fetches
 * took before: what is late by then may not come. Until it is known what computing takes it waits a second; and 50 ms in
 * any case, since no bucket answers at once.
 */
const [unknownMs, leastMs] = [1_000, 50];
/** The part of the time of computing within which a fetch is worth it: a request that waits in vain computes after all. */
const worthPart = 4 / 5;
/** After this many late fetches in a row no request waits for this long, nor for an object that was late or could not be had. */
const [mostLate, restMs] = [3, 60_000];

export class Fetches {
  readonly #options: FetchesOptions;
  readonly #costs: FetchCosts;
  readonly #byLastKey = new Map<BlockKey, KvObject>();
  readonly #lastKeys = new Map<string, BlockKey>();
  readonly #open = new Map<string, Fetch>();
  readonly #claimed = new Set<BlockKey>();
  /** Objects that were asked for in vain, and until when they are not asked for again. */
  readonly #givenUp = new Map<string, number>();
  #late = 0;
  #restsUntilMs = 0;

  constructor(options: FetchesOptions) {
    this.#options = options;
    this.#costs = new FetchCosts(options.nowMs);
  }

  /** Whether requests wait for what is being fetched. */
  get isBusy(): boolean {
    return this.#claimed.size > 0;
  }

  isComing(key: BlockKey): boolean {
    return this.#claimed.has(key);
  }

  add(objects: readonly KvObject[]): void {
    for (const object of objects) {
      this.#byLastKey.set(object.lastKey, object);
      this.#lastKeys.set(object.id, object.lastKey);
    }
  }

  /** The object's file is in the folder. @returns it; undefined: it was not known to be in the bucket */
  arrived(id: string): KvObject | undefined {
    const object = this.#objectOf(id);
    if (this.#open.has(id)) this.#late = 0;
    this.#costs.arrived(id);
    this.#remove(id);
    return object;
  }

  /** It cannot be fetched for now. @returns whether it is known to be in the bucket */
  notNow(id: string): boolean {
    if (this.#open.has(id)) this.#giveUp(id);
    this.#costs.gone(id);
    return this.#lastKeys.has(id);
  }

  /** @param rootKeys all objects of chains that begin with these go too */
  forget(objectIds: readonly string[], rootKeys: readonly BlockKey[] = []): void {
    for (const id of objectIds) this.#remove(id);
    if (rootKeys.length === 0) return;
    const roots = new Set(rootKeys);
    for (const { id, rootKey } of [...this.#byLastKey.values()]) if (roots.has(rootKey)) this.#remove(id);
  }

  /** Asks for what these requests lack and the bucket has. */
  want(requesters: readonly Requester[]): void {
    const nowMs = this.#options.nowMs();
    for (const { object, deadlineMs } of [...this.#open.values()]) {
      if (nowMs <= deadlineMs) continue;
      this.#giveUp(object.id);
      this.#late += 1;
      if (this.#late >= mostLate) this.#restsUntilMs = nowMs + restMs;
    }
    if (this.#byLastKey.size === 0) return;
    for (const { runs } of requesters) {
      const parts = runs.flatMap((run) => (run.keyed && !run.complete ? this.#lackedBy(run, nowMs) : []));
      if (parts.length === 0) continue;
      const computeMs = this.#computeMs(parts);
      const bytes = parts.map(({ object }) => this.#bytesOf(object));
      const fetchMs = this.#costs.fetchMs(bytes);
      const loadMs = this.#options.loadMs(bytes.reduce((sum, each) => sum + each, 0));
      // Until a bucket has answered it is asked, whatever loading takes.
      if (fetchMs > 0 && fetchMs + loadMs > worthPart * computeMs) continue;
      const longestMs = fetchMs > 0 ? Math.min(computeMs, 2 * fetchMs) : computeMs;
      const waitMs = Number.isFinite(computeMs) ? Math.max(leastMs, longestMs) : unknownMs;
      for (const part of parts) this.#ask(part, nowMs, waitMs);
    }
  }

  /** What of a run is to be had from the bucket alone. */
  #lackedBy(run: LackingRun, nowMs: number): readonly Part[] {
    const { blockTokens, isLoading, has } = this.#options;
    const parts: Part[] = [];
    for (let first = extentBlocks * Math.floor(run.blocks.length / extentBlocks); first < run.blockCount; ) {
      const end = Math.min(first + extentBlocks, run.blockCount);
      const lastKey = run.keyAt(end - 1);
      const object = lastKey === undefined ? undefined : this.#byLastKey.get(lastKey);
      const fits = object?.rootKey === run.plan.rootKey && object.position === run.plan.position + first * blockTokens;
      const firstKey = run.keyAt(first);
      const isThere = firstKey !== undefined && has(firstKey) && lastKey !== undefined && has(lastKey);
      // Chains come from the first block on, so what follows a hole is of no use.
      if (!isThere && (object === undefined ? lastKey === undefined || !isLoading(lastKey) : !fits)) break;
      if (object !== undefined && !isThere && !this.#open.has(object.id)) {
        if (nowMs < (this.#givenUp.get(object.id) ?? 0)) break;
        parts.push({ object, run, first, end });
      }
      first = end;
    }
    return parts;
  }

  /** What all of these parts of a request take to compute. */
  #computeMs(parts: readonly Part[]): number {
    const { computeMs, blockTokens } = this.#options;
    const blocks = parts.reduce((sum, { run, first, end }) => sum + end - Math.max(first, run.blocks.length), 0);
    return computeMs(blocks * blockTokens);
  }

  #bytesOf({ tokenCount }: KvObject): number {
    return kvObjectSizes(tokenCount, this.#options).fileBytes;
  }

  #ask({ object, run, first, end }: Part, nowMs: number, waitMs: number): void {
    // It may be a part of another run of the request too.
    if (this.#open.has(object.id)) return;
    this.#givenUp.delete(object.id);
    this.#options.emit({ type: "fetch", objectId: object.id });
    if (nowMs < this.#restsUntilMs) {
      this.#givenUp.set(object.id, nowMs + restMs);
      return;
    }
    this.#costs.asked(object.id, this.#bytesOf(object));
    const keys = Array.from({ length: end - first }, (_, index) => run.keyAt(first + index));
    const claims = keys.filter((key) => key !== undefined);
    for (const key of claims) this.#claimed.add(key);
    this.#open.set(object.id, { object, claims, deadlineMs: nowMs + waitMs });
  }

  #objectOf(id: string): KvObject | undefined {
    const key = this.#lastKeys.get(id);
    return key === undefined ? undefined : this.#byLastKey.get(key);
  }

  #giveUp(id: string): void {
    this.#givenUp.set(id, this.#options.nowMs() + restMs);
    this.#end(id);
  }

  #remove(id: string): void {
    this.#costs.gone(id);
    this.#end(id);
    const key = this.#lastKeys.get(id);
    this.#lastKeys.delete(id);
    this.#givenUp.delete(id);
    if (key !== undefined && this.#byLastKey.get(key)?.id === id) this.#byLastKey.delete(key);
  }

  #end(id: string): void {
    const fetch = this.#open.get(id);
    if (fetch === undefined) return;
    this.#open.delete(id);
    for (const key of fetch.claims) this.#claimed.delete(key);
    this.#options.onChange();
  }
}
