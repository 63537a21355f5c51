/** What is asked of most tables: a row, a page of rows, how many there are; to insert one and to change one. */
import { and, count, eq, getTableName, is, Param, Placeholder, type SQL } from "drizzle-orm";
import type { SQLiteColumn, SQLiteTable, SQLiteUpdateSetSource } from "drizzle-orm/sqlite-core";
import type { Db } from "./open.ts";
import { type Page, type PageRange, pageClause, pageOf } from "./page.ts";
import { givenLater } from "./statements.ts";

type Row<Table extends SQLiteTable> = Table["$inferSelect"];
type Where = SQL | undefined;

/** The rows whose fields have these values, and that meet the other conditions too. Nothing equals null. */
function matching<Table extends SQLiteTable>(table: Table, fields: Partial<Row<Table>>, others: Where[]): Where {
  const columns = table as unknown as Readonly<Record<string, SQLiteColumn>>;
  const given = (name: string, value: unknown) => (is(value, Placeholder) ? new Param(value, columns[name]) : value);
  return and(...Object.entries(fields).map(([name, value]) => eq(columns[name], given(name, value))), ...others);
}

/** Without the fields that are left out. */
const defined = (fields: object): Readonly<Record<string, unknown>> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));

/** @param name the statement's name in errors */
export function findRow<Table extends SQLiteTable>(
  db: Db,
  name: string,
  table: Table,
  fields: Partial<Row<Table>>,
  ...others: Where[]
): Row<Table> | undefined {
  const plain: SQLiteTable = table;
  const given = others.length === 0 ? givenLater(fields) : undefined;
  if (given === undefined) {
    const where = matching(table, fields, others);
    return db.statement(name, (orm) => orm.select().from(plain).where(where).get());
  }
  const where = () => matching(table, given.placeholders as Partial<Row<Table>>, []);
  const key = `find ${getTableName(table)}${given.shape}`;
  return db.builtOnce(
    name,
    key,
    (orm) => orm.select().from(plain).where(where()).prepare(),
    (built) => built.get(given.values),
  );
}

/** @param range the order of the rows, and how many at most; absent: all in any order */
export function listRows<Table extends SQLiteTable>(
  db: Db,
  name: string,
  table: Table,
  fields: Partial<Row<Table>>,
  range: { readonly orderBy: SQLiteColumn; readonly limit: number } | undefined,
  ...others: Where[]
): readonly Row<Table>[] {
  const plain: SQLiteTable = table;
  const where = matching(table, fields, others);
  return db.statement(name, (orm) => {
    const rows = orm.select().from(plain).where(where);
    return range === undefined ? rows.all() : rows.orderBy(range.orderBy).limit(range.limit).all();
  });
}

export function countRows<Table extends SQLiteTable>(
  db: Db,
  name: string,
  table: Table,
  fields: Partial<Row<Table>>,
  ...others: Where[]
): number {
  const plain: SQLiteTable = table;
  const where = matching(table, fields, others);
  return db.statement(name, (orm) => orm.select({ n: count() }).from(plain).where(where).get())?.n ?? 0;
}

export function pageOfRows<Table extends SQLiteTable & { readonly seq: SQLiteColumn }>(
  db: Db,
  name: string,
  table: Table,
  fields: Partial<Row<Table>>,
  range: PageRange,
  ...others: Where[]
): Page<Row<Table>> {
  const plain: SQLiteTable = table;
  const page = pageClause(table.seq, range);
  const where = matching(table, fields, [...others, page.where]);
  const most = range.limit + 1;
  const rows = db.statement(name, (orm) =>
    orm.select().from(plain).where(where).orderBy(page.orderBy).limit(most).all(),
  );
  return pageOf(rows, range);
}

/** @returns the row with its defaults */
export function insertRow<Table extends SQLiteTable>(
  db: Db,
  name: string,
  table: Table,
  row: Table["$inferInsert"],
): Row<Table> {
  const plain: SQLiteTable = table;
  const given = givenLater(defined(row));
  if (given === undefined) return db.statement(name, (orm) => orm.insert(plain).values(row).returning().get());
  return db.builtOnce(
    name,
    `insert ${getTableName(table)}${given.shape}`,
    (orm) => orm.insert(plain).values(given.placeholders).returning().prepare(),
    (built) => built.get(given.values),
  );
}

/** Changes the one row that is meant. @returns the row as it is now; undefined when there is none */
export function updateRow<Table extends SQLiteTable>(
  db: Db,
  name: string,
  table: Table,
  fields: Partial<Row<Table>>,
  change: SQLiteUpdateSetSource<Table>,
  ...others: Where[]
): Row<Table> | undefined {
  const plain: SQLiteTable = table;
  const [where, set] = [others.length === 0 ? givenLater(fields) : undefined, givenLater(defined(change), "new ")];
  if (where === undefined || set === undefined) {
    const meant = matching(table, fields, others);
    return db.statement(name, (orm) => orm.update(plain).set(change).where(meant).returning().get());
  }
  const meant = () => matching(table, where.placeholders as Partial<Row<Table>>, []);
  const key = `update ${getTableName(table)}${set.shape} where${where.shape}`;
  return db.builtOnce(
    name,
    key,
    (orm) => orm.update(plain).set(set.placeholders).where(meant()).returning().prepare(),
    (built) => built.get({ ...where.values, ...set.values }),
  );
}
