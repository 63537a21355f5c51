import type { Db } from "./open.ts";
import { findRow } from "./rows.ts";
import { meta } from "./schema.ts";

export function getMeta(db: Db, name: string): string | undefined {
  return findRow(db, "getMeta", meta, { name })?.value;
}

/** Sets a fact once; it is never overwritten. */
export function insertMeta(db: Db, name: string, value: string): void {
  db.statement("insertMeta", (orm) => orm.insert(meta).values({ name, value }).run());
}
