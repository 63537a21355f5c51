/** The data folder is for its owner alone, and what was deleted or overwritten leaves its log. */
import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { insertCorpus, updateCorpus } from "../../db/corpora.ts";
import { newId } from "../../db/ids.ts";
import { copyLog, type Db, openDb, openReader } from "../../db/open.ts";
import { insertTenant, updateTenant } from "../../db/tenants.ts";
import { yieldToRequests } from "../../gateway/base/pace.ts";
import { LogTruncation, openData } from "../../gateway/data/data-folder.ts";
import { ThreadPool } from "../../gateway/threads/pool.ts";
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

/** @param copyLog instead of nothing that is copied ahead */
const truncationOf = (db: Db, copyLog = async (): Promise<void> => undefined, intervalMs = 5) =>
  new LogTruncation({ db, log: () => undefined, copyLog, intervalMs });

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
    const truncation = truncationOf(db);
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
    const truncation = truncationOf(db);
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
    const truncation = truncationOf(db);
    await until(() => traces("canary").length === 0, "the log is empty");
    await until(() => order.length === 2, "the readers go on");
    expect(order).toEqual(["paused", "gone on"]);
    truncation.stop();
    reader.close();
  });

  test("is emptied at once for who asks", async () => {
    insertTenant(db, { id: newId("tenant"), name: "canary-tenant", createdAt: 1 });
    expect(db.logBytes).toBeGreaterThan(0);
    const truncation = truncationOf(db, undefined, 3_600_000);
    await truncation.empty();
    expect([db.logBytes, traces("canary")]).toEqual([0, ["spangate.db"]]);
    truncation.stop();
  });

  test("nothing was changed: it is left alone", async () => {
    insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 });
    let count = 0;
    const truncateLog = db.truncateLog.bind(db);
    db.truncateLog = () => {
      count++;
      return truncateLog();
    };
    const truncation = truncationOf(db, undefined, 2);
    await until(() => count === 1, "the first look");
    await Bun.sleep(30);
    expect(count).toBe(1);
    insertTenant(db, { id: newId("tenant"), name: "u", createdAt: 1 });
    await until(() => count === 2, "a change");
    truncation.stop();
  });

  test("that was copied by another connection leaves nothing to copy, and its text is still there until it is emptied", () => {
    insertTenant(db, { id: newId("tenant"), name: "canary-tenant", createdAt: 1 });
    expect(traces("canary")).toEqual(["spangate.db-wal"]);
    copyLog(join(dir, "spangate.db"));
    expect(traces("canary").toSorted()).toEqual(["spangate.db", "spangate.db-wal"]);
    expect(db.truncateLog()).toBe(true);
    expect(traces("canary")).toEqual(["spangate.db"]);
  });

  test("is emptied behind the copy, later when something was written meanwhile, and sometime in any case", async () => {
    const order: string[] = [];
    const truncateLog = db.truncateLog.bind(db);
    db.truncateLog = () => {
      order.push("emptied");
      return truncateLog();
    };
    let mayWrite = true;
    const copy = async (): Promise<void> => {
      order.push("copied");
      await Bun.sleep(1);
      if (mayWrite) insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 });
    };
    insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 });
    const truncation = truncationOf(db, copy, 2);
    await until(() => order.includes("emptied"), "the first time");
    mayWrite = false;
    // Twice in each of five attempts: the second time nothing is written in the background.
    expect(order).toEqual([...Array.from({ length: 10 }, () => "copied"), "emptied"]);
    order.length = 0;
    insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 });
    await until(() => order.includes("emptied"), "the second time");
    expect(order).toEqual(["copied", "emptied"]);
    await truncation.stop();
  });

  test("is emptied behind a second copy, during which background work writes nothing", async () => {
    const order: string[] = [];
    const truncateLog = db.truncateLog.bind(db);
    db.truncateLog = () => {
      order.push("emptied");
      return truncateLog();
    };
    let isWriting = true;
    let written = 0;
    const writtenByCopy: number[] = [];
    const write = async (): Promise<void> => {
      while (isWriting) {
        insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 });
        written += 1;
        await yieldToRequests();
      }
    };
    const copy = async (): Promise<void> => {
      const before = written;
      order.push("copied");
      if (order.length === 1) await until(() => written > before, "background work writes");
      else await Bun.sleep(20);
      writtenByCopy.push(written - before);
    };
    const writing = write();
    const truncation = truncationOf(db, copy, 2);
    await until(() => order.includes("emptied"), "the log is empty");
    expect(order.slice(0, 3)).toEqual(["copied", "copied", "emptied"]);
    expect(writtenByCopy[1]).toBe(0);
    const before = written;
    await until(() => written > before, "background work goes on");
    isWriting = false;
    await Promise.all([writing, truncation.stop()]);
  });

  test("is emptied where it cannot be copied, and not behind a stop", async () => {
    insertTenant(db, { id: newId("tenant"), name: "canary-tenant", createdAt: 1 });
    const broken = truncationOf(db, () => Promise.reject(new Error("there is no thread")));
    await until(() => !traces("canary").includes("spangate.db-wal"), "the log is empty");
    await broken.stop();
    const copied = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    const late = truncationOf(db, () => {
      begun.resolve();
      return copied.promise;
    });
    insertTenant(db, { id: newId("tenant"), name: "other-canary", createdAt: 1 });
    await begun.promise;
    const ended = late.stop();
    expect(ended).toBeInstanceOf(Promise);
    copied.resolve();
    await ended;
    expect(traces("other-canary")).toContain("spangate.db-wal");
  });

  test("is copied to its end before the folder is closed", async () => {
    db.close();
    const copied = Promise.withResolvers<void>();
    using run = spyOn(ThreadPool.prototype, "run").mockImplementation(() => copied.promise);
    const { db: opened, closeData } = openData(dir, () => undefined);
    db = opened;
    insertTenant(db, { id: newId("tenant"), name: "t", createdAt: 1 });
    await until(() => run.mock.calls.length > 0, "the log is being copied");
    let isClosed = false;
    const closing = closeData().then(() => {
      isClosed = true;
    });
    await Bun.sleep(5);
    expect(isClosed).toBe(false);
    expect(db.changeCount()).toBeGreaterThan(0);
    copied.resolve();
    await closing;
    db = openDb(join(dir, "spangate.db"));
  });

  test("of a server is copied by its thread, and empty after a moment and after the end", async () => {
    db.close();
    const warnings: string[] = [];
    const { db: opened, closeData } = openData(dir, (_, text) => void warnings.push(text));
    db = opened;
    insertTenant(db, { id: newId("tenant"), name: "canary-tenant", createdAt: 1 });
    await until(() => !traces("canary").includes("spangate.db-wal"), "the log is empty");
    insertTenant(db, { id: newId("tenant"), name: "other-canary", createdAt: 1 });
    await closeData();
    expect(readdirSync(dir)).not.toContain("spangate.db-wal");
    expect(warnings.filter((text) => text.includes("log"))).toEqual([]);
    db = openDb(join(dir, "spangate.db"));
  });
});
