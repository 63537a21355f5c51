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

/** The page that ends before its cursor is fetched from there backwards. */
const isBackwards = ({ afterSeq, beforeSeq }: Pick<PageRange, "afterSeq" | "beforeSeq">): boolean =>
  beforeSeq !== undefined && afterSeq === undefined;

/**
 * Condition and order in which a page's rows are fetched. `after` and `before` go along the list's order; with `before`
 * alone it is the page right before the cursor.
 */
export function pageClause(seq: SQLiteColumn, range: PageRange): { where: SQL | undefined; orderBy: SQL } {
  const ascends = range.order === "asc";
  const [later, earlier] = ascends ? [gt, lt] : [lt, gt];
  const where = and(
    range.afterSeq === undefined ? undefined : later(seq, range.afterSeq),
    range.beforeSeq === undefined ? undefined : earlier(seq, range.beforeSeq),
  );
  return { where, orderBy: ascends === isBackwards(range) ? desc(seq) : asc(seq) };
}

/** In the list's order. `rows` were fetched with limit + 1; has more: along the way that they were fetched. */
export function pageOf<Row>(
  rows: readonly Row[],
  range: Pick<PageRange, "limit" | "afterSeq" | "beforeSeq">,
): Page<Row> {
  const fetched = rows.slice(0, range.limit);
  return { rows: isBackwards(range) ? fetched.reverse() : fetched, hasMore: rows.length > range.limit };
}
