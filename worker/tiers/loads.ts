/**
 * Brings blocks back from files.
 *
 * To the scheduler a load looks like another request's prefill: keys that are on their way count as claimed, and a block
 * is found once it is stored. A block is first opened and verified in memory outside the pool. Then, between two steps and
 * without a pause, it is copied into a free block, stored and released. So no block of the pool is held while a file is
 * waited for, and no load writes a block that a step in flight reads.
 *
 * For a request, blocks are taken from those that were reserved for it. Objects that no request asks for are loaded in the
 * order of their last use while a quarter of the pool is empty (unasked.ts).
 *
 * What would be computed sooner than loaded is computed; the time of both is measured. Where one processor does both, as on
 * a CPU, computing one part while another is loaded gains nothing, so all that requests lack is decided together. Beside
 * a device a part is also loaded if it is there by the time that the other parts are computed.
 */
import * as systemFiles from "node:fs/promises";
import type { BlockMover } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import { extentBlocks, type KvObject, kvObjectSizes } from "../contract/kv-object.ts";
import type { WorkerMessage } from "../contract/messages.ts";
import type { KvOwner } from "../contract/owners.ts";
import type { BlockKey } from "../contract/units.ts";
import type { FileSystem } from "./file-system.ts";
import { Filling, type Loaded } from "./filling.ts";
import { reasonOf } from "./keeps.ts";
import { LoadCosts, type LoadCostsOptions, TurnWaits } from "./load-costs.ts";
import { LoadFaults, LoadQueue, LoadReports, type QueuedLoad } from "./load-queue.ts";
import { Damaged, type ObjectShape, type Turn } from "./object-file.ts";
import { ObjectReader, ReadBuffers } from "./object-reader.ts";
import type { LackingRun, Requester } from "./requester.ts";
import { Unasked } from "./unasked.ts";

export interface LoadsOptions extends LoadCostsOptions {
  /** Whether the processor that opens files computes the steps too, as on a CPU. */
  readonly sharesProcessor: boolean;
  readonly shape: ObjectShape;
  readonly mover: BlockMover;
  readonly pool: BlockPool;
  readonly cache: PrefixCache;
  /** Blocks promised to running requests and not taken yet. */
  readonly reservedBlocks: () => number;
  /** Says when slices of work may be done, which are urgent while requests wait for them. */
  readonly slices: (isUrgent: () => boolean) => Turn;
  readonly emit: (message: WorkerMessage) => void;
  /** Default: the system's. */
  readonly files?: FileSystem;
  /** Called when all that a request waits for is there, or when nothing more comes of a load. */
  readonly onChange: () => void;
}

interface Load extends QueuedLoad {
  readonly object: KvObject;
  readonly requesters: Set<Requester>;
  /** The keys that requests need not compute; none while no request asks for the object. */
  claims: readonly BlockKey[];
  /** When its requests stop waiting and compute it themselves. */
  deadlineMs: number;
  isOver: boolean;
}

/** A load whose file is being read. */
interface Reading {
  readonly load: Load;
  readonly reader: Promise<ObjectReader>;
}

/** What was decided about a run, as numbers of its blocks. */
interface Wanted {
  /** Blocks before this one are in the pool or are being loaded. */
  readonly end: number;
  /** How many of those come from files. */
  readonly loaded: number;
}

/** How many files, and how many bytes of them, are read before their turn comes. */
const [mostAhead, mostBytesAhead] = [8, 16 * 1024 * 1024];
const leastPatienceMs = 1_000;

export class Loads {
  readonly costs: LoadCosts;
  /** Bytes of blocks that were stored, and what came of loads. */
  readonly counts = { bytes: 0, ms: 0, outcomes: { loaded: 0, late: 0, failed: 0, dropped: 0 } };
  readonly #options: LoadsOptions;
  readonly #faults: LoadFaults;
  readonly #byLastKey = new Map<BlockKey, KvObject>();
  readonly #lastKeys = new Map<string, BlockKey>();
  readonly #queue = new LoadQueue<Load>();
  readonly #ahead: Reading[] = [];
  readonly #buffers = new ReadBuffers();
  readonly #open = new Map<string, Load>();
  readonly #claimed = new Set<BlockKey>();
  /** How many loads each request waits for. */
  readonly #waiting = new Map<Requester, number>();
  readonly #unasked: Unasked;
  readonly #reports: LoadReports;
  #isWarming = false;
  #folder = "";
  #isRunning = false;

  constructor(options: LoadsOptions) {
    this.#options = options;
    this.#faults = new LoadFaults(options.nowMs);
    this.#unasked = new Unasked(options);
    this.#reports = new LoadReports(options.emit);
    this.costs = new LoadCosts(options);
  }

  /** See TierStats. */
  get loadCost(): { readonly loadCost?: number } {
    const { blockTokens, blocks } = this.#options.shape;
    return this.costs.of(blocks.bytes / blockTokens);
  }

  /** How many objects are known. */
  get objectCount(): number {
    return this.#byLastKey.size;
  }

  /** Whether requests wait for what is being loaded. */
  get isBusy(): boolean {
    return this.#claimed.size > 0;
  }

  /** @param warm load them by themselves, in this order */
  add(folder: string, objects: readonly KvObject[], warm: boolean): void {
    this.#folder = folder;
    this.#isWarming ||= warm;
    for (const object of objects) {
      this.#byLastKey.set(object.lastKey, object);
      this.#lastKeys.set(object.id, object.lastKey);
      if (warm) this.#unasked.warm(object.id);
    }
    this.#start();
  }

  /** A question may soon want these: they are loaded while no request waits for files. */
  prefetch(objectIds: readonly string[]): void {
    for (const id of objectIds) {
      const object = this.objectOf(id);
      if (object !== undefined) this.#unasked.name(object);
    }
    this.#start();
  }

  objectOf(id: string): KvObject | undefined {
    const key = this.#lastKeys.get(id);
    return key === undefined ? undefined : this.#byLastKey.get(key);
  }

  /** @param rootKeys all objects of chains that begin with these go too */
  forget(objectIds: readonly string[], rootKeys: readonly BlockKey[] = []): void {
    if (rootKeys.length > 0) {
      const roots = new Set(rootKeys);
      const gone = [...this.#byLastKey.values()].filter(({ rootKey }) => roots.has(rootKey));
      this.forget(gone.map(({ id }) => id));
    }
    for (const id of objectIds) {
      const load = this.#open.get(id);
      if (load !== undefined) this.#end(load);
      const key = this.#lastKeys.get(id);
      this.#lastKeys.delete(id);
      if (key !== undefined && this.#byLastKey.get(key)?.id === id) this.#byLastKey.delete(key);
    }
  }

  /** Whether the block is being loaded, so that nobody computes it. */
  isComing(key: BlockKey): boolean {
    return this.#claimed.has(key);
  }

  /** Loads what these requests lack and what a file holds. */
  want(requesters: readonly Requester[]): void {
    const nowMs = this.#options.nowMs();
    for (const load of [...this.#open.values()]) {
      if (nowMs <= load.deadlineMs) continue;
      this.counts.outcomes.late += 1;
      this.#giveUp(load);
      this.#faults.note();
    }
    if (this.#byLastKey.size === 0 || this.#faults.isResting) return;
    const { sharesProcessor, shape } = this.#options;
    let [loadedTokens, computedTokens] = [0, 0];
    for (const requester of requesters) {
      for (const run of requester.runs) {
        if (run.complete) continue;
        const against = sharesProcessor ? loadedTokens : Math.max(loadedTokens, computedTokens);
        const nothing = { end: run.blocks.length, loaded: 0 };
        const { end, loaded } = run.keyed ? this.#wantRun(requester, run, against) : nothing;
        loadedTokens += loaded * shape.blockTokens;
        computedTokens += (run.blockCount - end) * shape.blockTokens;
      }
    }
    this.#start();
  }

  /**
   * Each part of a run goes where it is there sooner: to the loads, or to be computed. What follows a part that is
   * computed is computed too, since chains load from the first block on.
   * @param tokens of other runs that are loaded before, and could be computed instead, or are computed meanwhile
   */
  #wantRun(requester: Requester, run: LackingRun, tokens: number): Wanted {
    const { blockTokens } = this.#options.shape;
    const have = run.blocks.length;
    let loaded = 0;
    let end = extentBlocks * Math.floor(have / extentBlocks);
    for (let first = end; first < run.blockCount; first = end) {
      end = Math.min(first + extentBlocks, run.blockCount);
      const lastKey = run.keyAt(end - 1);
      const object = lastKey === undefined ? undefined : this.#byLastKey.get(lastKey);
      const fits = object?.rootKey === run.plan.rootKey && object.position === run.plan.position + first * blockTokens;
      const stop = Math.max(first, have);
      if (object === undefined || !fits || this.#faults.isGivenUp(object.id)) return { end: stop, loaded };
      // Loads that go to the host's memory bring it there once; from there it comes without them.
      if (this.#hasAll(run, first, object)) continue;
      const known = this.#open.get(object.id);
      if (known === undefined || known.claims.length === 0) {
        const bytes = known?.bytes ?? this.#bytesOf(object);
        // One that nobody asked for may be among those ahead.
        const more = this.#ahead.some(({ load }) => load === known) ? 0 : bytes;
        const waitMs = this.costs.loadMs(this.#queue.bytesBefore(run.owner) + this.#bytesAhead + more);
        const against = tokens + (loaded + end - stop) * blockTokens;
        if (waitMs > this.costs.computeMs(against)) return { end: stop, loaded };
        const load = known ?? this.#enqueue(object, run.owner, bytes);
        load.claims = keysOf(run, first, end);
        for (const key of load.claims) this.#claimed.add(key);
        load.deadlineMs = this.#options.nowMs() + Math.max(leastPatienceMs, 2 * waitMs);
      }
      this.#ask(object.id, requester);
      loaded += end - stop;
    }
    return { end: run.blockCount, loaded };
  }

  /** Chains are evicted from their tails, so where the first and the last block are there, all between are too. */
  #hasAll(run: LackingRun, first: number, { lastKey }: KvObject): boolean {
    const firstKey = run.keyAt(first);
    return firstKey !== undefined && this.#options.cache.has(firstKey) && this.#options.cache.has(lastKey);
  }

  #bytesOf({ tokenCount }: KvObject): number {
    const { blockTokens, blocks } = this.#options.shape;
    return kvObjectSizes(tokenCount, { blockTokens, blockBytes: blocks.bytes }).fileBytes;
  }

  /** Bytes of files that are read already, or are being opened. */
  get #bytesAhead(): number {
    return this.#ahead.reduce((sum, { load }) => sum + load.bytes, 0);
  }

  #enqueue(object: KvObject, owner: KvOwner, bytes: number): Load {
    const load = this.#openLoad(object, owner, bytes);
    this.#queue.add(load);
    return load;
  }

  #openLoad(object: KvObject, owner: KvOwner, bytes: number): Load {
    const deadlineMs = Number.POSITIVE_INFINITY;
    const load: Load = { object, owner, bytes, requesters: new Set(), claims: [], deadlineMs, isOver: false };
    this.#open.set(object.id, load);
    return load;
  }

  #ask(id: string, requester: Requester): void {
    const requesters = this.#open.get(id)?.requesters;
    if (requesters === undefined || requesters.has(requester)) return;
    requesters.add(requester);
    this.#waiting.set(requester, (this.#waiting.get(requester) ?? 0) + 1);
  }

  #giveUp(load: Load): void {
    this.#faults.giveUp(load.object.id);
    this.#end(load);
  }

  #start(): void {
    if (this.#isRunning) this.#readAhead();
    else void this.#run();
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    let hasLoaded = false;
    for (;;) {
      this.#readAhead();
      const reading = this.#ahead.shift();
      if (reading === undefined) break;
      hasLoaded = true;
      await this.#load(reading);
      this.#end(reading.load);
      this.#unasked.end(reading.load.object);
    }
    this.#isRunning = false;
    this.#buffers.clear();
    if (hasLoaded) this.#options.onChange();
    this.#reports.flush();
    if (this.#isWarming) this.#options.emit({ type: "warm" });
    this.#isWarming = false;
  }

  /** Reads the files that come next while one is opened. */
  #readAhead(): void {
    const { files = systemFiles } = this.#options;
    while (this.#ahead.length === 0 || (this.#ahead.length < mostAhead && this.#bytesAhead < mostBytesAhead)) {
      const load = this.#queue.take() ?? this.#nextUnasked();
      if (load === undefined) return;
      const reader = ObjectReader.open(files, this.#folder, load.object, this.#options, this.#buffers);
      // A failure is reported when the file's turn comes.
      reader.catch(() => undefined);
      this.#ahead.push({ load, reader });
    }
  }

  #nextUnasked(): Load | undefined {
    if (this.#faults.isResting) return undefined;
    const object = this.#unasked.next((id) => {
      const known = this.#open.has(id) ? undefined : this.objectOf(id);
      return known === undefined || this.#options.cache.has(known.lastKey) ? undefined : known;
    });
    return object && this.#openLoad(object, object.owner, this.#bytesOf(object));
  }

  /** Ends a load: requests that still lack its blocks compute them. */
  #end(load: Load): void {
    if (this.#open.get(load.object.id) === load) this.#open.delete(load.object.id);
    for (const key of load.claims) this.#claimed.delete(key);
    load.isOver = true;
    let hasAll = false;
    for (const requester of load.requesters) {
      const left = (this.#waiting.get(requester) ?? 0) - 1;
      if (left > 0) this.#waiting.set(requester, left);
      else hasAll = this.#waiting.delete(requester) || hasAll;
    }
    load.requesters.clear();
    if (hasAll) this.#options.onChange();
  }

  async #load({ load, reader }: Reading): Promise<void> {
    const { emit, nowMs, onChange } = this.#options;
    const { id: objectId, copy } = load.object;
    const [beganMs, waits] = [nowMs(), new TurnWaits(nowMs)];
    try {
      const { bytes, isWhole } = await this.#read(load, await reader, waits);
      const wasOver = load.isOver;
      // A load that no request asked for also ends when the pool is full, which says nothing of the file.
      if (!isWhole && !wasOver && load.requesters.size > 0) this.#giveUp(load);
      if (isWhole || !wasOver) this.counts.outcomes[isWhole ? "loaded" : "dropped"] += 1;
      if (bytes === 0) return;
      const ms = nowMs() - beganMs;
      this.counts.bytes += bytes;
      this.counts.ms += ms;
      this.costs.noteLoad(bytes, ms, waits.ms);
      this.#reports.add(load.object, bytes / this.#options.shape.blocks.bytes, bytes);
    } catch (error) {
      if (load.isOver) return;
      this.counts.outcomes.failed += 1;
      this.forget([objectId]);
      this.#faults.note();
      const reason = error instanceof Damaged ? error.message : reasonOf(error);
      emit({ type: "load failed", objectId, reason, ...(copy !== undefined && { copy }) });
      onChange();
    }
  }

  /** @throws Damaged, or what the system says */
  async #read(load: Load, reader: ObjectReader, waits: TurnWaits): Promise<Loaded> {
    try {
      if (load.isOver) return { bytes: 0, isWhole: false };
      const turn = waits.counting(this.#options.slices(() => load.claims.length > 0));
      const { object, owner } = load;
      const filling = new Filling(await reader.tokens(turn), {
        ...{ object, owner, shape: this.#options.shape, mover: this.#options.mover, cache: this.#options.cache },
        mayTake: () => !load.isOver && this.#mayTake(load),
        brought: (key, blockId) => this.#unasked.brought(object, key, blockId),
      });
      return await filling.from(reader, turn);
    } finally {
      // Nothing waits for the closing, and its failure says nothing of what was read.
      reader.close().catch(() => undefined);
    }
  }

  /** Whether a free block may be used: one that was reserved for a request that waits, or one that holds nothing. */
  #mayTake({ requesters, object }: Load): boolean {
    for (const { reservedBlocks } of requesters) if (reservedBlocks > 0) return true;
    return this.#unasked.mayTake(object);
  }
}

const keysOf = (run: LackingRun, first: number, end: number): readonly BlockKey[] =>
  Array.from({ length: end - first }, (_, index) => run.keyAt(first + index)).filter((key) => key !== undefined);
