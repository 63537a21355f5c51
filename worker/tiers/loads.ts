/**
 * Brings blocks back from files. To the scheduler a load looks like a prefill by somebody else: the keys that come count
 * as claimed, and each block is found once it is stored. A block is opened in memory of ours and verified; only then,
 * between two steps and at once, it is copied into a block that was free, stored and released. So no block is held while
 * anything is waited for, and no step in flight has one that a load writes. Requests take the block out of what was
 * reserved for them; objects that nobody asks for come by their last use while a quarter of the pool is empty.
 */
import * as systemFiles from "node:fs/promises";
import { join } from "node:path";
import type { BlockMover } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import { Derivation } from "../cache/derivations.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import { runBlockKeys } from "../contract/block-key.ts";
import { extentBlocks, type KvObject, pageBytes } from "../contract/kv-object.ts";
import type { WorkerMessage } from "../contract/messages.ts";
import type { KvOwner } from "../contract/owners.ts";
import type { BlockKey } from "../contract/units.ts";
import { type FileSystem, type OpenFile, readAt } from "./file-system.ts";
import { contentOf, reasonOf } from "./keeps.ts";
import { Damaged, ObjectFile, type ObjectShape, type Turn } from "./object-file.ts";
import type { LackingRun, Requester } from "./requester.ts";

export interface LoadsOptions {
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
  /** Called when blocks were stored, or when nothing more comes of a load. */
  readonly onChange: () => void;
  readonly nowMs: () => number;
}

interface Load {
  readonly object: KvObject;
  readonly requesters: Set<Requester>;
  readonly owner: KvOwner;
  /** The keys that requests need not compute. */
  readonly claims: readonly BlockKey[];
  /** When its requests compute it themselves. */
  readonly deadlineMs: number;
  isOver: boolean;
}

/** Read at once. */
const readBytes = 4 * 1024 * 1024;
/** What is assumed of a file system, in bytes a millisecond, until something was read. */
const firstRate = 200_000;
const leastPatienceMs = 1_000;
/** After so many failures in a minute nothing is read for a minute. */
const [mostFailures, restMs] = [8, 60_000];
/** What is not asked for is loaded until so much of the pool is in use. */
const warmPart = 3 / 4;

/** A file that is being read: its beginning with its first blocks. */
interface Opened {
  readonly file: ObjectFile;
  readonly handle: OpenFile;
  readonly sealed: Uint8Array;
  readonly blocks: number;
}

const blocksAtOnce = (blockSpan: number): number => Math.max(1, Math.floor(readBytes / blockSpan));

/** What came of a load: bytes of blocks that were stored, and whether all of the object is there. */
interface Loaded {
  readonly bytes: number;
  readonly isWhole: boolean;
}

export class Loads {
  /** Bytes of blocks that were stored, and what came of loads. */
  readonly counts = { bytes: 0, ms: 0, outcomes: { loaded: 0, late: 0, failed: 0, dropped: 0 } };
  readonly #options: LoadsOptions;
  readonly #byLastKey = new Map<BlockKey, KvObject>();
  readonly #lastKeys = new Map<string, BlockKey>();
  readonly #queue: Load[] = [];
  readonly #open = new Map<string, Load>();
  readonly #claimed = new Set<BlockKey>();
  /** Objects that came too late or not whole, and until when nobody waits for them again. */
  readonly #givenUp = new Map<string, number>();
  /** Ids of objects to load by themselves, the one used last first. */
  readonly #warm: string[] = [];
  #ahead: { readonly load: Load; readonly opened: Promise<Opened> } | undefined;
  #folder = "";
  #isRunning = false;
  #rate = firstRate;
  #failures: number[] = [];
  #restsUntilMs = 0;

  constructor(options: LoadsOptions) {
    this.#options = options;
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
    for (const object of objects) {
      this.#byLastKey.set(object.lastKey, object);
      this.#lastKeys.set(object.id, object.lastKey);
      if (warm) this.#warm.push(object.id);
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

  /** Loads what these requests lack and a file has. */
  want(requesters: readonly Requester[]): void {
    const nowMs = this.#options.nowMs();
    for (const load of [...this.#open.values()]) {
      if (nowMs <= load.deadlineMs) continue;
      this.counts.outcomes.late += 1;
      this.#giveUp(load);
      this.#noteFailure();
    }
    if (this.#byLastKey.size === 0 || nowMs < this.#restsUntilMs) return;
    for (const requester of requesters) {
      for (const run of requester.runs) if (run.keyed && !run.complete) this.#wantRun(requester, run);
    }
    this.#start();
  }

  #wantRun(requester: Requester, run: LackingRun): void {
    const { blockTokens } = this.#options.shape;
    let end = extentBlocks * Math.floor(run.blocks.length / extentBlocks);
    for (let first = end; first < run.blockCount; first = end) {
      end = Math.min(first + extentBlocks, run.blockCount);
      const lastKey = run.keyAt(end - 1);
      const object = lastKey === undefined ? undefined : this.#byLastKey.get(lastKey);
      // Chains load from the first block on, so what follows a hole is of no use.
      const fits = object?.rootKey === run.plan.rootKey && object.position === run.plan.position + first * blockTokens;
      if (object === undefined || !fits || this.#isGivenUp(object)) return;
      // Loads that go to the host's memory bring it there once; from there it comes without them.
      if (this.#hasAll(run, first, object)) continue;
      const known = this.#open.get(object.id);
      if (known !== undefined && known.requesters.size > 0) known.requesters.add(requester);
      else {
        // What came by itself comes first now, and counts as claimed.
        if (known !== undefined) this.#end(known);
        this.#enqueue(object, requester, run, first, end);
      }
    }
  }

  /** Chains go from their tails, so what has both ends has all. */
  #hasAll(run: LackingRun, first: number, { lastKey }: KvObject): boolean {
    const firstKey = run.keyAt(first);
    return firstKey !== undefined && this.#options.cache.has(firstKey) && this.#options.cache.has(lastKey);
  }

  #giveUp(load: Load): void {
    this.#givenUp.set(load.object.id, this.#options.nowMs() + restMs);
    this.#end(load);
  }

  #isGivenUp({ id }: KvObject): boolean {
    const untilMs = this.#givenUp.get(id);
    if (untilMs === undefined) return false;
    if (this.#options.nowMs() < untilMs) return true;
    this.#givenUp.delete(id);
    return false;
  }

  #enqueue(object: KvObject, requester: Requester, run: LackingRun, first: number, end: number): void {
    const claims = Array.from({ length: end - first }, (_, index) => run.keyAt(first + index)).filter(
      (key) => key !== undefined,
    );
    const ahead = this.#open.size + 1;
    const bytes = ahead * extentBlocks * this.#options.shape.blocks.bytes;
    const patienceMs = Math.max(leastPatienceMs, (2 * bytes) / this.#rate);
    const deadlineMs = this.#options.nowMs() + patienceMs;
    const load = { object, requesters: new Set([requester]), owner: run.owner, claims, deadlineMs, isOver: false };
    for (const key of claims) this.#claimed.add(key);
    this.#open.set(object.id, load);
    this.#queue.push(load);
  }

  #start(): void {
    if (!this.#isRunning) void this.#run();
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    for (let load = this.#next(); load !== undefined; load = this.#next()) {
      const ahead = this.#ahead?.load === load ? this.#ahead.opened : undefined;
      this.#ahead = undefined;
      if (!load.isOver) await this.#load(load, ahead ?? this.#openFile(load.object));
      else
        void ahead?.then(
          ({ handle }) => handle.close(),
          () => undefined,
        );
      this.#end(load);
    }
    this.#isRunning = false;
  }

  /** Reads the beginning of what comes next while this one is opened. */
  #readAhead(): void {
    const load = this.#queue.find(({ isOver }) => !isOver);
    if (load === undefined || load !== this.#queue[0]) return;
    const opened = this.#openFile(load.object);
    // Its failure is seen when its turn comes.
    opened.catch(() => undefined);
    this.#ahead = { load, opened };
  }

  #next(): Load | undefined {
    const asked = this.#queue.shift();
    if (asked !== undefined) return asked;
    while (this.#hasEmptyPart() && this.#options.nowMs() >= this.#restsUntilMs) {
      const id = this.#warm.shift();
      if (id === undefined) return undefined;
      const key = this.#lastKeys.get(id);
      const object = key === undefined ? undefined : this.#byLastKey.get(key);
      if (object === undefined || this.#options.cache.has(object.lastKey)) continue;
      const deadlineMs = Number.POSITIVE_INFINITY;
      const load: Load = { object, requesters: new Set(), owner: object.owner, claims: [], deadlineMs, isOver: false };
      this.#open.set(id, load);
      return load;
    }
    return undefined;
  }

  #hasEmptyPart(): boolean {
    const { pool, cache, reservedBlocks } = this.#options;
    const empty = pool.availableCount - cache.cachedFreeCount;
    return empty > reservedBlocks() && pool.blockCount - empty < warmPart * pool.blockCount;
  }

  /** Nothing more comes of it; who still lacks its blocks computes them. */
  #end(load: Load): void {
    load.isOver = true;
    if (this.#open.get(load.object.id) === load) this.#open.delete(load.object.id);
    for (const key of load.claims) this.#claimed.delete(key);
    this.#options.onChange();
  }

  async #load(load: Load, opened: Promise<Opened>): Promise<void> {
    const { emit, nowMs } = this.#options;
    const { id: objectId } = load.object;
    const beganMs = nowMs();
    try {
      const { bytes, isWhole } = await this.#read(load, await opened);
      const wasOver = load.isOver;
      // What nobody asked for ends early when the pool is full, which says nothing of the file.
      if (!isWhole && !wasOver && load.requesters.size > 0) this.#giveUp(load);
      if (isWhole || !wasOver) this.counts.outcomes[isWhole ? "loaded" : "dropped"] += 1;
      if (bytes === 0) return;
      this.counts.bytes += bytes;
      this.counts.ms += nowMs() - beganMs;
      this.#rate += (bytes / Math.max(1, nowMs() - beganMs) - this.#rate) / 8;
      emit({ type: "loaded", objectId, bytes });
    } catch (error) {
      if (load.isOver) return;
      this.counts.outcomes.failed += 1;
      this.forget([objectId]);
      this.#noteFailure();
      emit({ type: "load failed", objectId, reason: error instanceof Damaged ? error.message : reasonOf(error) });
    }
  }

  #noteFailure(): void {
    const nowMs = this.#options.nowMs();
    this.#failures = [...this.#failures.filter((atMs) => atMs > nowMs - restMs), nowMs];
    if (this.#failures.length < mostFailures) return;
    this.#failures = [];
    this.#restsUntilMs = nowMs + restMs;
  }

  /** Opens an object's file and reads what of it fits. @throws Damaged, or what the system says */
  async #openFile(object: KvObject): Promise<Opened> {
    const { shape, files = systemFiles } = this.#options;
    const file = new ObjectFile(object, shape);
    const { fileBytes, headSpan, blockSpan, blockCount } = file.sizes;
    const handle = await files.open(join(this.#folder, object.id), "r");
    try {
      const { size } = await handle.stat();
      if (size !== fileBytes) throw new Damaged("the file has another size");
      const blocks = Math.min(blockCount, blocksAtOnce(blockSpan));
      return { file, handle, sealed: await readAt(handle, 0, pageBytes + headSpan + blocks * blockSpan), blocks };
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  /** @returns bytes of blocks that were stored @throws Damaged, or what the system says */
  async #read(load: Load, opened: Opened): Promise<Loaded> {
    const { file, handle, sealed } = opened;
    try {
      this.#readAhead();
      const turn = this.#options.slices(() => load.claims.length > 0);
      if (!file.isFirstPage(sealed.subarray(0, pageBytes))) throw new Damaged("the header is another object's");
      const head = new Uint8Array(file.sizes.headBytes);
      const isWhole = await file.open(0, sealed.subarray(pageBytes, pageBytes + file.sizes.headSpan), head, turn);
      const tokenIds = isWhole ? file.tokensOf(head) : undefined;
      if (tokenIds === undefined) throw new Damaged("segment 0 is not what was written");
      return await this.#readBlocks(load, opened, tokenIds, turn);
    } finally {
      await handle.close();
    }
  }

  async #readBlocks(
    load: Load,
    { file, handle, sealed: first, blocks }: Opened,
    tokenIds: Int32Array,
    turn: Turn,
  ): Promise<Loaded> {
    const { shape, cache } = this.#options;
    const { object } = load;
    const { blockCount, blockSpan } = file.sizes;
    const keys = runBlockKeys(object.previousKey, tokenIds, shape.blockTokens, true);
    if (keys.at(-1) !== object.lastKey) throw new Damaged("the tokens are another chain's");
    const derivation = new Derivation([object.rootKey]);
    const isThere = (index: number): boolean =>
      cache.find(keys[index], contentOf(tokenIds, object.position, index, shape.blockTokens)) !== undefined;
    const plain = new Uint8Array(shape.blocks.bytes);
    let bytes = 0;
    let sealed = first.subarray(pageBytes + file.sizes.headSpan);
    let [from, until] = [0, blocks];
    for (let index = 0; index < blockCount; index++) {
      if (isThere(index)) continue;
      if (index >= until) {
        [from, until] = [index, Math.min(index + blocksAtOnce(blockSpan), blockCount)];
        sealed = await readAt(handle, file.placeOf(index + 1).at, (until - from) * blockSpan);
      }
      const at = (index - from) * blockSpan;
      if (!(await file.open(index + 1, sealed.subarray(at, at + blockSpan), plain, turn))) {
        throw new Damaged(`segment ${index + 1} is not what was written`);
      }
      if (isThere(index)) continue;
      // From here to the release nothing else runs.
      const before = index === 0 ? object.previousKey : keys[index - 1];
      const isChained = before === object.rootKey || cache.has(before);
      if (load.isOver || !isChained || !this.#mayTake(load)) return { bytes, isWhole: false };
      const blockId = cache.allocate(load.owner);
      if (blockId === undefined) return { bytes, isWhole: false };
      this.#options.mover.unpack(blockId, plain);
      const content = contentOf(tokenIds, object.position, index, shape.blockTokens);
      if (cache.store(blockId, keys[index], before, content, derivation)) cache.noteTier(blockId, "disk");
      cache.release(blockId);
      bytes += plain.byteLength;
    }
    return { bytes, isWhole: true };
  }

  /** Whether a free block may be used: one that was reserved for a request that waits, or one that holds nothing. */
  #mayTake({ requesters }: Load): boolean {
    for (const { reservedBlocks } of requesters) if (reservedBlocks > 0) return true;
    return this.#hasEmptyPart();
  }
}
