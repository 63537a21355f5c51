/**
 * Which worker holds which blocks, as told by their KV events, and whose they are. For routing a hint: a wrong entry
 * costs a recomputation, never a wrong answer. For accounting exact: each stored block is told with the key it was
 * chained from, so it is its chain's owner's, whether the gateway could know its tokens or the worker generated them.
 */

import type { KvEvent, PlanRun, StoredEvent } from "../../../worker/contract/messages.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import type { WorkOwner } from "../request/request.ts";
import type { ChainOwner } from "./pending-blocks.ts";

/** What one tenant holds on one worker. */
export interface HeldKv {
  readonly blockCount: number;
  readonly tokenCount: number;
  /** Blocks of its corpora's fragments, of those above. */
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

/** Owner of a chain that begins with this key on this worker. */
export type RootOwner = (workerId: string, rootKey: BlockKey) => ChainOwner | undefined;

/** Of blocks whose chain no request has begun: there are none while the worker and we agree. */
const nobody: ChainOwner = { tenantId: "", isFragment: false };

export class Residency {
  readonly #workers = new Map<string, WorkerBlocks>();
  readonly #rootOwner: RootOwner;

  constructor(rootOwner: RootOwner = () => undefined) {
    this.#rootOwner = rootOwner;
  }

  /** What a worker tells of its blocks, in its order. */
  apply(workerId: string, events: readonly KvEvent[]): void {
    for (const event of events) {
      if (event.type === "removed") this.#remove(workerId, event.blockKeys);
      else this.#store(workerId, event);
    }
  }

  /** The worker's memory is gone. */
  forget(workerId: string): void {
    this.#workers.delete(workerId);
  }

  /** Workers that hold the key. */
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

  /** All that is held, at this moment. */
  all(): readonly { readonly workerId: string; readonly blockKeys: BlockKey[]; readonly tokenCounts: number[] }[] {
    return [...this.#workers].map(([workerId, { blocks }]) => {
      return {
        workerId,
        blockKeys: [...blocks.keys()],
        tokenCounts: [...blocks.values()].map((block) => block.tokenCount),
      };
    });
  }

  /** Keys of what the worker holds of one tenant's. */
  keysOf(workerId: string, tenantId: WorkOwner, withoutFragments: boolean): BlockKey[] {
    const keys: BlockKey[] = [];
    for (const [key, { owner }] of this.#workers.get(workerId)?.blocks ?? []) {
      if (owner.tenantId === tenantId && !(withoutFragments && owner.isFragment)) keys.push(key);
    }
    return keys;
  }

  /** What the worker holds, by tenant. */
  byTenant(workerId: string): ReadonlyMap<string, HeldKv> {
    return this.#workers.get(workerId)?.byTenant ?? new Map<string, HeldKv>();
  }

  /** Tokens of the runs that the worker holds, as far as can be told. */
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
      // Blocks of a chain say the same, so they share what they say: a pool may have millions.
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
    const found = this.#workers.get(workerId);
    if (found !== undefined) return found;
    const created: WorkerBlocks = { blocks: new Map(), byTenant: new Map() };
    this.#workers.set(workerId, created);
    return created;
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

/** Tokens of the runs in the first blocks that are there. */
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
 * How many first blocks of a chain are there. Blocks are freed from the end of a chain, so what is there is a
 * prefix and can be found by bisection: a chain of 1,024 blocks costs 11 look-ups.
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
