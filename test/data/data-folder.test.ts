/** The data folder is for its owner alone, and what was deleted or overwritten leaves its log. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { insertCorpus, updateCorpus } from "../../db/corpora.ts";
import { newId } from "../../db/ids.ts";
import { type Db, openDb, openReader } from "../../db/open.ts";
import { insertTenant, updateTenant } from "../../db/tenants.ts";
import { LogTruncation, openData } from "../../gateway/data/data-folder.ts";
import { until } from "../support/until.ts";

let dir = "";
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-folder-"));
});
afterEach(() => {
  chmodSync(dir, 0o700);
  rmSync(dir, { recursive: true, force: true });
});

const modeOf = (path: string) => statSync(path).mode & 0o777;

describe("a data folder", () => {
  test("that others may read is closed to them, with what is in it, and the operator is told", () => {
    const warnings: string[] = [];
    const open = () => openData(dir, (level, text) => void (level === "warn" && warnings.push(text)));
    open().closeData();
    mkdirSync(join(dir, "files"), { mode: 0o755 });
    writeFileSync(join(dir, "notes"), "not the server's", { mode: 0o644 });
    for (const name of ["", "files"]) chmodSync(join(dir, name), 0o755);
    chmodSync(join(dir, "spangate.db"), 0o644);
    warnings.length = 0;
    open().closeData();
    expect([dir, join(dir, "files"), join(dir, "spangate.db"), join(dir, "notes")].map(modeOf)).toEqual([
      0o700, 0o700, 0o600, 0o644,
    ]);
    expect(warnings.filter((text) => text.includes("data folder")).length).toBe(1);
    open().closeData();
    expect(warnings.filter((text) => text.includes("data folder")).length).toBe(1);
  });

  test("that everybody may write to is refused, and left as it is", () => {
    chmodSync(dir, 0o1777);
    expect(() => openData(dir, () => undefined)).toThrow(/everybody may write to it.*mode 0700/);
    expect(statSync(dir).mode & 0o7777).toBe(0o1777);
    expect(readdirSync(dir)).toEqual([]);
  });
});

describe("the log", () => {
  let db: Db;
  beforeEach(() => {
    db = openDb(join(dir, "spangate.db"));
  });
  afterEach(() => db.close());

  const traces = (text: string) =>
    readdirSync(dir).filter((name) => readFileSync(join(dir, name)).toString("latin1").includes(text));

  test("loses names that were overwritten, whoever changed them", async () => {
    const fields = { tenantId: newId("tenant"), createdAt: 1 };
    insertTenant(db, { id: fields.tenantId, name: "canary-tenant", createdAt: 1 });
    const corpus = insertCorpus(db, {
      ...{ ...fields, id: newId("corpus"), name: "canary-store", description: null },
      metadata: { about: "canary-metadata" },
    });
    updateTenant(db, fields.tenantId, { name: "t" });
    if (corpus !== undefined) updateCorpus(db, corpus.id, { name: "s", metadata: {} });
    expect(traces("canary")).toEqual(["spangate.db-wal"]);
    const truncation = new LogTruncation(db, () => undefined, 5);
    await until(() => traces("canary").length === 0, "the log is empty");
    truncation.stop();
  });

  test("is emptied once another process has ended its reading, without waiting for it", async () => {
    const { id } = insertTenant(db, { id: newId("tenant"), name: "canary-tenant", createdAt: 1 });
    db.truncateLog();
    const reader = new Database(join(dir, "spangate.db"), { readonly: true });
    reader.run("begin");
    reader.query("select count(*) from tenants").get();
    updateTenant(db, id, { name: "t" });
    expect(db.truncateLog()).toBe(false);
    expect(db.client.query<{ timeout: number }, []>("pragma busy_timeout").get()?.timeout).toBe(200);
    const truncation = new LogTruncation(db, () => undefined, 5);
    await Bun.sleep(50);
    expect(traces("canary")).toEqual(["spangate.db"]);
    reader.run("rollback");
    reader.close();
    await until(() => traces("canary").length === 0, "the log is empty");
    truncation.stop();
  });

  test("is emptied while the readers of this process are held up, and they go on", async () => {
    const { id } = insertTenant(db, { id: newId("tenant"), name: "canary-tenant", createdAt: 1 });
    db.truncateLog();
    const reader = openReader(join(dir, "spangate.db"));
    reader.client.run("begin");
    reader.client.query("select count(*) from tenants").get();
    const order: string[] = [];
    db.pauseReaders = async () => {
      reader.client.run("rollback");
      order.push("paused");
      return { [Symbol.dispose]: () => void order.push("gone on") };
    };
    updateTenant(db, id, { name: "t" });
    const truncation = new LogTruncation(db, () => undefined, 5);
    await until(() => traces("canary").length === 0, "the log is empty");
    await until(() => order.length === 2, "the readers go on");
    expect(order).toEqual(["paused", "gone on"]);
    truncation.stop();
    reader.close();
  });

  test("nothing was changed: it is left alone", async () => {
    insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 });
    let count = 0;
    const truncateLog = db.truncateLog.bind(db);
    db.truncateLog = () => {
      count++;
      return truncateLog();
    };
    const truncation = new LogTruncation(db, () => undefined, 2);
    await until(() => count === 1, "the first look");
    await Bun.sleep(30);
    expect(count).toBe(1);
    insertTenant(db, { id: newId("tenant"), name: "u", createdAt: 1 });
    await until(() => count === 2, "a change");
    truncation.stop();
  });
});
