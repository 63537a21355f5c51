import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { cpSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { getTableConfig, type SQLiteTable } from "drizzle-orm/sqlite-core";
import { insertApiKey } from "../../db/api-keys.ts";
import { DbError } from "../../db/errors.ts";
import { newId, parseId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import * as schema from "../../db/schema.ts";
import { insertTenant } from "../../db/tenants.ts";

const shipped = join(import.meta.dir, "..", "..", "migrations");
let dir = "";
let migrationsDir = "";
let path = "";

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-db-"));
  migrationsDir = join(dir, "migrations");
  cpSync(shipped, migrationsDir, { recursive: true });
  path = join(dir, "spangate.db");
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** What a call throws, as a DbError. */
function dbErrorOf(run: () => unknown): DbError {
  try {
    run();
  } catch (error) {
    if (error instanceof DbError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

const open = () => openDb(path, { migrationsDir });
const lastNumber = () => readdirSync(migrationsDir).length;
const addMigration = (number: number, sql: string) =>
  writeFileSync(join(migrationsDir, `${String(number).padStart(4, "0")}_added.sql`), sql);

describe("openDb", () => {
  test("sets what durability rests on", () => {
    const { client } = open();
    const pragma = (name: string) =>
      Object.values(client.query<Record<string, unknown>, []>(`pragma ${name}`).get() ?? {})[0];
    expect([pragma("journal_mode"), pragma("synchronous"), pragma("foreign_keys"), pragma("secure_delete")]).toEqual([
      "wal",
      2,
      1,
      1,
    ]);
    // 2: in memory.
    expect(pragma("temp_store")).toBe(2);
    for (const name of [path, `${path}-wal`]) expect(statSync(name).mode & 0o777).toBe(0o600);
    client.close();
  });

  test("migrates once, and goes on with a later migration", () => {
    open().close();
    addMigration(lastNumber() + 1, "create table later (a integer) strict;");
    const db = open();
    db.client.run("insert into later values (1)");
    db.close();
    open().close();
  });

  test("a migration that was edited, removed, or put in between stops the start", () => {
    open().close();
    const [first = ""] = readdirSync(migrationsDir);
    const original = join(shipped, first);
    writeFileSync(join(migrationsDir, first), "create table tenants (id text);");
    expect(dbErrorOf(open)).toMatchObject({ code: "migration", message: expect.stringContaining("other text") });
    cpSync(original, join(migrationsDir, first));
    open().close();
    writeFileSync(join(migrationsDir, "0000_before.sql"), "select 1;");
    expect(dbErrorOf(open)).toMatchObject({ code: "migration", message: expect.stringContaining("out of sequence") });
  });

  test("a database newer than the program is refused and left as it was", () => {
    addMigration(lastNumber() + 1, "create table later (a integer) strict;");
    open().close();
    expect(dbErrorOf(() => openDb(path))).toMatchObject({
      code: "migration",
      message: expect.stringContaining("newer"),
    });
    open().close();
  });

  test("a migration that fails leaves nothing of itself", () => {
    addMigration(lastNumber() + 1, "create table half (a integer) strict; insert into nowhere values (1);");
    expect(dbErrorOf(open).code).toBe("open");
    const raw = new Database(path);
    expect(raw.query("select name from sqlite_schema where name = 'half'").all()).toEqual([]);
    raw.close();
  });

  test("a file that is no database is named in the error", () => {
    writeFileSync(path, "this is no database, it is a text that is long enough to be looked at".repeat(20));
    expect(dbErrorOf(open)).toMatchObject({ code: "open", message: expect.stringContaining("SQLITE_NOTADB") });
  });
});

describe("Db", () => {
  let db: Db;
  beforeEach(() => {
    db = openDb(":memory:");
  });
  afterEach(() => db.close());

  const tenant = (name: string) => insertTenant(db, { id: newId("tenant"), name, createdAt: 1 });
  const tenantCount = () => db.client.query<{ n: number }, []>("select count(*) as n from tenants").get()?.n;

  test("a transaction is all or nothing, also within another", () => {
    expect(() =>
      db.transaction("outer", () => {
        tenant("a");
        db.transaction("inner", () => void tenant("b"));
        throw new Error("stop");
      }),
    ).toThrow("stop");
    expect(tenantCount()).toBe(0);
    db.transaction("outer", () => {
      tenant("a");
      expect(() =>
        db.transaction("inner", () => {
          tenant("b");
          throw new Error("inner only");
        }),
      ).toThrow("inner only");
    });
    expect(tenantCount()).toBe(1);
  });

  test("a transaction with an async callback is refused and rolled back", () => {
    const careless = (async () => void tenant("a")) as unknown as () => void;
    expect(dbErrorOf(() => db.transaction("careless", careless))).toMatchObject({ code: "internal" });
    expect(tenantCount()).toBe(0);
  });

  test("unsynced work is a transaction like any other, and syncing is back afterwards", () => {
    const synchronous = () => db.client.query<{ synchronous: number }, []>("pragma synchronous").get()?.synchronous;
    const during = db.unsynced(() => {
      tenant("a");
      return synchronous();
    });
    expect([during, synchronous(), tenantCount()]).toEqual([1, 2, 1]);
    expect(() =>
      db.unsynced(() => {
        throw new Error("stop");
      }),
    ).toThrow("stop");
    expect(synchronous()).toBe(2);
  });

  test("errors carry the statement's name and never its parameters", () => {
    const hash = new Uint8Array(32).fill(0x41);
    const row = {
      id: newId("apiKey"),
      tenantId: null,
      name: "canary-name",
      hash,
      prefix: "sk-c",
      scopes: [],
      createdAt: 1,
    };
    insertApiKey(db, row);
    const error = dbErrorOf(() => insertApiKey(db, { ...row, id: newId("apiKey") }));
    expect(error.code).toBe("constraint");
    expect(error.message).toStartWith("insertApiKey: ");
    const told = `${error.message} ${error.stack} ${JSON.stringify(error)} ${Bun.inspect(error)}`;
    expect(told).not.toContain("canary-name");
    expect(told).not.toContain("AAAA");
    expect(error.cause).toBeUndefined();
  });

  test("a lock held by another process is a busy error, not a wait without end", () => {
    const held = openDb(path, { busyTimeoutMs: 1 });
    const other = new Database(path);
    other.run("begin immediate");
    const error = dbErrorOf(() => insertTenant(held, { id: newId("tenant"), name: "a", createdAt: 1 }));
    expect(error.code).toBe("busy");
    other.run("rollback");
    insertTenant(held, { id: newId("tenant"), name: "a", createdAt: 1 });
    other.close();
    held.close();
  });

  test("the schema in TypeScript is the schema in SQL", () => {
    for (const value of Object.values(schema)) {
      const table = value as SQLiteTable;
      const { name, columns } = getTableConfig(table);
      const described = db.client
        .query<{ name: string; type: string; notnull: number; pk: number }, []>(`pragma table_info(${name})`)
        .all();
      const sql = described.map((column) => [
        column.name,
        column.type.toLowerCase(),
        column.notnull === 1 || column.pk > 0,
      ]);
      const drizzle = columns.map((column) => [column.name, column.getSQLType(), column.notNull || column.primary]);
      expect([name, drizzle]).toEqual([name, sql]);
    }
  });
});

describe("ids", () => {
  test("only what newId makes parses", () => {
    const id = newId("file");
    expect(parseId("file", id)).toBe(id);
    const wrong = [
      "",
      "file-",
      `${id}x`,
      id.slice(0, -1),
      id.toUpperCase(),
      `vs_${id.slice(5)}`,
      "file-../../../etc/passwd.....",
      `file-${"é".repeat(24)}`,
      `${id.slice(0, -1)}\n`,
    ];
    for (const raw of wrong) expect(parseId("file", raw)).toBeUndefined();
  });
});
