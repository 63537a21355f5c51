/**
 * Where KV is beside the device's pool, as the engine sees it. Without memory of the host, files are read into the pool
 * and written from it; with it they are read into that memory and written from there, and blocks come up from it.
 */
import type { Backend } from "../backend/backend.ts";
import type { KvEvents } from "../cache/kv-events.ts";
import type { TierStats } from "../contract/messages.ts";
import type { BlockKey } from "../contract/units.ts";
import { DiskTier, type DiskTierOptions, type StepGaps } from "./disk-tier.ts";
import { HostTier, type HostTierOptions } from "./host-tier.ts";
import type { Requester } from "./requester.ts";

export class Tiers {
  readonly host: HostTier | undefined;
  readonly disk: DiskTier | undefined;

  constructor(host: HostTier | undefined, disk: DiskTier | undefined) {
    this.host = host;
    this.disk = disk;
  }

  get gaps(): StepGaps | undefined {
    return this.disk?.gaps;
  }

  /** What was moved between the pool and each tier that there is. */
  stats(): TierStats[] {
    return [this.host?.stats(), this.disk?.stats()].filter((stats) => stats !== undefined);
  }

  /** Whether requests wait for what comes. */
  get isBusy(): boolean {
    return this.disk?.isBusy === true || this.host?.loads.isBusy === true;
  }

  /** Whether the block is on its way, so that nobody computes it. */
  isComing(key: BlockKey): boolean {
    return this.disk?.isComing(key) === true || this.host?.loads.isComing(key) === true;
  }

  /** A step computed so many rows of prompts. */
  noteStep(rows: number, ms: number): void {
    this.host?.loads.tokenCost.noteStep(rows, ms);
    this.disk?.loads.costs.tokens.noteStep(rows, ms);
  }

  /** Brings what these requests lack. */
  want(requesters: readonly Requester[]): void {
    this.host?.loads.want(requesters);
    this.disk?.want(requesters);
  }

  evict(keys: readonly BlockKey[], owner?: number): void {
    this.host?.evict(keys, owner);
  }

  pin(keys: readonly BlockKey[], pinned: boolean): void {
    this.host?.cache.pin(keys, pinned);
  }
}

export interface TiersOptions
  extends Omit<DiskTierOptions, "mover" | "modelDigest" | "files" | "settled" | "sharesProcessor">,
    Omit<HostTierOptions, "blocks"> {
  readonly backend: Pick<Backend, "mover" | "hostBlocks">;
  /** Undefined: no KV is kept in files. */
  readonly modelDigest: string | undefined;
  readonly files: DiskTierOptions["files"] | undefined;
}

/** Whatever tiers the backend allows. */
export function tiersOf({ backend, modelDigest, files, ...options }: TiersOptions): Tiers {
  const { hostBlocks: blocks } = backend;
  const host = blocks && new HostTier({ ...options, blocks });
  const mover = host?.mover ?? backend.mover;
  if (mover === undefined || modelDigest === undefined) return new Tiers(host, undefined);
  const above = host && { pool: host.pool, cache: host.cache, settled: () => host.settled(), reservedBlocks: () => 0 };
  const disk = { ...options, ...above, mover, modelDigest, sharesProcessor: host === undefined };
  return new Tiers(host, new DiskTier({ ...disk, ...(files && { files }) }));
}

/** The events of the device's cache, which tells the host's memory below of what it stores. */
export function eventsAbove(log: KvEvents, host: () => HostTier | undefined): KvEvents {
  return {
    stored(key, previousKey, tokenCount) {
      log.stored(key, previousKey, tokenCount);
      host()?.deviceStored(key, previousKey);
    },
    removed: (key) => log.removed(key),
  };
}
