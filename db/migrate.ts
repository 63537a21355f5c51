/**
 * Numbered SQL files, append-only. Every applied file's hash is kept and compared at boot: a file that was
 * edited, removed or inserted before an applied one stops the start, and so does a database that has more
 * migrations than this program (Drizzle's own migrator goes by date and skips such files silently).
 */
import type { Database } from "bun:sqlite";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { DbError } from "./errors.ts";

export interface Migration {
  readonly number: number;
  readonly name: string;
  readonly sql: string;
  /** SHA-256 of the file's text, hex. */
  readonly hash: string;
}

interface AppliedRow {
  readonly number: number;
  readonly name: string;
  readonly hash: string;
}

/** Reads NNNN_name.sql files in order; numbers run from 1 without a gap. */
export function readMigrations(folder: string): readonly Migration[] {
  const names = readdirSync(folder)
    .filter((name) => name.endsWith(".sql"))
    .sort();
  return names.map((name, index) => {
    const number = Number(/^(\d{4})_/.exec(name)?.[1]);
    if (number !== index + 1) throw new DbError("migration", "readMigrations", `${name} is out of sequence`);
    const sql = readFileSync(join(folder, name), "utf8");
    return { number, name, sql, hash: new Bun.CryptoHasher("sha256").update(sql).digest("hex") };
  });
}

/**
 * Applies the missing migrations in one transaction: a new database is synced once, not once for each of them.
 * Throws DbError "migration" on any difference.
 */
export function migrate(client: Database, migrations: readonly Migration[]): void {
  client.run(
    "create table if not exists schema_migrations " +
      "(number integer primary key, name text not null, hash text not null, applied_at integer not null) strict",
  );
  const applied = client
    .query<AppliedRow, []>("select number, name, hash from schema_migrations order by number")
    .all();
  if (applied.length > migrations.length) {
    refuse(
      `the database is newer than this program: it has ${applied.length} migrations, we know ${migrations.length}`,
    );
  }
  for (const [index, row] of applied.entries()) {
    const known = migrations[index];
    if (known === undefined || known.number !== row.number || known.hash !== row.hash) {
      refuse(`migration ${row.name} was applied with other text than this program has`);
    }
  }
  if (applied.length === migrations.length) return;
  const note = client.query("insert into schema_migrations (number, name, hash, applied_at) values (?, ?, ?, ?)");
  const apply = client.transaction(() => {
    for (const { number, name, sql, hash } of migrations.slice(applied.length)) {
      client.run(sql);
      note.run(number, name, hash, Date.now());
    }
  });
  apply.immediate();
}

function refuse(reason: string): never {
  throw new DbError("migration", "migrate", reason);
}
