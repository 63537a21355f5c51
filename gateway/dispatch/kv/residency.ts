/**
 * Which worker holds which blocks in which of its tiers, and which tenant owns them, as the workers' KV events say. For routing this is a hint:
 * a wrong entry costs a recomputation, never a wrong answer. For accounting it is exact: a stored block is reported with
 * the key it was chained from, so it belongs to the owner of that chain, even when its tokens were generated.
 */

import type { KvEvent, PlanRun, RemovedEvent, StoredEvent } from "../../../worker/contract/messages.ts";
import { type WorkerTier, workerTiers } from "../../../worker/contract/tiers.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { WorkOwner } from "../request/request.ts";
import type { ChainOwner } from "./pending-blocks.ts";

/** What one tenant holds on one worker. */
export interface HeldKv {
  readonly blockCount: number;
  readonly tokenCount: number;
  /** Those of these blocks that are fragments of its corpora. */
  readonly fragmentBlockCount: number;
}

/** What one worker holds in one of its tiers, for everybody. */
export interface HeldBlocks {
  readonly workerId: string;
  readonly tier: WorkerTier;
  readonly blockKeys: BlockKey[];
  readonly tokenCounts: number[];
}

interface HeldBlock {
  readonly owner: ChainOwner;
  readonly tokenCount: number;
}

/** What one worker holds in one tier. */
interface TierBlocks {
  readonly blocks: Map<BlockKey, HeldBlock>;
  readonly byTenant: Map<WorkOwner, { -readonly [Field in keyof HeldKv]: HeldKv[Field] }>;
}

type WorkerBlocks = Readonly<Record<WorkerTier, TierBlocks>>;

/** The owner of a chain that begins with this key on this worker. */
export type RootOwner = (workerId: string, rootKey: BlockKey) => ChainOwner | undefined;

/** Told of blocks of a tenant that are stored in a worker's tier or, with a count below zero, removed from it. */
export type BlocksChanged = (workerId: string, tier: WorkerTier, tenantId: WorkOwner, count: number) => void;

/** The owner of blocks whose chain no request has begun; there are none unless worker and gateway disagree. */
const nobody: ChainOwner = { tenantId: "", isFragment: false };

export class Residency {
  readonly #workers = new Map<string, WorkerBlocks>();
  readonly #rootOwner: RootOwner;
  readonly #onChange: BlocksChanged;

  constructor(rootOwner: RootOwner = () => undefined, onChange: BlocksChanged = () => undefined) {
    this.#rootOwner = rootOwner;
    this.#onChange = onChange;
  }

  /** Applies what a worker reports of its blocks, in the worker's order. */
  apply(workerId: string, events: readonly KvEvent[]): void {
    for (const event of events) {
      if (event.type === "removed") this.#remove(workerId, event);
      else this.#store(workerId, event);
    }
  }

  /** To be called when the worker has ended: its blocks are gone. */
  forget(workerId: string): void {
    const held = this.#workers.get(workerId);
    this.#workers.delete(workerId);
    if (held === undefined) return;
    for (const tier of workerTiers) {
      for (const [tenantId, { blockCount }] of held[tier].byTenant)
        this.#onChange(workerId, tier, tenantId, -blockCount);
    }
  }

  /** Ids of the workers that hold the block, in this tier or in any. */
  holders(key: BlockKey, tier?: WorkerTier): readonly string[] {
    return [...this.#workers.keys()].filter((workerId) => this.holds(workerId, key, tier));
  }

  /** Whether the worker holds the block, in this tier or in any. */
  holds(workerId: string, key: BlockKey, tier?: WorkerTier): boolean {
    const held = this.#workers.get(workerId);
    if (held === undefined) return false;
    if (tier !== undefined) return held[tier].blocks.has(key);
    return held.device.blocks.has(key) || held.host.blocks.has(key);
  }

  /** Blocks the worker holds under a key. */
  blockCount(workerId: string, tier: WorkerTier = "device"): number {
    return this.#workers.get(workerId)?.[tier].blocks.size ?? 0;
  }

  /** Keys of all that the worker holds. */
  keys(workerId: string): Iterable<BlockKey> {
    const held = this.#workers.get(workerId);
    return held === undefined ? [] : new Set([...held.device.blocks.keys(), ...held.host.blocks.keys()]);
  }

  /** Everything that is held at this moment. */
  all(): readonly HeldBlocks[] {
    return [...this.#workers].flatMap(([workerId, held]) =>
      workerTiers.flatMap((tier) => {
        const { blocks } = held[tier];
        if (tier === "host" && blocks.size === 0) return [];
        const tokenCounts = [...blocks.values()].map((block) => block.tokenCount);
        return { workerId, tier, blockKeys: [...blocks.keys()], tokenCounts };
      }),
    );
  }

  /** Keys of the blocks that the worker holds of one tenant. */
  keysOf(workerId: string, tenantId: WorkOwner, withoutFragments: boolean): BlockKey[] {
    const keys = new Set<BlockKey>();
    const held = this.#workers.get(workerId);
    for (const { blocks } of held === undefined ? [] : [held.device, held.host]) {
      for (const [key, { owner }] of blocks) {
        if (owner.tenantId === tenantId && !(withoutFragments && owner.isFragment)) keys.add(key);
      }
    }
    return [...keys];
  }

  /** How much the worker holds in a tier, by tenant. */
  byTenant(workerId: string, tier: WorkerTier = "device"): ReadonlyMap<string, HeldKv> {
    return this.#workers.get(workerId)?.[tier].byTenant ?? new Map<string, HeldKv>();
  }

  /** Tokens of these runs that the worker holds, in any tier, as far as the gateway knows. */
  cachedTokens(workerId: string, runs: readonly PlanRun[], blockTokens: number): number {
    if (!this.#workers.has(workerId)) return 0;
    return tokensBefore(runs, blockTokens, (key) => this.holds(workerId, key));
  }

  /** Those of these tokens that have to be brought up from the host's memory. */
  tokensBelow(workerId: string, runs: readonly PlanRun[], blockTokens: number): number {
    if (this.blockCount(workerId, "host") === 0) return 0;
    const isAbove = (key: BlockKey): boolean => this.holds(workerId, key, "device");
    return this.cachedTokens(workerId, runs, blockTokens) - tokensBefore(runs, blockTokens, isAbove);
  }

  #store(workerId: string, { tier = "device", blockKeys, previousKeys, tokenCounts }: StoredEvent): void {
    const held = this.#blocksOf(workerId);
    const { blocks, byTenant } = held[tier];
    const other = held[tier === "device" ? "host" : "device"].blocks;
    blockKeys.forEach((key, index) => {
      const previous = previousKeys[index];
      if (blocks.has(key) || previous === undefined) return;
      const before = other.get(key) ?? blocks.get(previous) ?? other.get(previous);
      const owner = before?.owner ?? this.#rootOwner(workerId, previous) ?? nobody;
      const tokenCount = tokenCounts[index] ?? 0;
      // Blocks of one chain have equal entries, so they share one object: a pool may have millions of blocks.
      const block = before?.tokenCount === tokenCount ? before : { owner, tokenCount };
      blocks.set(key, block);
      count(byTenant, block, 1);
      this.#onChange(workerId, tier, block.owner.tenantId, 1);
    });
  }

  #remove(workerId: string, { tier = "device", blockKeys }: RemovedEvent): void {
    const { blocks, byTenant } = this.#blocksOf(workerId)[tier];
    for (const key of blockKeys) {
      const block = blocks.get(key);
      if (block === undefined) continue;
      blocks.delete(key);
      count(byTenant, block, -1);
      this.#onChange(workerId, tier, block.owner.tenantId, -1);
    }
  }

  #blocksOf(workerId: string): WorkerBlocks {
    return this.#workers.getOrInsertComputed(workerId, () => ({ device: noBlocks(), host: noBlocks() }));
  }
}

const noBlocks = (): TierBlocks => ({ blocks: new Map(), byTenant: new Map() });

function count(byTenant: TierBlocks["byTenant"], { owner, tokenCount }: HeldBlock, sign: 1 | -1): void {
  const { tenantId, isFragment } = owner;
  const held = byTenant.get(tenantId) ?? { blockCount: 0, tokenCount: 0, fragmentBlockCount: 0 };
  held.blockCount += sign;
  held.tokenCount += sign * tokenCount;
  if (isFragment) held.fragmentBlockCount += sign;
  if (held.blockCount === 0) byTenant.delete(tenantId);
  else byTenant.set(tenantId, held);
}

/** Tokens of the runs that lie in their first blocks that are held. */
export function tokensBefore(
  runs: readonly PlanRun[],
  blockTokens: number,
  isThere: (key: BlockKey) => boolean,
): number {
  let tokens = 0;
  for (const { blockKeys, tokenIds } of runs) {
    tokens += Math.min(firstBlocks(blockKeys, isThere) * blockTokens, tokenIds.length);
  }
  return tokens;
}

/**
 * The number of a chain's first blocks that are held. Blocks are freed from the end of a chain, so the held ones are a
 * prefix, whose length bisection finds: a chain of 1,024 blocks costs 11 look-ups.
 */
export function firstBlocks(blockKeys: readonly BlockKey[], isThere: (key: BlockKey) => boolean): number {
  const isThereAt = (index: number): boolean => {
    const key = blockKeys[index];
    return key !== undefined && isThere(key);
  };
  if (isThereAt(blockKeys.length - 1)) return blockKeys.length;
  let low = 0;
  let high = blockKeys.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (isThereAt(middle)) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low);
}
