/** Where objects are: in the folder, in the bucket, or in both. Without a bucket all are in the folder. */
import type { TenantId } from "../../db/ids.ts";
import { hasKvBucket, inBucket, placeKvObjects, removeNowhereKv, useKvBucket } from "../../db/kv-bucket.ts";
import {
  findKvObject,
  findKvObjectByKey,
  type GoneObject,
  type KvObjectRow,
  listKvObjectIds,
} from "../../db/kv-objects.ts";
import type { Db } from "../../db/open.ts";
import { extentBlocks, type KvObject } from "../../worker/contract/kv-object.ts";
import type { FileTier, GatewayMessage } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { chunks } from "../base/chunks.ts";
import type { Log } from "../base/log.ts";
import type { KvAccount, NoRoom, TenantTierUse, TierListener, TierUse } from "./account.ts";
import { type BucketSettings, KvBucket } from "./bucket.ts";
import { type KvRemoval, removedAtOnce } from "./removal.ts";

export interface KvPlacesOptions {
  readonly db: Db;
  readonly folder: string;
  readonly bucket: BucketSettings | undefined;
  readonly listener?: TierListener | undefined;
  readonly log: Log;
  readonly account: () => KvAccount;
  readonly removal: () => KvRemoval;
  /** Bytes of files that workers are writing: all, and the tenant's. */
  readonly writing: (tenantId: TenantId) => { readonly all: number; readonly own: number };
  /** Takes rows out of the database with all that is known of them. */
  readonly remove: (ids: readonly string[]) => void;
  readonly broadcast: (message: GatewayMessage) => void;
  /** Tells workers of an object that they have forgotten. */
  readonly tellAgain: (row: KvObjectRow) => void;
}

export class KvPlaces {
  readonly #options: KvPlacesOptions;
  /** Objects whose files came from the bucket since the start, and which of all files that came each is. */
  readonly #fetched = new Map<string, number>();
  #fetchCount = 0;
  /** Objects whose files are going to make room. */
  readonly #leaving = new Map<string, Promise<void>>();
  /** Objects that are on their way from there. */
  readonly #fetching = new Map<string, GoneObject>();
  #bucket: KvBucket | undefined;
  /** The files are counted; they are not while the folder cannot be used. */
  #isCounted = false;

  constructor(options: KvPlacesOptions) {
    this.#options = options;
  }

  /**
   * Brings rows and files together: what is nowhere any more goes.
   * @param files the folder's files
   * @returns those that no row has
   */
  open(files: ReadonlySet<string>, isOff: boolean): readonly string[] {
    const { db, bucket, log, remove, account, listener } = this.#options;
    // What an earlier start had in a bucket cannot be reached.
    if (bucket === undefined && hasKvBucket(db)) useKvBucket(db, "", "");
    if (bucket !== undefined && !isOff) {
      this.#bucket = new KvBucket({ ...bucket, db, log, nowMs: () => performance.now(), remove, listener });
    }
    const rows = listKvObjectIds(db).filter(({ onDisk }) => onDisk === 1);
    const missing = rows.filter(({ id }) => !files.has(id)).map(({ id }) => id);
    for (const ids of chunks(missing, removedAtOnce)) placeKvObjects(db, ids, { onDisk: 0 });
    for (;;) {
      const nowhere = removeNowhereKv(db, removedAtOnce);
      if (nowhere.length === 0) break;
      this.#bucket?.gone(nowhere);
    }
    const known = rows.filter(({ id }) => files.has(id));
    account().found(known);
    this.#isCounted = true;
    const ids = new Set(known.map(({ id }) => id));
    return [...files].filter((name) => !ids.has(name));
  }

  start(): void {
    this.#bucket?.start();
  }

  async stop(): Promise<void> {
    await this.#bucket?.stop();
  }

  /** There may be files to copy. */
  wake(): void {
    this.#bucket?.wake();
  }

  /** What lies in the bucket; undefined: there is none. */
  bucketUse(): TierUse | undefined {
    return this.#bucket?.use();
  }

  /** What one tenant has in files and in the bucket, of these those where it has anything. */
  usesOf(tenantId: TenantId): readonly TenantTierUse[] {
    const uses = [this.#options.account().useOf(tenantId), this.#bucket?.useOf(tenantId)];
    return uses.filter((use) => use !== undefined).filter(({ objects }) => objects > 0);
  }

  /** What each tenant uses, of those that have anything in files or in the bucket. */
  usesByTenant(): ReadonlyMap<TenantId, readonly TenantTierUse[]> {
    const tenants = new Set([...this.#options.account().tenants, ...(this.#bucket?.tenants ?? [])]);
    return new Map([...tenants].map((id) => [id, this.usesOf(id)] as const));
  }

  /** Blocks of the tenant in the bucket. */
  bucketBlocksOf(tenantId: string): number {
    return this.#bucket?.of(tenantId).blocks ?? 0;
  }

  get isBucketEmpty(): boolean {
    return this.#bucket?.isEmpty !== false;
  }

  /** Rows are removed. */
  gone(objects: readonly GoneObject[]): void {
    if (this.#isCounted) this.#options.account().remove(objects.filter(({ onDisk }) => onDisk === 1));
    for (const { id } of objects) this.#fetched.delete(id);
    this.#bucket?.gone(objects);
  }

  /** The tiers of files that there are. */
  get tiers(): readonly FileTier[] {
    return this.#bucket === undefined ? ["disk"] : ["disk", "s3"];
  }

  /** Those of them that hold every object of a span. */
  tiersHolding(blockKeys: readonly BlockKey[]): readonly FileTier[] {
    let held = blockKeys.length === 0 ? [] : this.tiers;
    for (let end = extentBlocks; end < blockKeys.length + extentBlocks && held.length > 0; end += extentBlocks) {
      const lastKey = blockKeys[Math.min(end, blockKeys.length) - 1];
      const row = lastKey === undefined ? undefined : findKvObjectByKey(this.#options.db, lastKey);
      held = held.filter((tier) => row !== undefined && (tier === "disk" ? row.onDisk === 1 : isInBucket(row)));
    }
    return held;
  }

  /** How many of a chain's first blocks lie in files of the folder. */
  blocksOnDisk(blockKeys: readonly BlockKey[]): number {
    for (let first = 0; first < blockKeys.length; first += extentBlocks) {
      const lastKey = blockKeys[Math.min(first + extentBlocks, blockKeys.length) - 1];
      const row = lastKey === undefined ? undefined : findKvObjectByKey(this.#options.db, lastKey);
      if (row?.onDisk !== 1) return first;
    }
    return blockKeys.length;
  }

  /** Makes room in the folder for a file of the tenant's. @returns why it may not come there */
  makeRoom(bytes: number, tenantId: TenantId, usedBefore = Number.MAX_SAFE_INTEGER): NoRoom | undefined {
    let { all, own } = this.#options.writing(tenantId);
    for (const row of this.#fetching.values()) {
      all += row.bytes;
      if (row.tenantId === tenantId) own += row.bytes;
    }
    return this.#options.account().makeRoom(bytes, tenantId, { all, own }, usedBefore);
  }

  /** These objects' files go, to make room; what the bucket has is left to it. */
  drop(objects: readonly GoneObject[]): void {
    this.#leaveFolder(objects.filter(isInBucket));
    this.#options.remove(objects.filter((object) => !isInBucket(object)).map(({ id }) => id));
  }

  /** A worker waits for an object that is in the bucket alone. */
  async fetch(objectId: string): Promise<void> {
    const { db, removal } = this.#options;
    const moved = (tier: FileTier): void =>
      this.#options.broadcast({ type: "moved", objectIds: [objectId], tier, copy: this.#copyOf(objectId) });
    const tenantId = findKvObject(db, objectId)?.tenantId;
    if (tenantId !== undefined) await this.#options.account().trim(tenantId);
    // What removes a file must not meet the one that comes in its place.
    await this.#leaving.get(objectId);
    const row = findKvObject(db, objectId);
    // Workers were told to forget it.
    if (row === undefined) return;
    if (row.onDisk === 1) return moved("disk");
    const isOnTheWay = this.#fetching.has(objectId);
    // Files make room only for one that can come.
    if (this.#bucket?.canFetch(objectId) !== true) return moved("s3");
    if (!isOnTheWay && this.makeRoom(row.bytes, row.tenantId) !== undefined) return moved("s3");
    this.#fetching.set(objectId, row);
    const fetched = await this.#bucket.fetch(row);
    this.#fetching.delete(objectId);
    const still = findKvObject(db, objectId);
    if (still === undefined) return void removal().unlink([objectId]);
    if (fetched === "gone") return this.#lost(objectId);
    if (fetched === "here" && still.onDisk === 0) {
      placeKvObjects(db, [objectId], { onDisk: 1 });
      this.#options.account().add([still]);
      this.#options.listener?.loaded("s3", still.tenantId, still.blockCount);
      this.#fetchCount += 1;
      this.#fetched.set(objectId, this.#fetchCount);
    }
    moved(fetched === "here" ? "disk" : "s3");
  }

  /**
   * Brings an object that may soon be wanted, if no file has to make room for it.
   * @returns whether it is in the folder
   */
  async fetchAhead(objectId: string): Promise<boolean> {
    const { db } = this.#options;
    const row = findKvObject(db, objectId);
    if (row === undefined) return false;
    if (row.onDisk !== 1) {
      const canCome = this.#bucket?.canFetch(objectId) === true;
      if (!canCome || this.makeRoom(row.bytes, row.tenantId, 0) !== undefined) return false;
      await this.fetch(objectId);
    }
    return findKvObject(db, objectId)?.onDisk === 1;
  }

  /** The object, with which copy of it the folder has. */
  numbered(object: KvObject): KvObject {
    const copy = this.#copyOf(object.id);
    return copy === 0 ? object : { ...object, copy };
  }

  /**
   * A worker has forgotten an object whose file it cannot read. The bucket's copy is another, unless the file is that.
   * @param copy that the worker has read; when another has come since, nothing is known of that one
   */
  unreadable(objectId: string, reason: string, copy: number): void {
    const { db, log, folder, remove, tellAgain } = this.#options;
    const row = findKvObject(db, objectId);
    if (row === undefined) return;
    try {
      if (copy !== this.#copyOf(objectId)) return tellAgain(row);
      if (isInBucket(row) && !this.#fetched.has(objectId)) {
        if (row.onDisk === 1) this.#leaveFolder([row]);
        tellAgain(row);
      } else db.removing(() => remove([objectId]));
    } catch {
      // The database takes no change: the row goes when its file is read again after the next start.
    }
    log("warn", "a KV file cannot be read: its blocks are computed", { folder, objectId, reason });
  }

  /** 0, or the number of the fetch that it came by. */
  #copyOf(objectId: string): number {
    return this.#fetched.get(objectId) ?? 0;
  }

  #lost(objectId: string): void {
    const { log, remove } = this.#options;
    remove([objectId]);
    log("warn", "an object of KV is not in the bucket any more: its blocks are computed", { objectId });
  }

  /** The bucket has these objects; their files go. */
  #leaveFolder(objects: readonly GoneObject[]): void {
    if (objects.length === 0) return;
    const { db, account, removal, broadcast } = this.#options;
    const ids = objects.map(({ id }) => id);
    placeKvObjects(db, ids, { onDisk: 0 });
    account().remove(objects);
    for (const id of ids) this.#fetched.delete(id);
    broadcast({ type: "moved", objectIds: ids, tier: "s3" });
    const left = removal().unlink(ids);
    for (const id of ids) this.#leaving.set(id, left);
    void left.then(() => {
      for (const id of ids) if (this.#leaving.get(id) === left) this.#leaving.delete(id);
    });
  }
}

/** Whether the bucket has it for sure. */
const isInBucket = (row: Pick<GoneObject, "inBucket">): boolean => row.inBucket === inBucket.yes;
