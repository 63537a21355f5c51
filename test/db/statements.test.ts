/** Statements that are compiled once answer as those that are built anew, and keep nothing that is long. */
import { expect, spyOn, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { eq, inArray } from "drizzle-orm";
import { newId } from "../../db/ids.ts";
import { openDb } from "../../db/open.ts";
import { findRow, insertRow, updateRow } from "../../db/rows.ts";
import { corpora, tenants } from "../../db/schema.ts";
import { insertTenant } from "../../db/tenants.ts";
import { folderMaker } from "../support/new-folder.ts";

const newFolder = folderMaker("spangate-statements-");

function world(path = ":memory:") {
  const db = openDb(path);
  const { id } = insertTenant(db, { id: newId("tenant"), name: "acme", createdAt: 1 });
  const corpus = (name: string, description: string | null, metadata: Record<string, string>) =>
    insertRow(db, "insert", corpora, {
      id: newId("corpus"),
      name,
      description,
      metadata,
      tenantId: id,
      createdAt: 1,
      lastActiveAt: 1,
    });
  return { db, tenantId: id, corpus };
}

test("rows with objects and nulls in them come back as with a statement built anew", () => {
  const { db, corpus } = world();
  for (const [name, description] of [
    ["a", null],
    ["b", "two"],
    ["c", null],
  ] as const) {
    const row = corpus(name, description, { kind: `${name}'s` });
    const plain = db.statement("plain", (orm) => orm.select().from(corpora).where(eq(corpora.id, row.id)).get());
    expect(plain?.metadata).toEqual({ kind: `${name}'s` });
    expect(findRow(db, "find", corpora, { id: row.id })).toEqual(row);
    expect(row).toEqual(plain ?? row);
    const changed = updateRow(db, "update", corpora, { id: row.id }, { description: name, metadata: { now: name } });
    expect(changed).toEqual({ ...row, description: name, metadata: { now: name } });
    expect(updateRow(db, "update", corpora, { id: row.id }, { description: null })?.description).toBeNull();
  }
  // Nothing equals null, and a field without a value does not mean every row.
  expect(findRow(db, "find", corpora, { description: null })).toBeUndefined();
  expect(findRow(db, "find", corpora, { id: undefined })).toBeUndefined();
});

test("a statement is compiled once, and again after a long parameter", () => {
  const { db, tenantId } = world();
  const compiled = spyOn(db.client, "prepare");
  const rename = (name: string) => updateRow(db, "rename", tenants, { id: tenantId }, { name })?.name.length;
  for (const name of ["b", "c", "d"]) expect(rename(name)).toBe(1);
  expect(compiled).toHaveBeenCalledTimes(1);
  expect(rename("n".repeat(20_000))).toBe(20_000);
  expect(rename("e")).toBe(1);
  expect(compiled).toHaveBeenCalledTimes(2);
});

test("no statement keeps the file open", () => {
  const path = join(newFolder(), "a.db");
  const { db, tenantId, corpus } = world(path);
  corpus("a", null, {});
  // So many others that its text is forgotten, while what was built runs on.
  const ids = (count: number) => Array.from({ length: count }, (_, at) => at);
  for (let count = 1; count <= 300; count++) {
    db.statement("list", (orm) =>
      orm
        .select()
        .from(tenants)
        .where(inArray(tenants.seq, ids(count)))
        .all(),
    );
  }
  expect(updateRow(db, "rename", tenants, { id: tenantId }, { name: "b" })?.name).toBe("b");
  corpus("b", null, {});
  db.close();
  // SQLite removes its log when the last connection is gone.
  expect(existsSync(`${path}-wal`)).toBe(false);
});
