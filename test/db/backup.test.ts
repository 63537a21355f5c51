import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BackupError, backupFolder, restoreFolder } from "../../db/backup.ts";
import { lockFolder } from "../../db/lock.ts";
import { loadServerSecret } from "../../gateway/tenant/secret.ts";
import { createWorld, ingestText, type World } from "../corpus/world.ts";
import { wholeFile } from "../support/whole-file.ts";

describe("backup and restore", () => {
  let dir = "";
  let world: World;
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), "spangate-backup-"));
    world = createWorld();
    writeFileSync(join(world.dir, "secret"), new Uint8Array(32).fill(7), { mode: 0o600 });
    loadServerSecret(world.dir, world.db);
  });
  afterEach(async () => {
    await world.remove();
    rmSync(dir, { recursive: true, force: true });
  });
  const target = () => join(dir, "backup");
  const restored = () => join(dir, "data");

  async function withText(text: string) {
    const tenantId = world.tenants.create("acme").id;
    const store = world.corpus.corpora.create(tenantId, { name: "s", metadata: {} });
    const file = await ingestText(world, store, "a.txt", text);
    return { tenantId, store, file };
  }

  test("a running server's folder comes back whole: keys, corpora, text, search, uploads, secret", async () => {
    const { tenantId, store, file } = await withText("Anna has a zebra.");
    const admin = world.tenants.apiKeys.bootstrap(undefined)?.apiKey ?? "";
    expect(backupFolder(world.dir, target())).toEqual({ files: 1, bytes: 17 });
    expect(statSync(target()).mode & 0o777).toBe(0o600);
    // What comes later is not in it.
    await ingestText(world, store, "b.txt", "Tom has a yak.");
    expect(restoreFolder(target(), restored())).toEqual({ files: 1, bytes: 17 });
    expect(readFileSync(join(restored(), "secret"))).toEqual(readFileSync(join(world.dir, "secret")));
    expect(readdirSync(join(restored(), "files"))).toEqual([file.id]);
    const again = createWorld(restored());
    loadServerSecret(restored(), again.db);
    expect(again.tenants.apiKeys.valid(admin)?.scopes.has("platform:admin")).toBe(true);
    const search = { tenantId, vectorStoreIds: [store.id], maxResults: 5 };
    expect(await again.corpus.retrieve({ ...search, query: "zebra" })).toHaveLength(1);
    expect(await again.corpus.retrieve({ ...search, query: "yak" })).toHaveLength(0);
    expect(await wholeFile(again.corpus.files.openPieces(tenantId, file.id))).toEqual(Buffer.from("Anna has a zebra."));
    expect(again.db.client.query("select 1 from sqlite_schema where name = 'backup_files'").all()).toEqual([]);
    await again.close();
  });

  test("a file whose bytes went while the backup ran is a deleted one, and is swept", async () => {
    const { tenantId, store, file } = await withText("Anna has a zebra.");
    rmSync(join(world.dir, "files", file.id));
    expect(backupFolder(world.dir, target())).toMatchObject({ files: 0 });
    restoreFolder(target(), restored());
    const again = createWorld(restored());
    expect(() => again.corpus.files.get(tenantId, file.id)).toThrow();
    expect(
      await again.corpus.retrieve({ tenantId, vectorStoreIds: [store.id], query: "zebra", maxResults: 5 }),
    ).toEqual([]);
    await again.corpus.start();
    await again.corpus.idle();
    expect(again.db.client.query("select 1 from fragments").all()).toEqual([]);
    await again.close();
  });

  test("nothing is overwritten, and what is no backup or a damaged one leaves no database", async () => {
    const { file } = await withText("Anna has a zebra.");
    backupFolder(world.dir, target());
    expect(() => backupFolder(world.dir, target())).toThrow("exists already");
    expect(() => restoreFolder(target(), world.dir)).toThrow(BackupError);
    const unlock = lockFolder(join(dir));
    expect(() => restoreFolder(target(), dir)).toThrow("data folder: another server has");
    unlock();
    const refused = (why: RegExp) => {
      expect(() => restoreFolder(target(), restored())).toThrow(why);
      expect(existsSync(join(restored(), "spangate.db"))).toBe(false);
      rmSync(restored(), { recursive: true, force: true });
    };
    // A page of the database that no other check reads: an index without the entries that its head tells of.
    const whole = readFileSync(target());
    const torn = new Database(target());
    const index = torn.query<{ rootpage: number }, []>("select rootpage from sqlite_schema where type = 'index'").get();
    const { page_size: pageBytes } = torn.query<{ page_size: number }, []>("pragma page_size").get() ?? {
      page_size: 0,
    };
    torn.close();
    const bytes = Buffer.from(whole);
    bytes.writeUInt16BE(7, ((index?.rootpage ?? 0) - 1) * pageBytes + 3);
    writeFileSync(target(), bytes);
    refused(/the backup is damaged/);
    writeFileSync(target(), whole);
    const damaged = new Database(target());
    damaged.query("update backup_files set bytes = ? where name = ?").run(Buffer.from("other"), file.id);
    refused(/bytes of file-.* are damaged/);
    damaged.run("delete from backup_files where name = 'secret'");
    damaged.query("update backup_files set bytes = ? where name = ?").run(Buffer.from("Anna has a zebra."), file.id);
    damaged.close();
    refused(/lacks secret/);
    writeFileSync(target(), "no backup at all, but long enough to be looked at as a file of a database by SQLite");
    refused(/not a database/);
    expect(() => restoreFolder(join(dir, "nothing"), restored())).toThrow("there is no file");
    expect(() => backupFolder(join(dir, "empty"), join(dir, "b2"))).toThrow("has no database");
    expect(readdirSync(dir).filter((name) => name.includes("tmp"))).toEqual([]);
  });
});
