/**
 * Audit events: what callers changed. Rows are only added. When an actor has more than a given number of them, its
 * oldest are removed; none is ever altered. An actor is a tenant or the platform.
 */
import { eq, isNull, or, sql } from "drizzle-orm";
import type { AuditEventId } from "./ids.ts";
import type { Db } from "./open.ts";
import type { Page, PageRange } from "./page.ts";
import { findRow, pageOfRows } from "./rows.ts";
import { auditCounts, auditEvents } from "./schema.ts";

export type AuditEventRow = typeof auditEvents.$inferSelect;

/** The most rows that one insertion removes, where an actor has too many. */
const removedAtOnce = 16;

/** @param maxRows the most rows that the event's actor keeps */
export function insertAuditEvent(db: Db, row: Omit<AuditEventRow, "seq">, maxRows: number): AuditEventRow {
  return db.transaction("insertAuditEvent", () =>
    db.statement("insertAuditEvent", (orm) => {
      const inserted = orm.insert(auditEvents).values(row).returning().get();
      const actor = row.actorTenantId ?? "";
      const counted = orm.select().from(auditCounts).where(eq(auditCounts.actor, actor)).get();
      const surplus = (counted?.rowCount ?? 0) - maxRows;
      if (surplus <= 0) return inserted;
      const same =
        row.actorTenantId === null
          ? isNull(auditEvents.actorTenantId)
          : eq(auditEvents.actorTenantId, row.actorTenantId);
      const oldest = orm
        .select({ seq: auditEvents.seq })
        .from(auditEvents)
        .where(same)
        .orderBy(auditEvents.seq)
        .limit(Math.min(surplus, removedAtOnce));
      orm.delete(auditEvents).where(sql`${auditEvents.seq} in ${oldest}`).run();
      return inserted;
    }),
  );
}

/** @param tenantId limits the events to what this tenant did and what was done to its objects */
const visibleTo = (tenantId: string | undefined) =>
  tenantId === undefined ? undefined : or(eq(auditEvents.tenantId, tenantId), eq(auditEvents.actorTenantId, tenantId));

export function findAuditEvent(db: Db, id: AuditEventId, tenantId: string | undefined): AuditEventRow | undefined {
  return findRow(db, "findAuditEvent", auditEvents, { id }, visibleTo(tenantId));
}

export function listAuditEvents(db: Db, tenantId: string | undefined, range: PageRange): Page<AuditEventRow> {
  return pageOfRows(db, "listAuditEvents", auditEvents, {}, range, visibleTo(tenantId));
}
