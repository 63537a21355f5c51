/** One page of a list, as the OpenAI API pages: by `after`, `before`, `limit`, `order`, over creation order. */
import { and, asc, desc, gt, lt, type SQL } from "drizzle-orm";
import type { SQLiteColumn } from "drizzle-orm/sqlite-core";

export interface PageRange {
  /** seq of the cursor rows, already looked up within what the caller may see. */
  readonly afterSeq?: number | undefined;
  readonly beforeSeq?: number | undefined;
  readonly limit: number;
  readonly order: "asc" | "desc";
}

export interface Page<Row> {
  readonly rows: readonly Row[];
  readonly hasMore: boolean;
}

/** Condition and order of a page. `after` and `before` go along the list's order. */
export function pageClause(seq: SQLiteColumn, range: PageRange): { where: SQL | undefined; orderBy: SQL } {
  const [later, earlier] = range.order === "asc" ? [gt, lt] : [lt, gt];
  const where = and(
    range.afterSeq === undefined ? undefined : later(seq, range.afterSeq),
    range.beforeSeq === undefined ? undefined : earlier(seq, range.beforeSeq),
  );
  return { where, orderBy: range.order === "asc" ? asc(seq) : desc(seq) };
}

/** `rows` were fetched with limit + 1. */
export function pageOf<Row>(rows: readonly Row[], limit: number): Page<Row> {
  return { rows: rows.slice(0, limit), hasMore: rows.length > limit };
}
