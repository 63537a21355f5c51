/** Pages of a list as the OpenAI API has them: by `after`, `before`, `limit`, `order`, in creation order. */
import { and, asc, desc, gt, lt, type SQL } from "drizzle-orm";
import type { SQLiteColumn } from "drizzle-orm/sqlite-core";

export interface PageRange {
  /** The `seq` of the cursors' rows. They were looked up among what the caller may see. */
  readonly afterSeq?: number | undefined;
  readonly beforeSeq?: number | undefined;
  readonly limit: number;
  readonly order: "asc" | "desc";
}

export interface Page<Row> {
  readonly rows: readonly Row[];
  readonly hasMore: boolean;
}

/** Whether a page is fetched backwards, because it ends before its cursor. */
const isBackwards = ({ afterSeq, beforeSeq }: Pick<PageRange, "afterSeq" | "beforeSeq">): boolean =>
  beforeSeq !== undefined && afterSeq === undefined;

/**
 * The condition and the order in which a page's rows are fetched. `after` and `before` follow the list's order. With
 * `before` alone, the page is the one right before the cursor.
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

/**
 * The page, in the list's order. `rows` were fetched with limit + 1, so that "has more" is known for the direction in
 * which they were fetched.
 */
export function pageOf<Row>(
  rows: readonly Row[],
  range: Pick<PageRange, "limit" | "afterSeq" | "beforeSeq">,
): Page<Row> {
  const fetched = rows.slice(0, range.limit);
  return { rows: isBackwards(range) ? fetched.reverse() : fetched, hasMore: rows.length > range.limit };
}
