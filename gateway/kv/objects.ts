/**
 * Owns what KV lies in files: asks workers to write what was prepared, tells them what is there, makes room, and forgets.
 * With a bucket, what makes room in the folder stays there, and comes back when a worker asks for it.
 * A row is the commit of a file. Forgetting removes rows first, with the only keys, then tells the workers, then unlinks.
 */

import { randomBytes } from "node:crypto";
import type { TenantId } from "../../db/ids.ts";
import { inBucket } from "../../db/kv-bucket.ts";
import {
  deadKvScopes,
  findKvObjectByKey,
  findKvScope,
  findKvScopeSeqs,
  type GoneObject,
  hasKvSpan,
  insertKvObject,
  kvScopesOfTenant,
  type ListedObject,
  listKvObjects,
  listKvRoots,
  listKvScopes,
  removeKvObjects,
  removeKvObjectsByKey,
  removeOtherKv,
} from "../../db/kv-objects.ts";
import type { Db } from "../../db/open.ts";
import {
  dataKeyBytes,
  extentBlocks,
  type KvFormat,
  type KvObject,
  kvObjectSizes,
  kvObjectVersion,
} from "../../worker/contract/kv-object.ts";
import type { FileTier, GatewayMessage, WorkerMessage } from "../../worker/contract/messages.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { KvOwner } from "../../worker/contract/owners.ts";
import type { KvTier } from "../../worker/contract/tiers.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";
import { chunks } from "../base/chunks.ts";
import { messageOf } from "../base/errors.ts";
import { yieldToOthers } from "../base/pace.ts";
import { KvAccount, type NoRoom, type TierUse } from "./account.ts";
import type { BucketSettings } from "./bucket.ts";
import { type FolderFiles, isOwnFolder, openKvFolder, systemFolderFiles, temporaryName } from "./folder.ts";
import { KvPlaces, type KvPlacesOptions } from "./places.ts";
import { KvRemoval, removedAtOnce } from "./removal.ts";
import { Room } from "./room.ts";
import type { KvScopes } from "./scopes.ts";
import { type KeepWish, type KeepWork, type KeptSpan, KvWrites, type PendingObject } from "./writes.ts";

export interface KvObjectsOptions extends Pick<KvPlacesOptions, "log" | "listener"> {
  readonly db: Db;
  readonly scopes: KvScopes;
  readonly folder: string;
  /** Names this server. */
  readonly owner: string;
  /** Bytes of all files at most; 0: none are kept; undefined: a part of what is free. */
  readonly mostBytes: number | undefined;
  /** Bytes that a tenant may keep in files; undefined: as many as there is room for. */
  readonly quotaBytesOf: (tenantId: TenantId) => number | undefined;
  /** Where copies of the files go; absent: nowhere. */
  readonly bucket?: BucketSettings | undefined;
  readonly send: (workerId: string, message: GatewayMessage) => boolean;
  readonly readyWorkers: () => readonly string[];
  /** What all workers serve. */
  readonly card: () => ModelCard | undefined;
  readonly ownerOf: (tenantId: TenantId) => KvOwner;
  readonly freeBytes?: () => number;
  /** Default: the system's. */
  readonly files?: FolderFiles;
}

/** Objects that a worker is told of at once; the first ones, by use, are loaded without being asked for. */
const objectsPerMessage = 500;

export class KvObjects {
  readonly #options: KvObjectsOptions;
  readonly #room: Room;
  readonly #removal: KvRemoval;
  readonly #writes = new KvWrites();
  readonly #roots = new Map<string, TenantId>();
  /** What lies in files, whose it is, and when it was used. */
  readonly account: KvAccount;
  readonly #places: KvPlaces;
  /** When the first worker has loaded what it loads without being asked, or has nothing to load. */
  readonly loaded = Promise.withResolvers<void>();
  #isOn = false;

  constructor(options: KvObjectsOptions) {
    this.#options = options;
    const { db, scopes, folder, mostBytes, quotaBytesOf, log, listener, freeBytes } = options;
    const { files = systemFolderFiles } = options;
    this.#room = new Room({ folder, mostBytes, log, nowMs: () => performance.now(), ...(freeBytes && { freeBytes }) });
    this.#places = new KvPlaces({
      ...{ db, folder, bucket: options.bucket, log, listener },
      account: () => this.account,
      removal: () => this.#removal,
      writing: (tenantId) => ({ all: this.#writes.bytes, own: this.#writes.bytesOf(tenantId) }),
      remove: (ids) => this.#remove(ids),
      broadcast: (message) => this.#broadcast(message),
      tellAgain: (row) => this.#tellAll(listKvObjects(db, row, row.seq - 1, 1)),
    });
    const onDrop = (objects: readonly GoneObject[]): void => this.#places.drop(objects);
    this.account = new KvAccount({ db, room: this.#room, quotaBytesOf, listener, onDrop });
    this.#removal = new KvRemoval({
      ...{ db, folder, files, log },
      onGone: (objects) => this.#gone(objects),
      onDestroy: (rootKeys) => {
        scopes.forgetKeys();
        this.#broadcast({ type: "forget", objectIds: [], rootKeys });
      },
    });
  }

  /** Opens the folder and brings rows and files together. Throws nothing: without a folder everything is computed. */
  start(): void {
    const { db, folder, owner, mostBytes, log, files: system = systemFolderFiles } = this.#options;
    const isOff = mostBytes === 0;
    if (isOff && !isOwnFolder(system, folder, owner))
      return this.#removal.scopes(listKvScopes(db).map(({ seq }) => seq));
    try {
      const files = new Set(openKvFolder(system, folder, owner));
      this.#removal.unlink(this.#places.open(files, isOff));
      this.#isOn = !isOff;
    } catch (error) {
      const reason = messageOf(error);
      log("warn", `prepared KV is not kept in ${folder}: ${reason}; it is computed after each restart`, { folder });
    }
    this.#removal.scopes(isOff ? listKvScopes(db).map(({ seq }) => seq) : deadKvScopes(db));
    this.#removal.keyless();
    for (const { rootKey, tenantId } of listKvRoots(db)) this.#roots.set(rootKey, tenantId);
    this.account.start();
    this.#places.start();
  }

  async stop(): Promise<void> {
    await this.#places.stop();
    this.#writes.drop(() => true);
    this.account.stop();
    await this.#removal.stop();
  }

  /** What lies in the tiers that are switched on. */
  usage(): readonly TierUse[] {
    if (!this.#isOn) return [];
    const { all, pinnedBytes } = this.account;
    const disk: TierUse = { tier: "disk", ...all, pinnedBytes, quotaBytes: this.#room.mostBytes(all.bytes) };
    return [disk, this.#places.bucketUse()].filter((use) => use !== undefined);
  }

  /** Whose fragments a chain that begins with this key is of. */
  ownerOfRoot(rootKey: BlockKey): TenantId | undefined {
    return this.#roots.get(rootKey);
  }

  /** Tells a worker that has started what is there. */
  async onReady(workerId: string): Promise<void> {
    const [format, card] = [this.#format(), this.#options.card()];
    if (!this.#isOn || format === undefined || card === undefined) return this.loaded.resolve();
    const { db } = this.#options;
    const same = { modelDigest: card.digest, format: nameOf(format) };
    if (!this.#tell(workerId, listKvObjects(db, same, undefined, objectsPerMessage), true)) this.loaded.resolve();
    let afterSeq = 0;
    for (;;) {
      const rows = listKvObjects(db, same, afterSeq, objectsPerMessage);
      this.#tell(workerId, rows, false);
      afterSeq = rows.at(-1)?.seq ?? afterSeq;
      if (rows.length < objectsPerMessage) break;
      await yieldToOthers();
    }
    await this.#removal.all(() => removeOtherKv(db, card.digest, nameOf(format), removedAtOnce));
    this.#places.wake();
  }

  onMessage(message: WorkerMessage): void {
    switch (message.type) {
      case "kept":
        return this.#onKept(message.objectId);
      case "keep failed": {
        const isPassing = message.reason === "gone" || message.reason === "busy";
        if (this.#writes.settle(message.objectId) !== undefined && !isPassing) this.#room.rest(message.reason);
        return;
      }
      case "warm":
        return this.loaded.resolve();
      case "load failed":
        return this.#places.unreadable(message.objectId, message.reason, message.copy ?? 0);
      case "fetch":
        void this.#places.fetch(message.objectId).catch((error: unknown) => {
          const reason = messageOf(error);
          this.#options.log("warn", "a KV file was not fetched from the bucket: its blocks are computed", { reason });
        });
        return;
      default:
        return;
    }
  }

  /** The worker is gone, and what it was writing. */
  onLost(workerId: string): void {
    this.loaded.resolve();
    const left = this.#writes.lost(workerId);
    this.#removal.unlink(left.flatMap((id) => [temporaryName(workerId, id), id]));
  }

  /** Whether nothing is gained by asking for the span to be kept: it is in files, or nothing is written now. */
  isKept(spanKey: BlockKey): boolean {
    return !this.#isOn || this.#room.isResting || this.#format() === undefined || hasKvSpan(this.#options.db, spanKey);
  }

  /** The tiers beside the workers' pools that this server has. */
  get tiers(): readonly KvTier[] {
    const card = this.#options.card();
    return this.#isOn && (card === undefined || card.kvFormat !== undefined) ? this.#places.tiers : [];
  }

  /** Those of them that hold all of a span. */
  tiersHolding(blockKeys: readonly BlockKey[]): readonly KvTier[] {
    return this.#isOn ? this.#places.tiersHolding(blockKeys) : [];
  }

  /** Where objects are; undefined: none are kept. */
  get places(): KvPlaces | undefined {
    return this.#isOn ? this.#places : undefined;
  }

  /** Drops what its owner keeps beyond a limit, so that `keep` has to make room for the span alone. Never rejects. */
  async trim(salt: CacheSalt, usedBefore = Number.MAX_SAFE_INTEGER): Promise<void> {
    const facts = this.#options.scopes.factsOf(salt);
    if (this.#isOn && facts !== undefined) await this.account.trim(facts.tenantId, usedBefore);
  }

  /**
   * Has a worker write a span that it holds. Resolves when that is done, or will not be.
   * @returns why there is no room; undefined: there is, or nothing is kept
   */
  async keep(
    workerId: string,
    span: KeptSpan,
    salt: CacheSalt,
    { usedBefore = Number.MAX_SAFE_INTEGER, isWanted }: KeepWish = {},
  ): Promise<NoRoom | undefined> {
    const facts = this.#options.scopes.factsOf(salt);
    const format = this.#format();
    if (!this.#isOn || facts === undefined || format === undefined) return undefined;
    const ends: Promise<void>[] = [];
    let refusal: NoRoom | undefined;
    for (let first = 0; first < span.blockKeys.length && refusal === undefined; first += extentBlocks) {
      if (this.#writes.isFull && (isWanted === undefined || !(await this.#writes.freed(isWanted)))) return "full";
      const end = this.#keepExtent({ workerId, span, salt, facts, format, usedBefore }, first);
      if (typeof end === "string") refusal = end;
      else if (end !== undefined) ends.push(end);
    }
    await Promise.all(ends);
    return refusal;
  }

  /** These blocks' texts were deleted. @param salt of the corpus that they belong to */
  evict(blockKeys: readonly BlockKey[], salt: CacheSalt): void {
    const { db, scopes } = this.#options;
    const [scopeName, keys] = [scopes.nameOf(salt), new Set(blockKeys)];
    this.#drop((pending) => pending.scopeName === scopeName && keys.has(pending.object.lastKey));
    for (const lastKeys of chunks(blockKeys, removedAtOnce)) {
      this.#gone(db.removing(() => removeKvObjectsByKey(db, scopeName, lastKeys)));
    }
  }

  /** The corpora of these salts are gone, or have other salts. */
  evictScopes(salts: readonly CacheSalt[]): void {
    const names = new Set(salts.map((salt) => this.#options.scopes.nameOf(salt)));
    this.#drop(({ scopeName }) => names.has(scopeName));
    const parts = [...chunks([...names], removedAtOnce)];
    this.#removal.scopes(parts.flatMap((some) => findKvScopeSeqs(this.#options.db, some)));
  }

  /** All fragments of the tenant's corpora. */
  evictTenant(tenantId: TenantId): void {
    this.#drop(({ facts }) => facts.tenantId === tenantId);
    this.#removal.scopes(kvScopesOfTenant(this.#options.db, tenantId).map(({ seq }) => seq));
  }

  #format(): KvFormat | undefined {
    return this.#options.card()?.kvFormat;
  }

  #keepExtent(work: KeepWork, first: number): Promise<void> | NoRoom | undefined {
    const { workerId, salt, facts, format, usedBefore } = work;
    const { rootKey, blockKeys, tokenIds } = work.span;
    const { db, card, scopes, ownerOf, folder, send } = this.#options;
    const keys = blockKeys.slice(first, first + extentBlocks);
    const [lastKey, spanKey] = [keys.at(-1), blockKeys.at(-1)];
    if (lastKey === undefined || spanKey === undefined) return undefined;
    const known = this.#writes.endOf(lastKey);
    if (known !== undefined) return known;
    if (findKvObjectByKey(db, lastKey) !== undefined) return undefined;
    const { blockTokens } = format;
    const tokens = tokenIds.slice(first * blockTokens, (first + keys.length) * blockTokens);
    const bytes = kvObjectSizes(tokens.length, format).fileBytes;
    const refusal = this.#places.makeRoom(bytes, facts.tenantId, usedBefore);
    if (refusal !== undefined) return refusal;
    const object: KvObject = {
      id: randomBytes(16).toString("hex"),
      dataKey: new Uint8Array(randomBytes(dataKeyBytes)),
      rootKey,
      previousKey: blockKeys[first - 1] ?? rootKey,
      lastKey,
      position: first * blockTokens,
      tokenCount: tokens.length,
      owner: ownerOf(facts.tenantId),
    };
    const scopeName = scopes.nameOf(salt);
    const modelDigest = card()?.digest ?? "";
    const end = this.#writes.begin({
      ...{ object, workerId, spanKey, scopeName, facts, modelDigest, bytes, blockCount: keys.length },
      format: nameOf(format),
    });
    const name = temporaryName(workerId, object.id);
    const message = { type: "keep", object, folder, temporaryName: name, tokenIds: tokens, blockKeys: keys } as const;
    if (!send(workerId, message)) this.#writes.settle(object.id);
    return end;
  }

  #remove(ids: readonly string[]): void {
    if (ids.length > 0) this.#gone(removeKvObjects(this.#options.db, ids));
  }

  /** Texts are gone while they are being written. */
  #drop(isMeant: (pending: PendingObject) => boolean): void {
    for (const { object, workerId } of this.#writes.drop(isMeant)) {
      this.#options.send(workerId, { type: "forget", objectIds: [object.id] });
    }
  }

  #onKept(objectId: string): void {
    const pending = this.#writes.settle(objectId);
    if (pending === undefined) {
      this.#removal.unlink([objectId]);
      return;
    }
    try {
      this.#commit(pending);
    } catch (error) {
      this.#removal.unlink([objectId]);
      this.#room.rest(messageOf(error));
    }
  }

  #commit({ object, facts, scopeName, spanKey, modelDigest, format, bytes, blockCount }: PendingObject): void {
    const { db, scopes, folder } = this.#options;
    const { id, dataKey, rootKey, previousKey, lastKey, position, tokenCount } = object;
    const sealed = scopes.seal(scopeName, findKvScope(db, scopeName)?.sealedKey, id, dataKey);
    const scope = { name: scopeName, ...facts, sealedKey: sealed.scope };
    const keys = { rootKey, previousKey, lastKey, spanKey, position, tokenCount };
    const whose = { tenantId: facts.tenantId, blockCount, pinned: Number(this.account.isPinned(spanKey)) };
    const place = { ...whose, onDisk: 1, inBucket: inBucket.no };
    const row = { id, sealedKey: sealed.object, modelDigest, format, ...keys, ...place, bytes, usedAt: Date.now() };
    // Files come in groups. A row that a power cut takes back leaves a file without one, which the next start removes.
    db.unsynced(() => insertKvObject(db, scope, row));
    this.account.add([row]);
    this.#roots.set(rootKey, facts.tenantId);
    this.#room.written();
    this.#broadcast({ type: "catalog", folder, objects: [object], warm: false });
    this.#places.wake();
  }

  #tellAll(rows: readonly ListedObject[]): void {
    for (const workerId of this.#options.readyWorkers()) this.#tell(workerId, rows, false);
  }

  /** @returns whether files in the folder were told of */
  #tell(workerId: string, rows: readonly ListedObject[], warm: boolean): boolean {
    const { folder, send, scopes, ownerOf } = this.#options;
    const tell = (onDisk: 0 | 1): boolean => {
      const some = rows.filter((row) => row.onDisk === onDisk && !this.#removal.isOwed(row.scopeSeq));
      const opened = some.flatMap((row) => scopes.objectOf(row, ownerOf(row.tenantId)) ?? []);
      const objects = opened.map((object) => this.#places.numbered(object));
      const [tier, isWarm]: [FileTier, boolean] = onDisk === 1 ? ["disk", warm] : ["s3", false];
      return objects.length > 0 && send(workerId, { type: "catalog", folder, objects, warm: isWarm, tier });
    };
    tell(0);
    return tell(1);
  }

  /** Rows are removed: workers forget the objects, and the files go. */
  #gone(objects: readonly GoneObject[]): void {
    if (objects.length === 0) return;
    this.#places.gone(objects);
    const objectIds = objects.map(({ id }) => id);
    this.#broadcast({ type: "forget", objectIds });
    this.#removal.unlink(objectIds);
  }

  #broadcast(message: GatewayMessage): void {
    for (const workerId of this.#options.readyWorkers()) this.#options.send(workerId, message);
  }
}

const nameOf = ({ name, blockBytes }: KvFormat): string => `${kvObjectVersion}/${name}/${blockBytes}`;
