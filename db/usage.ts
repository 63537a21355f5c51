/** Tokens by day and tenant. */
import { and, asc, desc, eq, gt, gte, lt, lte, or, sql } from "drizzle-orm";
import type { SQLiteColumn } from "drizzle-orm/sqlite-core";
import type { Db } from "./open.ts";
import { type Page, pageOf } from "./page.ts";
import { usageDays } from "./schema.ts";

export type UsageDayRow = typeof usageDays.$inferSelect;

/** Adds the rows to the days' counts: all of them or none. */
export function addUsage(db: Db, rows: readonly UsageDayRow[]): void {
  if (rows.length === 0) return;
  const plus = (column: SQLiteColumn) => sql`${column} + excluded.${sql.identifier(column.name)}`;
  db.transaction("addUsage", () => {
    for (const row of rows) {
      db.statement("addUsage", (orm) =>
        orm
          .insert(usageDays)
          .values(row)
          .onConflictDoUpdate({
            target: [usageDays.day, usageDays.tenantId],
            set: {
              requests: plus(usageDays.requests),
              promptTokens: plus(usageDays.promptTokens),
              cachedTokens: plus(usageDays.cachedTokens),
              cacheWriteTokens: plus(usageDays.cacheWriteTokens),
              completionTokens: plus(usageDays.completionTokens),
              embeddingTokens: plus(usageDays.embeddingTokens),
            },
          })
          .run(),
      );
    }
  });
}

/** Tokens that were computed, for the tenant's budgets. */
const computed = "prompt_tokens - cached_tokens + completion_tokens + embedding_tokens";

/** What was computed for the tenant on a day, given as YYYY-MM-DD, and since the first of that day's month. */
export function sumComputed(db: Db, tenantId: string, day: string): { readonly day: number; readonly month: number } {
  const row = db.statement("sumComputed", () =>
    db.client
      .query<{ day: number; month: number }, [string, string, string]>(
        `select coalesce(sum(iif(day = ?2, ${computed}, 0)), 0) as day, coalesce(sum(${computed}), 0) as month
         from usage_days where tenant_id = ?1 and day between ?3 and ?2`,
      )
      .get(tenantId, day, `${day.slice(0, 7)}-01`),
  );
  return row ?? { day: 0, month: 0 };
}

export interface UsageRange {
  readonly tenantId: string | undefined;
  /** The first and the last day of the range, as YYYY-MM-DD, both included. */
  readonly firstDay: string;
  readonly lastDay: string;
  /** The page begins after this row. */
  readonly after: Pick<UsageDayRow, "day" | "tenantId"> | undefined;
  readonly limit: number;
}

/** The latest day comes first; within a day rows are ordered by tenant. */
export function listUsage(db: Db, { tenantId, firstDay, lastDay, after, limit }: UsageRange): Page<UsageDayRow> {
  const rows = db.statement("listUsage", (orm) =>
    orm
      .select()
      .from(usageDays)
      .where(
        and(
          gte(usageDays.day, firstDay),
          lte(usageDays.day, lastDay),
          tenantId === undefined ? undefined : eq(usageDays.tenantId, tenantId),
          after === undefined
            ? undefined
            : or(
                lt(usageDays.day, after.day),
                and(eq(usageDays.day, after.day), gt(usageDays.tenantId, after.tenantId)),
              ),
        ),
      )
      .orderBy(desc(usageDays.day), asc(usageDays.tenantId))
      .limit(limit + 1)
      .all(),
  );
  return pageOf(rows, { limit });
}
