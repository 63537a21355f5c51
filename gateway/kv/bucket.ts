/**
 * KV in a bucket: what is in the folder goes there, the one used last first, and comes back when it is wanted and the
 * folder has it no more. Deletions are rows that stay until the bucket has done them. Nobody waits for a bucket that
 * fails: each kind of work then rests, and what is there alone is computed.
 */
import { randomBytes } from "node:crypto";
import type { TenantId } from "../../db/ids.ts";
import {
  endKvBucketRemovals,
  inBucket,
  kvBucketUses,
  listKvBucketRemovals,
  nextKvUpload,
  noteInKvBucket,
  oldestInKvBucket,
  placeKvObjects,
  takeFromKvBucket,
  useKvBucket,
} from "../../db/kv-bucket.ts";
import { findKvObject, type GoneObject, type KvObjectRow, sumPinnedKv } from "../../db/kv-objects.ts";
import type { Db } from "../../db/open.ts";
import { BackgroundLoop } from "../background/background-loop.ts";
import type { Log } from "../base/log.ts";
import { delay, yieldToOthers } from "../base/pace.ts";
import type { MoverPort } from "../mover/mover.ts";
import { type ListedPage, MoverError, type MoverJob } from "../mover/protocol.ts";
import { type KvSum, KvSums, type TenantTierUse, type TierListener, type TierUse } from "./account.ts";
import { bucketAside } from "./folder.ts";
import { firstRestMs, Outage } from "./outage.ts";

export interface BucketSettings {
  /** Names the bucket, its server and what its objects' names begin with. */
  readonly address: string;
  /** Bytes of all objects at most. */
  readonly mostBytes: number;
  /** Bytes that a tenant may keep there; undefined: as many as there is room for. */
  readonly quotaBytesOf: (tenantId: TenantId) => number | undefined;
  /** @param serverId what this server is called in buckets */
  readonly openMover: (serverId: string) => MoverPort;
}

export interface KvBucketOptions extends BucketSettings {
  readonly db: Db;
  readonly log: Log;
  readonly nowMs: () => number;
  readonly listener: TierListener | undefined;
  /** Takes rows out of the database with all that is known of them. */
  readonly remove: (ids: readonly string[]) => void;
}

/** What came of a fetch: the file is in the folder, or the bucket has none that is of use, or it is not to be had now. */
export type Fetched = "here" | "gone" | "not now";

/** A job is done: with the page of a list. */
interface Done {
  readonly page: ListedPage | undefined;
}

/** Fetches at the same time. Who comes later is not served: the bucket is too slow for all. */
const mostFetches = 256;
/** Deletions that are asked for at the same time. Each waits for the bucket: eight at a time, two thousand took eight seconds. */
const removedAtOnce = 32;
/** Pages of the bucket's list that a start reads: ten million objects. */
const mostPages = 10_000;
const victimsAtOnce = 32;

export class KvBucket {
  readonly #options: KvBucketOptions;
  readonly #mover: MoverPort;
  readonly #uploads: BackgroundLoop;
  readonly #removals: BackgroundLoop;
  readonly #inventory: BackgroundLoop;
  readonly #outages: { readonly put: Outage; readonly get: Outage; readonly delete: Outage; readonly list: Outage };
  readonly #fetching = new Map<string, Promise<Fetched>>();
  /** Ends the wait of uploads, and of removals, for objects that rest. */
  #uploadNap = new AbortController();
  #removalNap = new AbortController();
  /** What is there, what is perhaps there counted in. */
  readonly #sums: KvSums;
  #uploadingId: string | undefined;

  constructor(options: KvBucketOptions) {
    const { db, log, nowMs, address, openMover } = options;
    this.#options = options;
    this.#mover = openMover(useKvBucket(db, address, randomBytes(16).toString("hex")));
    this.#sums = new KvSums((tenantId, blocks) => options.listener?.held("s3", tenantId, blocks));
    for (const { tenantId, ...sum } of kvBucketUses(db)) this.#sums.add(tenantId, sum);
    this.#uploads = new BackgroundLoop("copying KV to the bucket", log, (signal) => this.#upload(signal));
    this.#removals = new BackgroundLoop("deleting KV from the bucket", log, (signal) => this.#remove(signal));
    this.#inventory = new BackgroundLoop("listing KV in the bucket", log, (signal) => this.#list(signal));
    const outage = (sentence: string): Outage => new Outage({ sentence, address, log, nowMs });
    this.#outages = {
      put: outage("KV is not copied to the bucket for now; it stays in the folder, and is tried again"),
      get: outage("KV that is in the bucket alone cannot be fetched for now; it is computed"),
      delete: outage("deleted KV stays in the bucket for now; nothing can open it, and its deletion is tried again"),
      list: outage("the bucket of KV cannot be listed for now; what an earlier start left there stays"),
    };
  }

  /** Catches up with what an earlier start left. Nothing is copied before `wake`. */
  start(): void {
    this.#inventory.wake();
    this.#removals.wake();
  }

  async stop(): Promise<void> {
    const stopped = [this.#inventory, this.#removals, this.#uploads].map((loop) => loop.stop());
    this.#mover.stop();
    await Promise.all(stopped);
    await Promise.all(this.#fetching.values());
  }

  use(): TierUse {
    const { db, mostBytes: quotaBytes } = this.#options;
    return { tier: "s3", ...this.#sums.all, pinnedBytes: sumPinnedKv(db, "s3"), quotaBytes };
  }

  /** What one tenant has there. */
  of(tenantId: string): KvSum {
    return this.#sums.of(tenantId);
  }

  useOf(tenantId: TenantId): TenantTierUse {
    return { tier: "s3", ...this.#sums.of(tenantId), quotaBytes: this.#options.quotaBytesOf(tenantId) };
  }

  /** Those who have anything there. */
  get tenants(): Iterable<TenantId> {
    return this.#sums.byTenant.keys();
  }

  get isEmpty(): boolean {
    return this.#sums.all.objects === 0;
  }

  /** There may be files to copy. */
  wake(): void {
    this.#uploads.wake();
    this.#uploadNap.abort();
  }

  /** Rows are removed; their objects in the bucket stand among the removals. */
  gone(objects: readonly GoneObject[]): void {
    const there = objects.filter((object) => object.inBucket > inBucket.no);
    if (there.length === 0) return;
    this.#sums.count(there, -1);
    this.#wakeRemovals();
  }

  /** Whether a fetch of it would begin, or is under way. */
  canFetch(id: string): boolean {
    const { get } = this.#outages;
    return this.#fetching.has(id) || (get.leftMs <= 0 && !get.rests(id) && this.#fetching.size < mostFetches);
  }

  /** Brings an object into the folder. Its row is unchanged. */
  fetch(row: Pick<KvObjectRow, "id" | "bytes">): Promise<Fetched> {
    const known = this.#fetching.get(row.id);
    if (known !== undefined) return known;
    if (!this.canFetch(row.id)) return Promise.resolve("not now");
    const fetched = this.#fetch(row).finally(() => this.#fetching.delete(row.id));
    this.#fetching.set(row.id, fetched);
    return fetched;
  }

  async #fetch({ id, bytes }: Pick<KvObjectRow, "id" | "bytes">): Promise<Fetched> {
    try {
      await this.#mover.do({ is: "get", id, bytes, aside: bucketAside(id) });
      this.#outages.get.succeeded(id);
      return "here";
    } catch (error) {
      const { failure, message } = asMoverError(error);
      if (failure === "missing" || failure === "damaged") return "gone";
      this.#outages.get.failed(message, id);
      return "not now";
    }
  }

  async #upload(signal: AbortSignal): Promise<void> {
    const { db, nowMs, mostBytes } = this.#options;
    // Tenants that have as much there as they may.
    const full: TenantId[] = [];
    // The setting may be lower than at the last start.
    await this.#free(this.#sums.all.bytes - mostBytes, undefined, Number.MAX_SAFE_INTEGER);
    while (!signal.aborted) {
      const resting = this.#outages.put.resting();
      const row = nextKvUpload(db, mostBytes, full, resting.ids);
      if (row === undefined) {
        if (resting.ids.length === 0) return;
        this.#uploadNap = new AbortController();
        await delay(resting.nextMs, AbortSignal.any([signal, this.#uploadNap.signal]));
        full.length = 0;
        continue;
      }
      if (!(await this.#makeOwnRoom(row))) {
        full.push(row.tenantId);
        continue;
      }
      if (!(await this.#free(this.#sums.all.bytes + bytesMore(row) - mostBytes, undefined, row.usedAt))) return;
      // Others worked meanwhile.
      if (findKvObject(db, row.id)?.onDisk !== 1) continue;
      this.#uploadingId = row.id;
      const beganMs = nowMs();
      try {
        // Should the server end now, the object is looked for when its row goes.
        if (row.inBucket === inBucket.no) {
          placeKvObjects(db, [row.id], { inBucket: inBucket.perhaps });
          this.#sums.count([row], 1);
        }
        const done = await this.#try("put", { is: "put", id: row.id, bytes: row.bytes }, signal);
        // If the row went meanwhile, its object is among the removals.
        if (done !== undefined) placeKvObjects(db, [row.id], { inBucket: inBucket.yes });
      } finally {
        this.#uploadingId = undefined;
        this.#wakeRemovals();
      }
      // Half of the time the line is left to what is wanted.
      await delay(Math.max(this.#outages.put.leftMs, nowMs() - beganMs), signal);
    }
  }

  /** @returns undefined: it is to be tried again after the outage */
  async #try(kind: "put" | "delete" | "list", job: MoverJob, signal: AbortSignal): Promise<Done | undefined> {
    const id = job.is === "list" ? undefined : job.id;
    try {
      const page = await this.#mover.do(job);
      this.#outages[kind].succeeded(id);
      return { page };
    } catch (error) {
      const { failure, message } = asMoverError(error);
      if (signal.aborted) return undefined;
      // The file is gone, or it is not what was written.
      if (job.is === "put" && failure === "file") this.#options.remove([job.id]);
      else this.#outages[kind].failed(message, id);
      return undefined;
    }
  }

  /** Takes what the tenant used before this object out of the bucket, for what is beyond its limit. @returns whether it fits */
  async #makeOwnRoom(row: KvObjectRow): Promise<boolean> {
    const { tenantId, usedAt, bytes } = row;
    const quotaBytes = this.#options.quotaBytesOf(tenantId);
    if (quotaBytes === undefined) return true;
    const surplus = this.#sums.of(tenantId).bytes + bytesMore(row) - quotaBytes;
    return bytes <= quotaBytes && (await this.#free(surplus, tenantId, usedAt));
  }

  /** Takes out of the bucket what was used longest ago, a tenant's or whoever's. @returns whether so many bytes were freed */
  async #free(bytes: number, tenantId: TenantId | undefined, usedBefore: number): Promise<boolean> {
    const { db, remove } = this.#options;
    await yieldToOthers();
    let left = bytes;
    while (left > 0) {
      const victims: KvObjectRow[] = [];
      for (const row of oldestInKvBucket(db, tenantId, usedBefore, victimsAtOnce)) {
        if (left <= 0) break;
        victims.push(row);
        left -= row.bytes;
      }
      if (victims.length === 0) return false;
      const both = victims.filter(({ onDisk }) => onDisk === 1);
      takeFromKvBucket(
        db,
        both.map(({ id }) => id),
      );
      this.#sums.count(both, -1);
      remove(victims.filter(({ onDisk }) => onDisk === 0).map(({ id }) => id));
      this.#wakeRemovals();
      await yieldToOthers();
    }
    return true;
  }

  #wakeRemovals(): void {
    this.#removals.wake();
    this.#removalNap.abort();
  }

  /** What the bucket refuses to delete rests, each object by itself: it holds up nothing that is deleted after it. */
  async #remove(signal: AbortSignal): Promise<void> {
    const { db } = this.#options;
    const outage = this.#outages.delete;
    while (!signal.aborted) {
      const resting = outage.resting();
      // What is on its way there is deleted when it has arrived.
      const ids = listKvBucketRemovals(db, removedAtOnce + 1, resting.ids)
        .filter((id) => id !== this.#uploadingId)
        .slice(0, removedAtOnce);
      if (ids.length === 0) {
        if (resting.ids.length === 0) return;
        this.#removalNap = new AbortController();
        await delay(resting.nextMs, AbortSignal.any([signal, this.#removalNap.signal]));
        continue;
      }
      const tried = await Promise.all(ids.map((id) => this.#try("delete", { is: "delete", id }, signal)));
      const done = ids.filter((_, index) => tried[index] !== undefined);
      // What a power cut takes back is deleted once more.
      if (done.length > 0) db.unsynced(() => endKvBucketRemovals(db, done));
      if (done.length > 0) this.wake();
      // Others may be let go.
      await delay(Math.min(outage.leftMs, firstRestMs), signal);
    }
  }

  /** Finds what a server that was killed has left. */
  async #list(signal: AbortSignal): Promise<void> {
    let after: string | undefined;
    for (let pages = 0; pages < mostPages && !signal.aborted; ) {
      const done = await this.#try("list", { is: "list", after }, signal);
      if (done === undefined) {
        await delay(this.#outages.list.leftMs, signal);
        continue;
      }
      pages += 1;
      const { ids = [], next } = done.page ?? {};
      const others = ids.filter((id) => id !== this.#uploadingId);
      this.#sums.count(noteInKvBucket(this.#options.db, others), 1);
      this.#wakeRemovals();
      after = next;
      if (after === undefined) break;
    }
  }
}

/** What an upload adds to what is counted. */
const bytesMore = (row: KvObjectRow): number => (row.inBucket === inBucket.no ? row.bytes : 0);

const asMoverError = (error: unknown): MoverError =>
  error instanceof MoverError ? error : new MoverError("bucket", error instanceof Error ? error.message : "unknown");
