/**
 * Which worker holds which blocks, and which tenant owns them, as the workers' KV events say. For routing this is a hint:
 * a wrong entry costs a recomputation, never a wrong answer. For accounting it is exact: a stored block is reported with
 * the key it was chained from, so it belongs to the owner of that chain, even when its tokens were generated.
 */

import type { KvEvent, PlanRun, StoredEvent } from "../../../worker/contract/messages.ts";
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

interface HeldBlock {
  readonly owner: ChainOwner;
  readonly tokenCount: number;
}

interface WorkerBlocks {
  readonly blocks: Map<BlockKey, HeldBlock>;
  readonly byTenant: Map<string, { -readonly [Field in keyof HeldKv]: HeldKv[Field] }>;
}

/** The owner of a chain that begins with this key on this worker. */
export type RootOwner = (workerId: string, rootKey: BlockKey) => ChainOwner | undefined;

/** The owner of blocks whose chain no request has begun; there are none unless worker and gateway disagree. */
const nobody: ChainOwner = { tenantId: "", isFragment: false };

export class Residency {
  readonly #workers = new Map<string, WorkerBlocks>();
  readonly #rootOwner: RootOwner;

  constructor(rootOwner: RootOwner = () => undefined) {
    this.#rootOwner = rootOwner;
  }

  /** Applies what a worker reports of its blocks, in the worker's order. */
  apply(workerId: string, events: readonly KvEvent[]): void {
    for (const event of events) {
      if (event.type === "removed") this.#remove(workerId, event.blockKeys);
      else this.#store(workerId, event);
    }
  }

  /** To be called when the worker has ended: its blocks are gone. */
  forget(workerId: string): void {
    this.#workers.delete(workerId);
  }

  /** Ids of the workers that hold the block. */
  holders(key: BlockKey): readonly string[] {
    return [...this.#workers].filter(([, { blocks }]) => blocks.has(key)).map(([workerId]) => workerId);
  }

  holds(workerId: string, key: BlockKey): boolean {
    return this.#workers.get(workerId)?.blocks.has(key) === true;
  }

  /** Blocks the worker holds under a key. */
  blockCount(workerId: string): number {
    return this.#workers.get(workerId)?.blocks.size ?? 0;
  }

  /** Keys of all that the worker holds. */
  keys(workerId: string): Iterable<BlockKey> {
    return this.#workers.get(workerId)?.blocks.keys() ?? [];
  }

  /** Everything that is held at this moment. */
  all(): readonly { readonly workerId: string; readonly blockKeys: BlockKey[]; readonly tokenCounts: number[] }[] {
    return [...this.#workers].map(([workerId, { blocks }]) => {
      return {
        workerId,
        blockKeys: [...blocks.keys()],
        tokenCounts: [...blocks.values()].map((block) => block.tokenCount),
      };
    });
  }

  /** Keys of the blocks that the worker holds of one tenant. */
  keysOf(workerId: string, tenantId: WorkOwner, withoutFragments: boolean): BlockKey[] {
    const keys: BlockKey[] = [];
    for (const [key, { owner }] of this.#workers.get(workerId)?.blocks ?? []) {
      if (owner.tenantId === tenantId && !(withoutFragments && owner.isFragment)) keys.push(key);
    }
    return keys;
  }

  /** How much the worker holds, by tenant. */
  byTenant(workerId: string): ReadonlyMap<string, HeldKv> {
    return this.#workers.get(workerId)?.byTenant ?? new Map<string, HeldKv>();
  }

  /** Tokens of these runs that the worker holds, as far as the gateway knows. */
  cachedTokens(workerId: string, runs: readonly PlanRun[], blockTokens: number): number {
    if (this.blockCount(workerId) === 0) return 0;
    return tokensBefore(runs, blockTokens, (key) => this.holds(workerId, key));
  }

  #store(workerId: string, { blockKeys, previousKeys, tokenCounts }: StoredEvent): void {
    const { blocks, byTenant } = this.#blocksOf(workerId);
    blockKeys.forEach((key, index) => {
      const previous = previousKeys[index];
      if (blocks.has(key) || previous === undefined) return;
      const before = blocks.get(previous);
      const owner = before?.owner ?? this.#rootOwner(workerId, previous) ?? nobody;
      const tokenCount = tokenCounts[index] ?? 0;
      // Blocks of one chain have equal entries, so they share one object: a pool may have millions of blocks.
      const block = before?.tokenCount === tokenCount ? before : { owner, tokenCount };
      blocks.set(key, block);
      count(byTenant, block, 1);
    });
  }

  #remove(workerId: string, blockKeys: readonly BlockKey[]): void {
    const { blocks, byTenant } = this.#blocksOf(workerId);
    for (const key of blockKeys) {
      const block = blocks.get(key);
      if (block === undefined) continue;
      blocks.delete(key);
      count(byTenant, block, -1);
    }
  }

  #blocksOf(workerId: string): WorkerBlocks {
    return this.#workers.getOrInsertComputed(workerId, () => ({ blocks: new Map(), byTenant: new Map() }));
  }
}

function count(byTenant: WorkerBlocks["byTenant"], { owner, tokenCount }: HeldBlock, sign: 1 | -1): void {
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
