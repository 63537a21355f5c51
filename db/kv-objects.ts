/** KV in files: scopes with their keys, and objects. Whoever removes rows unlinks the files of the ids that come back. */
import { and, asc, desc, eq, gt, inArray, lt, ne, or, sql } from "drizzle-orm";
import type { CorpusId, FileId, FragmentId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { findRow, insertRow, listRows } from "./rows.ts";
import { fragments, kvObjects, kvScopes } from "./schema.ts";

export type KvScopeRow = typeof kvScopes.$inferSelect;
export type KvObjectRow = typeof kvObjects.$inferSelect;

/** What removing an object leaves to be done. */
export type GoneObject = Pick<KvObjectRow, "id" | "bytes" | "blockCount" | "tenantId" | "onDisk" | "inBucket">;

/** An object with what is needed to open it. */
export interface ListedObject extends KvObjectRow {
  readonly tenantId: TenantId;
  readonly scopeName: string;
  readonly scopeKey: Buffer;
}

export const gone = {
  ...{ id: kvObjects.id, bytes: kvObjects.bytes, blockCount: kvObjects.blockCount, tenantId: kvObjects.tenantId },
  ...{ onDisk: kvObjects.onDisk, inBucket: kvObjects.inBucket },
};

export function findKvScope(db: Db, name: string): KvScopeRow | undefined {
  return findRow(db, "findKvScope", kvScopes, { name });
}

/** Objects of these fragments as they were prepared last, in the order of their chains. */
export function kvObjectsOfFragments(db: Db, ids: readonly FragmentId[]): readonly KvObjectRow[] {
  return db
    .statement("kvObjectsOfFragments", (orm) =>
      orm
        .select({ object: kvObjects })
        .from(fragments)
        .innerJoin(kvObjects, eq(kvObjects.spanKey, fragments.preparedSpanKey))
        .where(inArray(fragments.id, [...ids]))
        .orderBy(asc(kvObjects.position))
        .all(),
    )
    .map(({ object }) => object);
}

/** @returns numbers of those that there are */
export function findKvScopeSeqs(db: Db, names: readonly string[]): readonly number[] {
  return db
    .statement("findKvScopeSeqs", (orm) =>
      orm
        .select({ seq: kvScopes.seq })
        .from(kvScopes)
        .where(inArray(kvScopes.name, [...names]))
        .all(),
    )
    .map(({ seq }) => seq);
}

export function listKvScopes(db: Db): readonly KvScopeRow[] {
  return listRows(db, "listKvScopes", kvScopes, {}, undefined);
}

/** Adds an object, and its scope with the first one. */
export function insertKvObject(
  db: Db,
  scope: Omit<KvScopeRow, "seq">,
  object: Omit<KvObjectRow, "seq" | "scopeSeq">,
): void {
  db.transaction("insertKvObject", () => {
    const { seq } = findKvScope(db, scope.name) ?? insertRow(db, "insertKvScope", kvScopes, scope);
    insertRow(db, "insertKvObject", kvObjects, { ...object, scopeSeq: seq });
  });
}

export function findKvObject(db: Db, id: string): KvObjectRow | undefined {
  return findRow(db, "findKvObject", kvObjects, { id });
}

/** @param lastKey of its last block */
export function findKvObjectByKey(db: Db, lastKey: string): KvObjectRow | undefined {
  return findRow(db, "findKvObjectByKey", kvObjects, { lastKey });
}

/**
 * Whether any part of the span is in a file. It is asked for every fragment that a request has used, so the statement is
 * compiled once: building it anew was two fifths of the gateway's work on questions over 32 fragments.
 */
export function hasKvSpan(db: Db, spanKey: string): boolean {
  const query = "select 1 from kv_objects where span_key = ?";
  return db.statement("hasKvSpan", () => db.client.query(query).get(spanKey) !== null);
}

/**
 * Objects of this model and format, after `afterSeq` in the order in which they were made; undefined: by their last use,
 * the latest first, and of one span in the order of its chain.
 */
export function listKvObjects(
  db: Db,
  { modelDigest, format }: Pick<KvObjectRow, "modelDigest" | "format">,
  afterSeq: number | undefined,
  limit: number,
): readonly ListedObject[] {
  const same = and(eq(kvObjects.modelDigest, modelDigest), eq(kvObjects.format, format));
  const rows = db.statement("listKvObjects", (orm) =>
    orm
      .select({
        object: kvObjects,
        tenantId: kvScopes.tenantId,
        scopeName: kvScopes.name,
        scopeKey: kvScopes.sealedKey,
      })
      .from(kvObjects)
      .innerJoin(kvScopes, eq(kvScopes.seq, kvObjects.scopeSeq))
      .where(afterSeq === undefined ? same : and(same, gt(kvObjects.seq, afterSeq)))
      .orderBy(afterSeq === undefined ? desc(kvObjects.usedAt) : asc(kvObjects.seq))
      .limit(limit)
      .all(),
  );
  const objects = rows.map(({ object, ...scope }) => ({ ...object, ...scope }));
  if (afterSeq !== undefined) return objects;
  // Parts of a span are committed one by one, so their times differ.
  const spans = [...Map.groupBy(objects, ({ spanKey }) => spanKey).values()];
  return spans.flatMap((parts) => parts.toSorted((a, b) => a.position - b.position));
}

/** Whose chains begin at which keys. */
export function listKvRoots(db: Db): readonly { readonly rootKey: string; readonly tenantId: TenantId }[] {
  return db.statement("listKvRoots", (orm) =>
    orm
      .selectDistinct({ rootKey: kvObjects.rootKey, tenantId: kvScopes.tenantId })
      .from(kvObjects)
      .innerJoin(kvScopes, eq(kvScopes.seq, kvObjects.scopeSeq))
      .all(),
  );
}

/** All objects, with where they are. */
export function listKvObjectIds(db: Db): readonly GoneObject[] {
  return db.statement("listKvObjectIds", (orm) => orm.select(gone).from(kvObjects).all());
}

export function touchKvSpans(db: Db, spanKeys: readonly string[], usedAt: number): void {
  db.statement("touchKvSpans", (orm) =>
    orm
      .update(kvObjects)
      .set({ usedAt })
      .where(inArray(kvObjects.spanKey, [...spanKeys]))
      .run(),
  );
}

/**
 * The objects in the folder that were not used for the longest time and are not pinned; of one tenant, or undefined: of all.
 * @param usedBefore the last use was before this time
 */
export function oldestKvObjects(
  db: Db,
  { tenantId, usedBefore }: { readonly tenantId: TenantId | undefined; readonly usedBefore: number },
  limit: number,
): readonly GoneObject[] {
  const isOwn = tenantId === undefined ? undefined : eq(kvObjects.tenantId, tenantId);
  // Written out, since SQLite takes a partial index for a literal alone.
  const loose = and(sql`${kvObjects.pinned} = 0 and ${kvObjects.onDisk} = 1`, lt(kvObjects.usedAt, usedBefore), isOwn);
  return db.statement("oldestKvObjects", (orm) =>
    orm.select(gone).from(kvObjects).where(loose).orderBy(asc(kvObjects.usedAt)).limit(limit).all(),
  );
}

export function pinKvSpans(db: Db, spanKeys: readonly string[], isPinned: boolean): void {
  db.statement("pinKvSpans", (orm) =>
    orm
      .update(kvObjects)
      .set({ pinned: Number(isPinned) })
      .where(inArray(kvObjects.spanKey, [...spanKeys]))
      .run(),
  );
}

/** Spans whose objects are pinned. */
export function listPinnedKvSpans(db: Db): readonly string[] {
  const rows = db.statement("listPinnedKvSpans", (orm) =>
    orm.selectDistinct({ key: kvObjects.spanKey }).from(kvObjects).where(sql`${kvObjects.pinned} = 1`).all(),
  );
  return rows.map(({ key }) => key);
}

/** Bytes of all pinned objects that are in the folder, or in the bucket. */
export function sumPinnedKv(db: Db, place: "disk" | "s3"): number {
  const isThere = place === "disk" ? eq(kvObjects.onDisk, 1) : gt(kvObjects.inBucket, 0);
  const bytes = sql<number>`coalesce(sum(${kvObjects.bytes}), 0)`;
  const row = db.statement("sumPinnedKv", (orm) =>
    orm
      .select({ bytes })
      .from(kvObjects)
      .where(and(sql`${kvObjects.pinned} = 1`, isThere))
      .get(),
  );
  return row?.bytes ?? 0;
}

export function removeKvObjects(db: Db, ids: readonly string[]): readonly GoneObject[] {
  return db.statement("removeKvObjects", (orm) =>
    orm
      .delete(kvObjects)
      .where(inArray(kvObjects.id, [...ids]))
      .returning(gone)
      .all(),
  );
}

/** Removes the objects of one scope that end with one of these keys. */
export function removeKvObjectsByKey(db: Db, scopeName: string, lastKeys: readonly string[]): readonly GoneObject[] {
  const scope = findKvScope(db, scopeName);
  if (scope === undefined) return [];
  return db.statement("removeKvObjectsByKey", (orm) =>
    orm
      .delete(kvObjects)
      .where(and(eq(kvObjects.scopeSeq, scope.seq), inArray(kvObjects.lastKey, [...lastKeys])))
      .returning(gone)
      .all(),
  );
}

const another = (modelDigest: string, format: string) =>
  or(ne(kvObjects.modelDigest, modelDigest), ne(kvObjects.format, format));

/** Removes up to `limit` objects that another model computed, or that are laid out otherwise. */
export function removeOtherKv(db: Db, modelDigest: string, format: string, limit: number): readonly GoneObject[] {
  const ids = db.statement("removeOtherKv", (orm) =>
    orm.select({ id: kvObjects.id }).from(kvObjects).where(another(modelDigest, format)).limit(limit).all(),
  );
  return removeKvObjects(
    db,
    ids.map(({ id }) => id),
  );
}

/** What the chains of these scopes begin with. */
export function listKvScopeRoots(db: Db, seqs: readonly number[]): readonly string[] {
  const rows = db.statement("listKvScopeRoots", (orm) =>
    orm
      .selectDistinct({ rootKey: kvObjects.rootKey })
      .from(kvObjects)
      .where(inArray(kvObjects.scopeSeq, [...seqs]))
      .all(),
  );
  return rows.map(({ rootKey }) => rootKey);
}

/**
 * Destroys the keys of scopes, so that no copy of their files can be opened. Their objects are then to be removed with
 * `removeKeylessKv`.
 */
export function destroyKvScopes(db: Db, seqs: readonly number[]): void {
  // The name is free for a new scope of the same corpus.
  const change = { sealedKey: Buffer.alloc(0), name: sql`'destroyed ' || seq` };
  db.statement("destroyKvScopes", (orm) =>
    orm
      .update(kvScopes)
      .set(change)
      .where(inArray(kvScopes.seq, [...seqs]))
      .run(),
  );
}

/** Removes up to `limit` objects whose scope's key is destroyed, and scopes that have none left. */
export function removeKeylessKv(db: Db, limit: number): readonly GoneObject[] {
  const destroyed = sql`length(${kvScopes.sealedKey}) = 0`;
  const ids = db.statement("removeKeylessKv", (orm) =>
    orm
      .select({ id: kvObjects.id })
      .from(kvObjects)
      .innerJoin(kvScopes, eq(kvScopes.seq, kvObjects.scopeSeq))
      .where(destroyed)
      .limit(limit)
      .all(),
  );
  const removed = removeKvObjects(
    db,
    ids.map(({ id }) => id),
  );
  // These were the last.
  if (ids.length < limit) {
    db.statement("removeKeylessKv", (orm) => orm.delete(kvScopes).where(destroyed).run());
  }
  return removed;
}

export function kvScopesOfTenant(db: Db, tenantId: TenantId): readonly KvScopeRow[] {
  return listRows(db, "kvScopesOfTenant", kvScopes, { tenantId }, undefined, sql`length(sealed_key) > 0`);
}

/** Scopes whose corpus is gone, or has another salt by now: a server that was killed may have left them. */
export function deadKvScopes(db: Db): readonly number[] {
  const alive = sql`exists (select 1 from corpora c join tenants t on t.id = c.tenant_id where c.id = kv_scopes.corpus_id
    and c.deleted_at is null and c.salt_epoch = kv_scopes.salt_epoch and t.status != 'deleting')`;
  const rows = listRows(db, "deadKvScopes", kvScopes, {}, undefined, sql`not ${alive} and length(sealed_key) > 0`);
  return rows.map(({ seq }) => seq);
}

/** A fragment whose span is in a file, with the facts of its corpus's salt. */
export interface KeptFragment {
  readonly id: FragmentId;
  readonly fileId: FileId;
  readonly text: string;
  readonly tenantId: TenantId;
  readonly corpusId: CorpusId;
  readonly corpusSeq: number;
  readonly saltEpoch: number;
}

/** Spans that are in files, those used last first. */
export function listKvSpans(db: Db, limit: number): readonly string[] {
  const rows = db.statement("listKvSpans", (orm) =>
    orm
      .select({ key: kvObjects.spanKey })
      .from(kvObjects)
      // Written out, as in `oldestKvObjects`.
      .where(sql`${kvObjects.position} = 0`)
      .orderBy(desc(kvObjects.usedAt))
      .limit(limit)
      .all(),
  );
  return rows.map(({ key }) => key);
}

/** The fragments whose spans these are, in this order; those of some spans are not known. */
export function findKeptFragments(db: Db, spanKeys: readonly string[]): readonly KeptFragment[] {
  const rows = db.statement("findKeptFragments", () =>
    db.client
      .query<KeptFragment & { readonly spanKey: string }, [string]>(
        `select f.id, f.text, f.prepared_span_key as spanKey, cf.file_id as fileId, c.tenant_id as tenantId,
           c.id as corpusId, c.seq as corpusSeq, c.salt_epoch as saltEpoch
         from fragments f
         join corpus_files cf on cf.seq = f.corpus_file_seq and cf.status = 'completed'
         join corpora c on c.id = cf.corpus_id and c.deleted_at is null
         where f.prepared_span_key in (select value from json_each(?))`,
      )
      .all(JSON.stringify(spanKeys)),
  );
  const fragments = Map.groupBy(rows, ({ spanKey }) => spanKey);
  return spanKeys.flatMap((key) => fragments.get(key) ?? []);
}
