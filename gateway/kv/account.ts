/**
 * How much KV lies in files and whose it is, when spans were used last, and what goes to make room: a tenant's own files
 * for what is beyond its limit, then whoever's were not used for longest. Pinned ones stay.
 */

import type { TenantId } from "../../db/ids.ts";
import {
  type GoneObject,
  listPinnedKvSpans,
  oldestKvObjects,
  pinKvSpans,
  sumPinnedKv,
  touchKvSpans,
} from "../../db/kv-objects.ts";
import type { Db } from "../../db/open.ts";
import type { FileTier, TokenPlan } from "../../worker/contract/messages.ts";
import type { KvTier } from "../../worker/contract/tiers.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { chunks } from "../base/chunks.ts";
import { messageOf } from "../base/errors.ts";
import { yieldToRequests } from "../base/pace.ts";
import { removedAtOnce } from "./removal.ts";
import type { Room } from "./room.ts";

/** What lies in a tier. */
export interface KvSum {
  readonly objects: number;
  readonly blocks: number;
  readonly bytes: number;
}

/** Why a file is not written: the disk or all files' share of it is full, or the tenant's limit is. */
export type NoRoom = "full" | "quota";

/** What lies in a tier that all workers share. */
export interface TierUse extends KvSum {
  readonly tier: KvTier;
  readonly pinnedBytes: number;
  readonly quotaBytes: number;
}

/** What a tenant has in such a tier. */
export interface TenantTierUse extends KvSum {
  readonly tier: KvTier;
  /** undefined: it has no limit of its own. */
  readonly quotaBytes: number | undefined;
}

export interface KvAccountOptions {
  readonly db: Db;
  readonly room: Room;
  /** Bytes that a tenant may keep in files; undefined: as many as there is room for. */
  readonly quotaBytesOf: (tenantId: TenantId) => number | undefined;
  readonly listener?: TierListener | undefined;
  /** Takes these objects out of the folder, to make room. */
  readonly onDrop: (objects: readonly GoneObject[]) => void;
}

/** Spans whose use is not written down yet: so many are written soon, and more than that many are not kept. */
const [writtenSoon, usedSpans] = [removedAtOnce, 2_000];
const flushMs = 60_000;
const nothing: KvSum = { objects: 0, blocks: 0, bytes: 0 };

/** Told of a tenant's blocks in a tier that all workers share. */
export interface TierListener {
  /** They have come there or, with a count below zero, gone. */
  held(tier: FileTier, tenantId: TenantId, blocks: number): void;
  /** They were brought from there. */
  loaded(tier: FileTier, tenantId: TenantId, blocks: number): void;
}

/** How much of KV is whose in one place, counted as objects come and go. */
export class KvSums {
  readonly #byTenant = new Map<TenantId, KvSum>();
  readonly #onCount: (tenantId: TenantId, blocks: number) => void;
  #all = nothing;

  constructor(onCount: (tenantId: TenantId, blocks: number) => void) {
    this.#onCount = onCount;
  }

  get all(): KvSum {
    return this.#all;
  }

  of(tenantId: string): KvSum {
    const byId: ReadonlyMap<string, KvSum> = this.#byTenant;
    return byId.get(tenantId) ?? nothing;
  }

  /** Those that have any. */
  get byTenant(): ReadonlyMap<TenantId, KvSum> {
    return this.#byTenant;
  }

  /** @param sign whether the objects come or go */
  count(objects: readonly Pick<GoneObject, "tenantId" | "blockCount" | "bytes">[], sign: 1 | -1): void {
    for (const { tenantId, blockCount, bytes } of objects) {
      this.add(tenantId, { objects: sign, blocks: sign * blockCount, bytes: sign * bytes });
      this.#onCount(tenantId, sign * blockCount);
    }
  }

  /** What was there before. */
  add(tenantId: TenantId, change: KvSum): void {
    this.#all = sumOf(this.#all, change);
    const own = sumOf(this.of(tenantId), change);
    if (own.objects === 0) this.#byTenant.delete(tenantId);
    else this.#byTenant.set(tenantId, own);
  }
}

export class KvAccount {
  readonly #options: KvAccountOptions;
  readonly #sums: KvSums;
  readonly #used = new Set<BlockKey>();
  /** undefined: since the start nobody has said what is pinned, and what was before stays so. */
  #pinned: ReadonlySet<BlockKey> | undefined;
  #timer: ReturnType<typeof setInterval> | undefined;
  #writing: Promise<void> | undefined;
  #isStopped = false;

  constructor(options: KvAccountOptions) {
    this.#options = options;
    this.#sums = new KvSums((tenantId, blocks) => options.listener?.held("disk", tenantId, blocks));
  }

  start(): void {
    this.#timer = setInterval(() => void this.#writeUses(), flushMs);
    this.#timer.unref();
  }

  /** What is being dropped stays for the next start. */
  stop(): void {
    clearInterval(this.#timer);
    this.#isStopped = true;
    while (this.#writeSomeUses());
  }

  get all(): KvSum {
    return this.#sums.all;
  }

  get pinnedBytes(): number {
    return sumPinnedKv(this.#options.db, "disk");
  }

  of(tenantId: string): KvSum {
    return this.#sums.of(tenantId);
  }

  /** Those who have any. */
  get tenants(): Iterable<TenantId> {
    return this.#sums.byTenant.keys();
  }

  /** What one tenant has. */
  useOf(tenantId: TenantId): TenantTierUse {
    return { tier: "disk", ...this.#sums.of(tenantId), quotaBytes: this.#options.quotaBytesOf(tenantId) };
  }

  /** A start has found these in the folder. */
  found(objects: readonly GoneObject[]): void {
    for (const { tenantId, blockCount: blocks, bytes } of objects)
      this.#sums.add(tenantId, { objects: 1, blocks, bytes });
  }

  add(objects: readonly GoneObject[]): void {
    this.#sums.count(objects, 1);
  }

  remove(objects: readonly GoneObject[]): void {
    this.#sums.count(objects, -1);
  }

  /** A request uses these spans: they are dropped last. */
  noteUse({ runs }: TokenPlan): void {
    for (const { kind, blockKeys } of runs) {
      const spanKey = blockKeys.at(-1);
      if (kind === "span" && spanKey !== undefined && this.#used.size < usedSpans) this.#used.add(spanKey);
    }
    if (this.#used.size >= writtenSoon) void this.#writeUses();
  }

  /** A job has found the span, and counts on it. */
  touch(spanKey: BlockKey): void {
    this.#used.add(spanKey);
    if (this.#used.size >= writtenSoon) void this.#writeUses();
  }

  /** Exactly these spans are pinned from now on. */
  setPinned(spanKeys: ReadonlySet<BlockKey>): void {
    const { db } = this.#options;
    const before = this.#pinned ?? new Set(listPinnedKvSpans(db));
    // Keys are what the database holds of them.
    const gone = [...before].filter((key) => !spanKeys.has(key as BlockKey));
    const added = [...spanKeys].filter((key) => !before.has(key));
    for (const part of chunks(gone, removedAtOnce)) pinKvSpans(db, part, false);
    for (const part of chunks(added, removedAtOnce)) pinKvSpans(db, part, true);
    this.#pinned = spanKeys;
  }

  isPinned(spanKey: BlockKey): boolean {
    return this.#pinned?.has(spanKey) === true;
  }

  /**
   * Makes room for a file of the tenant's.
   * @param writing bytes of files that are being written: all, and the tenant's
   * @param usedBefore only files that were last used before this time may go
   * @returns why it may not be written
   */
  makeRoom(
    bytes: number,
    tenantId: TenantId,
    writing: { readonly all: number; readonly own: number },
    usedBefore: number,
  ): NoRoom | undefined {
    const { room } = this.#options;
    if (room.isResting) return "full";
    try {
      if (!this.#makeOwnRoom(tenantId, bytes + writing.own, usedBefore)) return "quota";
      const surplus = room.surplus(bytes, this.all.bytes + writing.all);
      return surplus !== undefined && this.#free(surplus, undefined, usedBefore) ? undefined : "full";
    } catch (error) {
      // The database takes no change for now: nothing is written, and what was prepared stays prepared.
      room.rest(messageOf(error));
      return "full";
    }
  }

  /**
   * Drops what is kept beyond the tenant's limit and beyond what all files may take, in slices between which others
   * work: a limit may have been lowered. What a file of its own needs is little, and `makeRoom` frees it at once.
   * Never rejects.
   */
  async trim(tenantId: TenantId, usedBefore = Number.MAX_SAFE_INTEGER): Promise<void> {
    const { room, quotaBytesOf } = this.#options;
    const ownSurplus = (): number => this.of(tenantId).bytes - (quotaBytesOf(tenantId) ?? Number.POSITIVE_INFINITY);
    const surplus = (): number => room.surplus(0, this.all.bytes) ?? 0;
    try {
      await this.#freeInSlices(ownSurplus, tenantId, Number.MAX_SAFE_INTEGER);
      await this.#freeInSlices(surplus, undefined, usedBefore);
    } catch (error) {
      room.rest(messageOf(error));
    }
  }

  async #freeInSlices(surplus: () => number, tenantId: TenantId | undefined, usedBefore: number): Promise<void> {
    if (surplus() > 0) await this.#writeUses();
    // Others add and remove meanwhile, so what is too much is looked at again.
    while (!this.#isStopped && surplus() > 0 && this.#freeSlice(surplus(), tenantId, usedBefore) > 0) {
      await yieldToRequests();
    }
  }

  /** @returns whether they fit in what the tenant may keep */
  #makeOwnRoom(tenantId: TenantId, bytes: number, usedBefore: number): boolean {
    const quotaBytes = this.#options.quotaBytesOf(tenantId);
    if (quotaBytes === undefined) return true;
    return bytes <= quotaBytes && this.#free(this.of(tenantId).bytes + bytes - quotaBytes, tenantId, usedBefore);
  }

  /** @returns whether so many bytes were freed */
  #free(bytes: number, tenantId: TenantId | undefined, usedBefore: number): boolean {
    if (bytes > 0) while (this.#writeSomeUses());
    for (let left = bytes; left > 0; ) {
      const freed = this.#freeSlice(left, tenantId, usedBefore);
      if (freed === 0) return false;
      left -= freed;
    }
    return true;
  }

  /** Drops some of the files that were not used for longest, up to so many bytes. @returns how many were freed */
  #freeSlice(bytes: number, tenantId: TenantId | undefined, usedBefore: number): number {
    const { db, onDrop } = this.#options;
    const rows: GoneObject[] = [];
    let freed = 0;
    for (const row of oldestKvObjects(db, { tenantId, usedBefore }, removedAtOnce)) {
      if (freed >= bytes) break;
      rows.push(row);
      freed += row.bytes;
    }
    if (rows.length > 0) onDrop(rows);
    return freed;
  }

  /** Writes down when spans were used last, in slices between which others work. */
  #writeUses(): Promise<void> {
    const write = async (): Promise<void> => {
      do await yieldToRequests();
      while (!this.#isStopped && this.#writeSomeUses());
    };
    this.#writing ??= write().finally(() => {
      this.#writing = undefined;
    });
    return this.#writing;
  }

  /** @returns whether there are more */
  #writeSomeUses(): boolean {
    const { db } = this.#options;
    const keys = [...this.#used.values().take(removedAtOnce)];
    if (keys.length === 0) return false;
    for (const key of keys) this.#used.delete(key);
    try {
      // The times of use are a hint: a power cut may take them back.
      db.unsynced(() => touchKvSpans(db, keys, Date.now()));
    } catch {
      // And they may be missing.
    }
    return this.#used.size > 0;
  }
}

const sumOf = (a: KvSum, b: KvSum): KvSum => ({
  objects: a.objects + b.objects,
  blocks: a.blocks + b.blocks,
  bytes: a.bytes + b.bytes,
});
