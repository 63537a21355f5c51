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
import type { TokenPlan } from "../../worker/contract/messages.ts";
import type { KvTier } from "../../worker/contract/tiers.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { messageOf } from "../base/errors.ts";
import { chunks, removedAtOnce } from "./removal.ts";
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
  /** Takes these objects out of the folder, to make room. */
  readonly onDrop: (objects: readonly GoneObject[]) => void;
}

/** Spans whose use is not written down yet, at most. */
const usedSpans = 2_000;
const flushMs = 60_000;
const nothing: KvSum = { objects: 0, blocks: 0, bytes: 0 };

export class KvAccount {
  readonly #options: KvAccountOptions;
  readonly #byTenant = new Map<TenantId, KvSum>();
  readonly #used = new Set<BlockKey>();
  /** undefined: since the start nobody has said what is pinned, and what was before stays so. */
  #pinned: ReadonlySet<BlockKey> | undefined;
  #all = nothing;
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(options: KvAccountOptions) {
    this.#options = options;
  }

  start(): void {
    this.#timer = setInterval(() => this.#flush(), flushMs);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#flush();
  }

  get all(): KvSum {
    return this.#all;
  }

  get pinnedBytes(): number {
    return sumPinnedKv(this.#options.db, "disk");
  }

  of(tenantId: TenantId): KvSum {
    return this.#byTenant.get(tenantId) ?? nothing;
  }

  /** What each tenant has, of those that have any. */
  byTenant(): ReadonlyMap<TenantId, TenantTierUse> {
    const { quotaBytesOf } = this.#options;
    const entries = [...this.#byTenant].map(
      ([id, sum]) => [id, { tier: "disk", ...sum, quotaBytes: quotaBytesOf(id) }] as const,
    );
    return new Map(entries);
  }

  add(objects: readonly GoneObject[]): void {
    this.#count(objects, 1);
  }

  remove(objects: readonly GoneObject[]): void {
    this.#count(objects, -1);
  }

  /** A request uses these spans: they are dropped last. */
  noteUse({ runs }: TokenPlan): void {
    for (const { kind, blockKeys } of runs) {
      const spanKey = blockKeys.at(-1);
      if (kind === "span" && spanKey !== undefined && this.#used.size < usedSpans) this.#used.add(spanKey);
    }
  }

  /** A job has found the span, and counts on it. */
  touch(spanKey: BlockKey): void {
    this.#used.add(spanKey);
    if (this.#used.size >= usedSpans) this.#flush();
  }

  /** Exactly these spans are pinned from now on. */
  setPinned(spanKeys: ReadonlySet<BlockKey>): void {
    const { db } = this.#options;
    const before = this.#pinned ?? new Set(listPinnedKvSpans(db));
    // Keys are what the database holds of them.
    const gone = [...before].filter((key) => !spanKeys.has(key as BlockKey));
    const added = [...spanKeys].filter((key) => !before.has(key));
    for (const part of chunks(gone)) pinKvSpans(db, part, false);
    for (const part of chunks(added)) pinKvSpans(db, part, true);
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
      if (!this.trim(tenantId, bytes + writing.own, usedBefore)) return "quota";
      const surplus = room.surplus(bytes, this.#all.bytes + writing.all);
      return surplus !== undefined && this.#free(surplus, undefined, usedBefore) ? undefined : "full";
    } catch (error) {
      // The database takes no change for now: nothing is written, and what was prepared stays prepared.
      room.rest(messageOf(error));
      return "full";
    }
  }

  /**
   * Drops what a tenant keeps beyond its limit.
   * @param bytes that it is about to keep besides
   * @returns false: they do not fit, whatever is dropped
   */
  trim(tenantId: TenantId, bytes = 0, usedBefore = Number.MAX_SAFE_INTEGER): boolean {
    const quotaBytes = this.#options.quotaBytesOf(tenantId);
    if (quotaBytes === undefined) return true;
    return bytes <= quotaBytes && this.#free(this.of(tenantId).bytes + bytes - quotaBytes, tenantId, usedBefore);
  }

  /** @returns whether so many bytes were freed */
  #free(bytes: number, tenantId: TenantId | undefined, usedBefore: number): boolean {
    const { db, onDrop } = this.#options;
    if (bytes > 0) this.#flush();
    for (let left = bytes; left > 0; ) {
      const rows: GoneObject[] = [];
      for (const row of oldestKvObjects(db, { tenantId, usedBefore }, removedAtOnce)) {
        if (left <= 0) break;
        rows.push(row);
        left -= row.bytes;
      }
      if (rows.length === 0) return false;
      onDrop(rows);
    }
    return true;
  }

  #count(objects: readonly GoneObject[], sign: 1 | -1): void {
    for (const object of objects) {
      this.#all = sumOf(this.#all, object, sign);
      const own = sumOf(this.of(object.tenantId), object, sign);
      if (own.objects === 0) this.#byTenant.delete(object.tenantId);
      else this.#byTenant.set(object.tenantId, own);
    }
  }

  /** Writes down when spans were used last. */
  #flush(): void {
    const keys = [...this.#used];
    this.#used.clear();
    try {
      for (const part of chunks(keys)) touchKvSpans(this.#options.db, part, Date.now());
    } catch {
      // The times of use are a hint.
    }
  }
}

/** @param sign whether the object comes or goes */
export const sumOf = (
  { objects, blocks, bytes }: KvSum,
  object: Pick<GoneObject, "blockCount" | "bytes">,
  sign: 1 | -1,
): KvSum => ({
  objects: objects + sign,
  blocks: blocks + sign * object.blockCount,
  bytes: bytes + sign * object.bytes,
});
