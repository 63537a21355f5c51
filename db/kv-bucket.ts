/** What of KV lies in a bucket. Rows that go leave their object's id among the removals, by a trigger. */
import { and, asc, desc, eq, inArray, lt, lte, notExists, notInArray, type SQL, sql } from "drizzle-orm";
import type { TenantId } from "./ids.ts";
import { type GoneObject, gone, type KvObjectRow } from "./kv-objects.ts";
import type { Db } from "./open.ts";
import { findRow, insertRow } from "./rows.ts";
import { kvBucket, kvBucketRemovals, kvObjects } from "./schema.ts";

/** Whether an object is in the bucket; `perhaps`: its upload has begun. */
export const inBucket = { no: 0, perhaps: 1, yes: 2 } as const;

/**
 * What this server is called in buckets. When the bucket is another than before, nothing is in it: objects that were
 * there alone are nowhere from here on, and are to be removed by `removeNowhereKv`.
 * @param newId taken when the server has no name yet
 */
export function useKvBucket(db: Db, address: string, newId: string): string {
  return db.transaction("useKvBucket", () => {
    const known = findRow(db, "useKvBucket", kvBucket, {});
    if (known?.address === address) return known.serverId;
    const serverId = known?.serverId ?? newId;
    db.statement("useKvBucket", (orm) => orm.delete(kvBucket).run());
    insertRow(db, "useKvBucket", kvBucket, { id: 1, serverId, address });
    db.statement("useKvBucket", (orm) => orm.update(kvObjects).set({ inBucket: inBucket.no }).run());
    db.statement("useKvBucket", (orm) => orm.delete(kvBucketRemovals).run());
    return serverId;
  });
}

/** Whether a bucket was ever used. */
export function hasKvBucket(db: Db): boolean {
  return findRow(db, "hasKvBucket", kvBucket, {}) !== undefined;
}

/** Sets where objects are, as far as it is given. */
export function placeKvObjects(
  db: Db,
  ids: readonly string[],
  place: Partial<Pick<KvObjectRow, "onDisk" | "inBucket">>,
): void {
  db.statement("placeKvObjects", (orm) =>
    orm
      .update(kvObjects)
      .set(place)
      .where(inArray(kvObjects.id, [...ids]))
      .run(),
  );
}

/**
 * The file of up to so many bytes that was used last and is not in the bucket. One that is still to be deleted there
 * waits, and so do those of tenants that have enough there.
 * @param resting objects that are not meant now
 */
export function nextKvUpload(
  db: Db,
  mostBytes: number,
  full: readonly TenantId[],
  resting: readonly string[],
): KvObjectRow | undefined {
  return db.statement("nextKvUpload", (orm) => {
    // As it stands in the indexes.
    const isWaiting = sql`on_disk = 1 and in_bucket < 2`;
    const isFree = notExists(
      orm.select({ one: sql`1` }).from(kvBucketRemovals).where(eq(kvBucketRemovals.id, kvObjects.id)),
    );
    const may = and(isWaiting, lte(kvObjects.bytes, mostBytes), notInArray(kvObjects.id, [...resting]), isFree);
    if (full.length === 0) {
      return orm.select().from(kvObjects).where(may).orderBy(desc(kvObjects.usedAt)).limit(1).get();
    }
    // Whoever has enough may have very many files: each other tenant's last one is looked up, and the last of these.
    const lastOf = (tenantId: SQL) =>
      sql`(select ${kvObjects.seq} from ${kvObjects} where ${and(sql`${kvObjects.tenantId} = ${tenantId}`, may)} order by ${kvObjects.usedAt} desc limit 1)`;
    const tenants = sql`with recursive waiting(tenant) as (
      select (select min(tenant_id) from kv_objects where ${isWaiting})
      union all
      select (select min(tenant_id) from kv_objects where ${isWaiting} and tenant_id > tenant) from waiting where tenant is not null)`;
    const lasts = sql`${tenants} select ${lastOf(sql`tenant`)} from waiting where tenant is not null and tenant not in ${[...full]}`;
    return orm
      .select()
      .from(kvObjects)
      .where(sql`${kvObjects.seq} in (${lasts})`)
      .orderBy(desc(kvObjects.usedAt))
      .limit(1)
      .get();
  });
}

/** Objects in the bucket that were used before this time and are not pinned, the one used longest ago first. */
export function oldestInKvBucket(
  db: Db,
  tenantId: TenantId | undefined,
  beforeMs: number,
  limit: number,
): readonly KvObjectRow[] {
  const isOwn = tenantId === undefined ? undefined : eq(kvObjects.tenantId, tenantId);
  return db.statement("oldestInKvBucket", (orm) =>
    orm
      .select()
      .from(kvObjects)
      .where(and(sql`in_bucket = 2 and pinned = 0`, isOwn, lt(kvObjects.usedAt, beforeMs)))
      .orderBy(asc(kvObjects.usedAt))
      .limit(limit)
      .all(),
  );
}

/** These objects stay in the folder and are to be deleted from the bucket. */
export function takeFromKvBucket(db: Db, ids: readonly string[]): void {
  if (ids.length === 0) return;
  db.transaction("takeFromKvBucket", () => {
    placeKvObjects(db, ids, { inBucket: inBucket.no });
    addKvBucketRemovals(db, ids);
  });
}

export interface KvBucketUse {
  readonly tenantId: TenantId;
  readonly objects: number;
  readonly blocks: number;
  readonly bytes: number;
}

/** How much each tenant has in the bucket, what is perhaps there counted in. It looks at all objects. */
export function kvBucketUses(db: Db): readonly KvBucketUse[] {
  return db.statement("kvBucketUses", (orm) =>
    orm
      .select({
        tenantId: kvObjects.tenantId,
        objects: sql<number>`count(*)`,
        blocks: sql<number>`sum(block_count)`,
        bytes: sql<number>`sum(bytes)`,
      })
      .from(kvObjects)
      .where(sql`in_bucket > 0`)
      .groupBy(kvObjects.tenantId)
      .all(),
  );
}

export function addKvBucketRemovals(db: Db, ids: readonly string[]): void {
  db.statement("addKvBucketRemovals", (orm) =>
    orm
      .insert(kvBucketRemovals)
      .values(ids.map((id) => ({ id })))
      .onConflictDoNothing()
      .run(),
  );
}

/** @param resting objects that are not meant now */
export function listKvBucketRemovals(db: Db, limit: number, resting: readonly string[]): readonly string[] {
  const rows = db.statement("listKvBucketRemovals", (orm) =>
    orm
      .select({ id: kvBucketRemovals.id })
      .from(kvBucketRemovals)
      .where(notInArray(kvBucketRemovals.id, [...resting]))
      .orderBy(asc(kvBucketRemovals.seq))
      .limit(limit)
      .all(),
  );
  return rows.map(({ id }) => id);
}

export function endKvBucketRemovals(db: Db, ids: readonly string[]): void {
  db.statement("endKvBucketRemovals", (orm) =>
    orm
      .delete(kvBucketRemovals)
      .where(inArray(kvBucketRemovals.id, [...ids]))
      .run(),
  );
}

/**
 * Brings the database and what a bucket lists together: what has no row is to be deleted, what has one is perhaps there.
 * @returns what was not known to be there
 */
export function noteInKvBucket(db: Db, ids: readonly string[]): readonly GoneObject[] {
  if (ids.length === 0) return [];
  return db.transaction("noteInKvBucket", () => {
    const rows = db.statement("noteInKvBucket", (orm) =>
      orm
        .select(gone)
        .from(kvObjects)
        .where(inArray(kvObjects.id, [...ids]))
        .all(),
    );
    const known = new Set(rows.map(({ id }) => id));
    const orphans = ids.filter((id) => !known.has(id));
    if (orphans.length > 0) addKvBucketRemovals(db, orphans);
    const leaving = db.statement("noteInKvBucket", (orm) =>
      orm
        .select({ id: kvBucketRemovals.id })
        .from(kvBucketRemovals)
        .where(inArray(kvBucketRemovals.id, [...ids]))
        .all(),
    );
    const isLeaving = new Set(leaving.map(({ id }) => id));
    const unsaid = rows.filter((row) => row.inBucket === inBucket.no && !isLeaving.has(row.id));
    const unsaidIds = unsaid.map(({ id }) => id);
    if (unsaid.length > 0) placeKvObjects(db, unsaidIds, { inBucket: inBucket.perhaps });
    return unsaid;
  });
}

/** Removes up to `limit` objects that are neither in the folder nor in the bucket. */
export function removeNowhereKv(db: Db, limit: number): readonly GoneObject[] {
  return db.statement("removeNowhereKv", (orm) =>
    orm
      .delete(kvObjects)
      .where(
        inArray(
          kvObjects.seq,
          orm.select({ seq: kvObjects.seq }).from(kvObjects).where(sql`on_disk = 0 and in_bucket < 2`).limit(limit),
        ),
      )
      .returning(gone)
      .all(),
  );
}
