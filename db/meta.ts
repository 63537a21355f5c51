/** Facts about the database itself. */
import { eq } from "drizzle-orm";
import type { Db } from "./open.ts";
import { meta } from "./schema.ts";

export function getMeta(db: Db, name: string): string | undefined {
  return db.statement("getMeta", (orm) => orm.select().from(meta).where(eq(meta.name, name)).get())?.value;
}

/** Sets a fact once; it is never overwritten. */
export function insertMeta(db: Db, name: string, value: string): void {
  db.statement("insertMeta", (orm) => orm.insert(meta).values({ name, value }).run());
}
