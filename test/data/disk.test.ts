/** Room that is kept on the disk: for small things, and for deletions when there is no room at all. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DbError } from "../../db/errors.ts";
import { newId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { insertTenant, listTenants } from "../../db/tenants.ts";
import { Disk, type DiskSpace } from "../../gateway/data/disk.ts";
import { AuditLog } from "../../gateway/tenant/audit.ts";

const mib = 1024 * 1024;
let dir = "";
const space = { totalBytes: 40 * mib, freeBytes: 40 * mib };
const logged: string[] = [];
const disk = (given: DiskSpace = space) =>
  new Disk(
    dir,
    (_level, text) => void logged.push(text),
    () => given,
  );
const ballast = () => join(dir, "ballast");

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-disk-"));
  space.freeBytes = 40 * mib;
  logged.length = 0;
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

describe("a disk", () => {
  test("keeps an eighth of a small one, and a gibibyte of a large one; small things may have half of that", () => {
    space.freeBytes = 4 * mib;
    expect([disk().availableBytes(), disk().availableForSmall()]).toEqual([0, 1.5 * mib]);
    const large = disk({ totalBytes: 2 ** 43, freeBytes: 2 ** 31 });
    expect([large.availableBytes(), large.availableForSmall()]).toEqual([2 ** 30, 2 ** 30 + 2 ** 29]);
  });

  test("has a ballast of real blocks, given up once, and made again when there is room for two", async () => {
    const it = disk();
    await it.makeBallast();
    const { size, blocks, mode } = statSync(ballast());
    expect([size, mode & 0o777]).toEqual([2.5 * mib, 0o600]);
    expect(blocks * 512).toBeGreaterThanOrEqual(2.5 * mib);
    expect([it.release(), existsSync(ballast()), it.release()]).toEqual([true, false, false]);
    expect(logged.length).toBe(1);
    space.freeBytes = 4.9 * mib;
    await it.makeBallast();
    expect(existsSync(ballast())).toBe(false);
    space.freeBytes = 5 * mib;
    await Promise.all([it.makeBallast(), it.makeBallast()]);
    expect(statSync(ballast()).size).toBe(2.5 * mib);
  });

  test("a ballast that was cut off, or has holes instead of blocks, is made anew", async () => {
    for (const spoil of [() => writeFileSync(ballast(), "short"), () => truncateSync(ballast(), 10 * mib)]) {
      writeFileSync(ballast(), "");
      spoil();
      await disk().makeBallast();
      const { size, blocks } = statSync(ballast());
      expect([size, blocks * 512 >= size]).toEqual([2.5 * mib, true]);
    }
  });

  test("that is full when the server starts gives the ballast up, so that the database can be opened", async () => {
    const it = disk();
    await it.makeBallast();
    space.freeBytes = 0;
    it.start();
    it.stop();
    expect(existsSync(ballast())).toBe(false);
  });
});

describe("what takes something away on a full disk", () => {
  let db: Db;
  beforeEach(() => {
    db = openDb(":memory:");
  });
  afterEach(() => db.close());

  const pages = (name: string) =>
    Object.values(db.client.query<Record<string, number>, []>(`pragma ${name}`).get() ?? {})[0] ?? 0;
  const add = () => insertTenant(db, { id: newId("tenant"), name: "n".repeat(3_000), createdAt: 1 });
  /** The database grows no further, as on a full disk. */
  const fillUp = (): void => {
    db.client.run(`pragma max_page_count = ${pages("page_count")}`);
    expect(() => {
      for (;;) add();
    }).toThrow(DbError);
  };
  const relieve = () => {
    let reliefs = 0;
    db.relief = () => {
      db.client.run(`pragma max_page_count = ${pages("page_count") + 50}`);
      reliefs += 1;
      return reliefs === 1;
    };
    return () => reliefs;
  };

  test("is done again in the room that was kept; what is no removal is not", () => {
    fillUp();
    const reliefs = relieve();
    expect(() => add()).toThrow("SQLITE_FULL");
    expect(reliefs()).toBe(0);
    const count = () => listTenants(db, { limit: 1_000, order: "asc" }).rows.length;
    const before = count();
    db.removing(() => db.transaction("work", () => void add()));
    expect([reliefs(), count()]).toEqual([1, before + 1]);
  });

  test("other errors, and a disk without room to make, are as they were", () => {
    const reliefs = relieve();
    const fail = () => {
      throw new DbError("constraint", "s", "x");
    };
    expect(() => db.removing(fail)).toThrow("x");
    expect(reliefs()).toBe(0);
    db.relief = () => false;
    fillUp();
    expect(() => db.removing(() => void add())).toThrow("SQLITE_FULL");
  });

  test("is what the audit log tells of as a removal, together with its row", () => {
    fillUp();
    const audit = new AuditLog(db);
    const event = (action: string) => {
      const principal = { keyId: "k", tenantId: undefined, scopes: new Set<never>() };
      return { requestId: "r".repeat(40_000), principal, action, objectIds: {} };
    };
    const made = () => ({});
    const reliefs = relieve();
    expect(() => audit.withEvent(event("POST /admin/v1/tenants"), () => 1, made)).toThrow("SQLITE_FULL");
    expect(reliefs()).toBe(0);
    expect(audit.withEvent(event("DELETE /admin/v1/keys/{key_id}"), () => 1, made)).toBe(1);
    expect(reliefs()).toBe(1);
  });
});
