/** What callers changed. Rows are added and, beyond a number of them, the oldest removed; none is ever altered. */
import { and, eq, lt, or } from "drizzle-orm";
import type { AuditEventId } from "./ids.ts";
import type { Db } from "./open.ts";
import { type Page, type PageRange, pageClause, pageOf } from "./page.ts";
import { auditEvents } from "./schema.ts";

export type AuditEventRow = typeof auditEvents.$inferSelect;

export function insertAuditEvent(db: Db, row: Omit<AuditEventRow, "seq">, maxRows: number): AuditEventRow {
  return db.transaction("insertAuditEvent", () =>
    db.statement("insertAuditEvent", (orm) => {
      const inserted = orm.insert(auditEvents).values(row).returning().get();
      orm
        .delete(auditEvents)
        .where(lt(auditEvents.seq, inserted.seq - maxRows + 1))
        .run();
      return inserted;
    }),
  );
}

/** @param tenantId only what this tenant did, or what was done to what is its own */
const visibleTo = (tenantId: string | undefined) =>
  tenantId === undefined ? undefined : or(eq(auditEvents.tenantId, tenantId), eq(auditEvents.actorTenantId, tenantId));

export function findAuditEvent(db: Db, id: AuditEventId, tenantId: string | undefined): AuditEventRow | undefined {
  return db.statement("findAuditEvent", (orm) =>
    orm
      .select()
      .from(auditEvents)
      .where(and(eq(auditEvents.id, id), visibleTo(tenantId)))
      .get(),
  );
}

export function listAuditEvents(db: Db, tenantId: string | undefined, range: PageRange): Page<AuditEventRow> {
  const page = pageClause(auditEvents.seq, range);
  const rows = db.statement("listAuditEvents", (orm) =>
    orm
      .select()
      .from(auditEvents)
      .where(and(visibleTo(tenantId), page.where))
      .orderBy(page.orderBy)
      .limit(range.limit + 1)
      .all(),
  );
  return pageOf(rows, range);
}
