/**
 * Brings blocks up from the host's memory.
 *
 * To the scheduler that looks like another request's prefill, as with files (loads.ts): keys that are on their way count as
 * claimed, and a block is found once it is stored. Blocks are first copied to memory beside the pool, while steps run. When
 * a copy has arrived, its blocks are put into free ones, stored and released without a pause. So no block of the pool is
 * held while a copy runs.
 *
 * Tenants are served in turn, a copy each. Whether a run comes up or is computed is decided for the whole run, together with
 * what else of its request comes up, by the measured times of both. Blocks for which the line has no room wait behind it.
 */
import type { HostBlocks } from "../backend/backend.ts";
import type { BlockPool } from "../cache/block-pool.ts";
import { DerivationTwins } from "../cache/derivations.ts";
import type { PrefixCache } from "../cache/prefix-cache.ts";
import type { KvOwner } from "../contract/owners.ts";
import type { BlockId, BlockKey } from "../contract/units.ts";
import { Cost, TokenCost } from "./load-queue.ts";
import type { LackingRun, Requester } from "./requester.ts";

export interface HostLoadsOptions {
  readonly blocks: HostBlocks;
  readonly hostCache: PrefixCache;
  /** The device's blocks. */
  readonly pool: BlockPool;
  readonly cache: PrefixCache;
  /** Device blocks promised to running requests and not taken yet. */
  readonly reservedBlocks: () => number;
  /** Whether requests decode, whose steps copies hold up. */
  readonly isDecoding: () => boolean;
  /** Has a block of the device copied to the host's memory, if it is not there yet. */
  readonly bringDown: (key: BlockKey, previousKey: BlockKey) => void;
  /** Blocks of the host were used, in the order of their chains. */
  readonly used: (keys: readonly BlockKey[]) => void;
  readonly blockTokens: number;
  readonly clock: () => number;
  /** Called when blocks were brought to the device, or came to the host. */
  readonly onChange: () => void;
}

/** Blocks in line, beside the first one of each run: more than come in a step, and not so many that a step waits. */
const mostQueued = 256;

/** By what the time of computing is multiplied while requests decode, since each of them waits for it. */
const priceBesideDecodes = 4;

/** The first so many blocks give the time of a block that later averages are drawn back to (`Cost`). */
const probeBlocks = 512;

interface Load {
  readonly key: BlockKey;
  readonly previousKey: BlockKey;
  /** The chain's first key, which `previousKey` is for its first block. */
  readonly rootKey: BlockKey;
  readonly owner: KvOwner;
  /** Has a reference until the load ends, so that it is not evicted meanwhile. */
  readonly slot: BlockId;
  readonly waiting: Waiting;
}

/** Who waits for blocks of a run. */
interface Waiting {
  readonly requesters: Set<Requester>;
  readonly runs: Set<LackingRun>;
}

/** What was found out about a run. */
interface Wanted {
  /** How many blocks the run had when it was looked at. */
  readonly had: number;
  /** Its blocks before this one are there or in line. */
  readonly inLine: number;
  /** Its blocks before this one are to come up. */
  readonly end: number;
}

const nothingKnown: Wanted = { had: 0, inLine: 0, end: 0 };

export class HostLoads {
  /** Bytes of blocks that were brought up, and what came of their loads. */
  readonly counts = { bytes: 0, ms: 0, outcomes: { loaded: 0, late: 0, failed: 0, dropped: 0 } };
  readonly #options: HostLoadsOptions;
  readonly #loads = new Map<BlockKey, Load>();
  /** Loads that have not begun, by tenant; the tenant whose turn it is comes first. */
  readonly #queues = new Map<number, Load[]>();
  #queued = 0;
  /** Blocks that are to come up and have no place in the line, by tenant: of the runs that were looked at so far. */
  readonly #behind = new Map<number, number>();
  readonly #wanted = new WeakMap<LackingRun, Wanted>();
  readonly #derivations = new DerivationTwins();
  readonly tokenCost: TokenCost;
  /** Milliseconds that a block takes to come up while copies follow each other. Until that is known, everything comes up. */
  readonly #blockMs: Cost;
  #copies = 0;
  /** When the copy before the next one to arrive had arrived, or, without one, when the next one began. */
  #countedMs = 0;
  /** Resolves when the copy that was begun last has arrived. */
  #arrival: Promise<void> = Promise.resolve();

  constructor(options: HostLoadsOptions) {
    this.#options = options;
    this.tokenCost = new TokenCost(options.clock);
    this.#blockMs = new Cost(0, probeBlocks, options.clock);
  }

  /** See TierStats. */
  get loadCost(): { readonly loadCost?: number } {
    return this.#blockMs.each > 0 ? this.tokenCost.loadCost(this.#blockMs.each / this.#options.blockTokens) : {};
  }

  /** Whether requests wait for blocks that come up. */
  get isBusy(): boolean {
    return this.#loads.size > 0;
  }

  /** Whether the block is on its way, so that nobody computes it. */
  isComing(key: BlockKey): boolean {
    return this.#loads.has(key);
  }

  /** Brings up what these requests lack and the host has. */
  want(requesters: readonly Requester[]): void {
    const { blockTokens } = this.#options;
    this.#behind.clear();
    let computedTokens = 0;
    for (const requester of requesters) {
      let tokensThatCome = 0;
      for (const run of requester.runs) {
        if (run.keyed && !this.#wanted.has(run)) this.#meet(requester, run);
        if (run.complete) continue;
        const had = run.blocks.length;
        const end = run.keyed ? this.#wantRun(requester, run, Math.max(computedTokens, tokensThatCome)) : had;
        tokensThatCome += (end - had) * blockTokens;
        computedTokens += (run.blockCount - end) * blockTokens;
      }
    }
    this.#begin();
  }

  /** Ends loads of blocks that the host no longer has: requests that lack them compute them. */
  dropGone(): void {
    for (const load of [...this.#loads.values()]) {
      if (this.#options.hostCache.blockOf(load.key) !== load.slot) this.#end(load);
    }
  }

  /**
   * Puts in line what of the run comes up, from its first missing block on.
   * @param tokensAgainst that are computed before those of this run, or that would be if they did not come up
   * @returns which of the run's blocks is the first that neither is there nor comes
   */
  #wantRun(requester: Requester, run: LackingRun, tokensAgainst: number): number {
    const had = run.blocks.length;
    const known = this.#wanted.get(run) ?? nothingKnown;
    // A run that has fewer blocks than before was preempted.
    const wasPreempted = had < known.had;
    const from = wasPreempted ? had : Math.max(had, known.inLine);
    const wanted = wasPreempted ? had : Math.max(had, known.end);
    const tokens = tokensAgainst + (wanted - had) * this.#options.blockTokens;
    const end = wanted > from ? wanted : this.#endOf(run, from, tokens);
    const { inLine, isHole } = this.#enqueueFrom(requester, run, from, end);
    const { number } = run.owner;
    if (!isHole) this.#behind.set(number, (this.#behind.get(number) ?? 0) + end - inLine);
    const comes = isHole ? inLine : end;
    this.#wanted.set(run, { had, inLine, end: comes });
    return comes;
  }

  /** Where what is to come up from block `from` on ends: behind all that the host has, or at once. */
  #endOf(run: LackingRun, from: number, tokensAgainst: number): number {
    const end = this.#endInHost(run, from);
    return end > from && this.#isComputedSooner(run, end - from, tokensAgainst) ? from : end;
  }

  /** Chains are evicted from their tails, so all blocks before one that is there are there too. */
  #endInHost(run: LackingRun, from: number): number {
    const { cache, hostCache } = this.#options;
    let [end, gone] = [from, run.blockCount];
    while (end < gone) {
      const index = Math.floor((end + gone) / 2);
      const key = run.keyAt(index);
      if (key !== undefined && (hostCache.has(key) || cache.has(key))) end = index + 1;
      else gone = index;
    }
    return end;
  }

  /** @returns the first block that has no place in the line, and whether that is because it is nowhere */
  #enqueueFrom(requester: Requester, run: LackingRun, from: number, end: number) {
    const { cache, hostCache } = this.#options;
    const waiting = { requesters: new Set([requester]), runs: new Set([run]) };
    for (let index = from; index < end; index++) {
      const key = run.keyAt(index);
      const known = key === undefined ? undefined : this.#loads.get(key);
      if (known !== undefined) {
        known.waiting.requesters.add(requester);
        known.waiting.runs.add(run);
        continue;
      }
      if (key !== undefined && cache.has(key)) continue;
      const slot = key !== undefined && run.isResident(index, hostCache) ? hostCache.blockOf(key) : undefined;
      // Chains come from the first block on, so what follows a hole is of no use.
      if (key === undefined || slot === undefined) return { inLine: index, isHole: true };
      // The first block that it lacks has a place in any case, so that nobody computes what follows.
      if (index > run.blocks.length && this.#queued >= mostQueued) return { inLine: index, isHole: false };
      this.#enqueue(run, index, { key, slot, waiting });
    }
    return { inLine: end, isHole: false };
  }

  #enqueue(run: LackingRun, index: number, parts: Pick<Load, "key" | "slot" | "waiting">): void {
    const { rootKey } = run.plan;
    const previousKey = index === 0 ? rootKey : (run.keyAt(index - 1) ?? rootKey);
    this.#options.hostCache.retain(parts.slot);
    const load: Load = { ...parts, previousKey, rootKey, owner: run.owner };
    this.#loads.set(load.key, load);
    this.#queues.getOrInsertComputed(run.owner.number, () => []).push(load);
    this.#queued += 1;
  }

  /** Blocks of a tenant that wait, in the line or behind it. */
  #waitingOf(owner: number): number {
    return (this.#queues.get(owner)?.length ?? 0) + (this.#behind.get(owner) ?? 0);
  }

  /**
   * Whether so many more blocks of the run would take longer to come than to compute, with all that stands against them.
   * Beside decodes what is computed costs more than its own time, because every stream waits for it in its step.
   */
  #isComputedSooner({ owner }: LackingRun, blocks: number, tokensAgainst: number): boolean {
    const own = this.#waitingOf(owner.number) + blocks;
    // Tenants are served in turn: of each other tenant at most as many come before these.
    let before = this.#loads.size - this.#queued;
    for (const other of new Set([...this.#queues.keys(), ...this.#behind.keys()])) {
      if (other !== owner.number) before += Math.min(own, this.#waitingOf(other));
    }
    const tokens = tokensAgainst + blocks * this.#options.blockTokens;
    const price = this.#options.isDecoding() ? priceBesideDecodes : 1;
    return (before + own) * this.#blockMs.each > tokens * this.tokenCost.each * price;
  }

  /**
   * Blocks that are found on the device count as used in the host's memory too: otherwise they would be evicted there
   * first, since they are never loaded. What is prepared lies in the host's memory from then on.
   */
  #meet({ openRun }: Requester, run: LackingRun): void {
    const { hostCache, bringDown } = this.#options;
    const { rootKey } = run.plan;
    for (let index = run.blocks.length - 1; index >= 0; index--) {
      const key = run.keyAt(index);
      const slot = key === undefined ? undefined : hostCache.blockOf(key);
      if (slot === undefined) continue;
      hostCache.retain(slot);
      hostCache.release(slot);
    }
    this.#wanted.set(run, nothingKnown);
    if (openRun !== undefined) return;
    for (const index of run.blocks.keys()) {
      const key = run.keyAt(index);
      if (key !== undefined) bringDown(key, index === 0 ? rootKey : (run.keyAt(index - 1) ?? rootKey));
    }
  }

  #begin(): void {
    const { blocks, isDecoding } = this.#options;
    for (;;) {
      const { copiesAtOnce, blocksPerCopy } = isDecoding() ? blocks.paceBesideDecodes : blocks.pace;
      const loads = this.#copies < copiesAtOnce ? this.#nextLoads(blocksPerCopy) : [];
      if (loads.length === 0) return;
      void this.#bring(loads);
    }
  }

  #nextLoads(count: number): Load[] {
    for (const [owner, queue] of this.#queues) {
      const taken = queue.splice(0, count);
      this.#queued -= taken.length;
      const loads = taken.filter((load) => this.#loads.get(load.key) === load);
      // Whoever was served comes last.
      this.#queues.delete(owner);
      if (queue.length > 0) this.#queues.set(owner, queue);
      if (loads.length > 0) return loads;
    }
    return [];
  }

  async #bring(loads: readonly Load[]): Promise<void> {
    const { blocks, cache, hostCache, onChange, clock } = this.#options;
    if (this.#copies === 0) this.#countedMs = clock();
    this.#copies += 1;
    const beganMs = performance.now();
    for (const { slot } of loads) hostCache.retain(slot);
    const before = this.#arrival;
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#arrival = promise;
    const { place } = await blocks.fetch(loads.map(({ slot }) => slot));
    // A chain that is continued before it is there would be dropped.
    await before;
    for (const { slot } of loads) hostCache.release(slot);
    this.#copies -= 1;
    const nowMs = clock();
    this.#blockMs.note(loads.length, nowMs - this.#countedMs);
    this.#countedMs = nowMs;
    // From here to the releases nothing else runs.
    const blockIds = loads.map((load) => this.#take(load));
    place(blockIds);
    for (const blockId of blockIds) {
      this.counts.outcomes[blockId === undefined ? "dropped" : "loaded"] += 1;
      if (blockId === undefined) continue;
      cache.release(blockId);
      this.counts.bytes += blocks.format.bytes;
    }
    this.counts.ms += performance.now() - beganMs;
    for (const load of loads) this.#end(load);
    this.#options.used(loads.map(({ key }) => key));
    resolve();
    this.#begin();
    onChange();
  }

  /** A block of the device for what was loaded, which can be found already; undefined: it is not wanted any more. */
  #take(load: Load): BlockId | undefined {
    const { cache, hostCache } = this.#options;
    const { key, previousKey, rootKey, owner, slot } = load;
    const isWanted = this.#loads.get(key) === load && !cache.has(key);
    const isChained = previousKey === rootKey || cache.has(previousKey);
    if (!isWanted || !isChained || !this.#mayTake(load)) return undefined;
    const blockId = cache.allocate(owner);
    if (blockId === undefined) return undefined;
    cache.store(
      blockId,
      key,
      previousKey,
      hostCache.contentOf(slot),
      this.#derivations.of(hostCache.derivationOf(key)),
    );
    const tier = hostCache.tierOf(slot);
    cache.noteTier(blockId, tier === "device" ? "host" : tier);
    return blockId;
  }

  /** Whether a free block may be used: one that was reserved for a request that waits, or one that holds nothing. */
  #mayTake({ waiting }: Load): boolean {
    for (const { reservedBlocks } of waiting.requesters) if (reservedBlocks > 0) return true;
    const { pool, cache, reservedBlocks } = this.#options;
    return pool.availableCount - cache.cachedFreeCount > reservedBlocks();
  }

  /** Ends a load: a run that still lacks the block is looked at again. */
  #end(load: Load): void {
    const { cache, hostCache } = this.#options;
    if (this.#loads.get(load.key) !== load) return;
    this.#loads.delete(load.key);
    hostCache.release(load.slot);
    if (!cache.has(load.key)) for (const run of load.waiting.runs) this.#lookAgain(run);
  }

  #lookAgain(run: LackingRun): void {
    if (this.#wanted.has(run)) this.#wanted.set(run, nothingKnown);
  }
}
