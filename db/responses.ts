/**
 * Stored responses. A row holds only what is new in it: its own input and its answer. What the response goes on from
 * stays in earlier rows, which are found by `previousId` and by the ids of the items that it refers to.
 */
import { and, desc, eq, inArray, lte, ne, type SQL, sql } from "drizzle-orm";
import type { ResponseId, TenantId } from "./ids.ts";
import type { Db } from "./open.ts";
import { findRow } from "./rows.ts";
import { responseHeads, responses } from "./schema.ts";
import { findTenant } from "./tenants.ts";

export type ResponseHead = typeof responseHeads.$inferSelect;

export interface NewResponse extends Pick<ResponseHead, "id" | "tenantId" | "previousId" | "createdAt"> {
  /** JSON. */
  readonly body: string;
  readonly inputItems: string;
  /** The `seq` of the rows that the response goes on from or refers to. */
  readonly usedSeqs: readonly number[];
}

/** The newest responses of a tenant stay, up to this many rows and bytes. */
export interface Retention {
  readonly rows: number;
  readonly bytes: number;
}

/**
 * Inserts a row, and retires the responses that the retention does not keep.
 * @returns false when the tenant is gone
 */
export function insertResponse(db: Db, row: NewResponse, retention: Retention): boolean {
  return db.transaction("insertResponse", () => {
    if (findTenant(db, row.tenantId) === undefined) return false;
    const { id, tenantId, previousId, createdAt, body, inputItems } = row;
    const byteCount = Buffer.byteLength(body) + Buffer.byteLength(inputItems);
    db.statement("insertResponse", (orm) => {
      const { seq } = orm
        .insert(responses)
        .values({ id, tenantId, body, inputItems, createdAt })
        .returning({ seq: responses.seq })
        .get();
      orm.insert(responseHeads).values({ seq, id, tenantId, state: "kept", previousId, byteCount, createdAt }).run();
      const used = JSON.stringify(row.usedSeqs);
      // A row that was deleted meanwhile is not kept by this use.
      orm.run(sql`insert into response_uses (user_seq, used_seq)
        select ${seq}, h.seq from json_each(${used}) cross join response_heads h on h.seq = value
        where h.state <> 'deleted'`);
    });
    retireSurplus(db, row.tenantId, retention);
    return true;
  });
}

const isKept = eq(responseHeads.state, "kept");

function retireSurplus(db: Db, tenantId: TenantId, retention: Retention): void {
  const own = and(eq(responseHeads.tenantId, tenantId), isKept);
  const newest = db.statement("keptResponses", (orm) =>
    orm
      .select({ seq: responseHeads.seq, byteCount: responseHeads.byteCount })
      .from(responseHeads)
      .where(own)
      .orderBy(desc(responseHeads.seq))
      .limit(retention.rows + 1)
      .all(),
  );
  let bytes = 0;
  const first = newest.find(({ byteCount }, index) => {
    bytes += byteCount;
    // The newest response stays, however large it is.
    return index > 0 && (index >= retention.rows || bytes > retention.bytes);
  });
  if (first !== undefined) retire(db, and(own, lte(responseHeads.seq, first.seq)));
}

/**
 * Deletes the responses that nothing goes on from. The others are retired, and deleted once nothing goes on from them.
 * @returns how many
 */
function retire(db: Db, which: SQL | undefined): number {
  const isUsed = sql`exists (select 1 from response_uses where used_seq = ${responseHeads.seq})`;
  const state = sql<ResponseHead["state"]>`case when ${isUsed} then 'retired' else 'deleted' end`;
  return db.statement("retireResponses", (orm) =>
    orm.update(responseHeads).set({ state }).where(which).returning({ seq: responseHeads.seq }).all(),
  ).length;
}

/** @returns how many were retired: at most `limit` */
export function retireOldResponses(db: Db, since: number, limit: number): number {
  const old = sql`${responseHeads.seq} in (select seq from response_heads
    where state = 'kept' and created_at < ${since} limit ${limit})`;
  return retire(db, old);
}

/**
 * @param isEntry a caller asks for the response itself, which has to be kept and recent enough; false: another response
 *   goes on from it, so it may be retired
 */
export function findResponse(
  db: Db,
  tenantId: TenantId,
  id: ResponseId,
  isEntry: { readonly since: number } | false,
): ResponseHead | undefined {
  const row = findRow(db, "findResponse", responseHeads, { id, tenantId }, ne(responseHeads.state, "deleted"));
  if (row === undefined || isEntry === false) return row;
  return row.state === "kept" && row.createdAt >= isEntry.since ? row : undefined;
}

/** The stored JSON; undefined: it was deleted meanwhile. */
export function readResponse(db: Db, seq: number, part: "body" | "inputItems"): string | undefined {
  return db.statement("readResponse", (orm) =>
    orm.select({ text: responses[part] }).from(responses).where(eq(responses.seq, seq)).get(),
  )?.text;
}

/**
 * Deletes a response: nobody finds it from here on, and nothing can go on from it. The sweep removes its row.
 * @returns false when there is no such response
 */
export function deleteResponse(db: Db, tenantId: TenantId, id: ResponseId): boolean {
  const own = and(eq(responseHeads.id, id), eq(responseHeads.tenantId, tenantId), ne(responseHeads.state, "deleted"));
  const deleted = db.statement("deleteResponse", (orm) =>
    orm.update(responseHeads).set({ state: "deleted" }).where(own).returning({ seq: responseHeads.seq }).all(),
  );
  return deleted.length > 0;
}

/**
 * Removes some rows of deleted responses: at least one, and at most `maxBytes` together.
 * @returns whether any may be left
 */
export function sweepResponses(db: Db, maxBytes: number): boolean {
  const rows = db.statement("deletedResponses", (orm) =>
    orm
      .select({ seq: responseHeads.seq, byteCount: responseHeads.byteCount })
      .from(responseHeads)
      .where(eq(responseHeads.state, "deleted"))
      .limit(rowsPerPiece)
      .all(),
  );
  let bytes = 0;
  const fits = rows.filter(({ byteCount }, index) => {
    bytes += byteCount;
    return index === 0 || bytes <= maxBytes;
  });
  if (fits.length === 0) return false;
  const seqs = fits.map(({ seq }) => seq);
  db.transaction("sweepResponses", () =>
    db.statement("sweepResponses", (orm) => {
      const used = orm.all<{ seq: number }>(sql`select distinct used_seq as seq from response_uses
        where user_seq in (select value from json_each(${JSON.stringify(seqs)}))`);
      orm.delete(responses).where(inArray(responses.seq, seqs)).run();
      const unused = and(
        sql`${responseHeads.seq} in (select value from json_each(${JSON.stringify(used.map(({ seq }) => seq))}))`,
        eq(responseHeads.state, "retired"),
      );
      retire(db, unused);
    }),
  );
  return true;
}

const rowsPerPiece = 32;

/** The bytes of all responses that the tenant has stored. */
export function storedResponseBytes(db: Db, tenantId: TenantId): number {
  const row = db.statement("storedResponseBytes", (orm) =>
    orm
      .select({ bytes: sql<number>`coalesce(sum(${responseHeads.byteCount}), 0)` })
      .from(responseHeads)
      .where(and(eq(responseHeads.tenantId, tenantId), ne(responseHeads.state, "deleted")))
      .get(),
  );
  return row?.bytes ?? 0;
}
