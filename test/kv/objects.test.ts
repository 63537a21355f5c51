/** KV in files at the gateway: rows are commits; restarts, deletion, room, folders that cannot be used. */
import { describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { backupFolder } from "../../db/backup.ts";
import { until } from "../support/until.ts";
import { card, KvRig, saltA, saltB, spanOf } from "./rig.ts";

const gib = 2 ** 30;

describe("after a restart", () => {
  test("workers are told of what was kept, with the same keys", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.keep(saltA, 30, 32 * 4 + 9);
    await rig.keep(saltB, 60);
    const before = rig.catalog;
    expect([before.length, rig.rows, rig.scopes]).toEqual([4, 4, 2]);
    expect(new Set(before.map(({ dataKey }) => Buffer.from(dataKey).toString("hex"))).size).toBe(4);
    await rig.start();
    expect(rig.catalog).toEqual(before);
    expect(rig.kv.ownerOfRoot(spanOf(saltB, 0, 4).rootKey)).toBe(rig.tenantIds[1]);
    expect(rig.kv.usage()[0]?.objects).toBe(4);
  });

  test("rows without a file are dropped, and files without a row; others' files stay", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.keep(saltA, 30);
    const [gone = "", kept = ""] = rig.catalog.map(({ id }) => id);
    await rig.files();
    rmSync(join(rig.folder, gone));
    const orphans = ["0".repeat(32), `w0-${"1".repeat(32)}.tmp`];
    for (const name of [...orphans, "notes.txt"]) writeFileSync(join(rig.folder, name), "x");
    await rig.start();
    expect(rig.catalog.map(({ id }) => id)).toEqual([kept]);
    expect((await rig.files()).sort()).toEqual([kept, "notes.txt"].sort());
    expect(rig.rows).toBe(1);
  });

  test("another model's objects are dropped", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const kvFormat = { name: "other", blockTokens: 4, blockBytes: 48 };
    await rig.start({ card: () => ({ ...card, kvFormat }) });
    expect([rig.catalog.length, rig.rows, await rig.files()]).toEqual([0, 0, []]);
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.start({ card: () => ({ ...card, digest: "ef".repeat(32) }) });
    expect([rig.catalog.length, rig.rows, await rig.files()]).toEqual([0, 0, []]);
  });

  test("scopes of corpora that are gone, or have another salt, are dropped", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.keep(saltB, 1);
    rig.db.client.run("update corpora set salt_epoch = 1 where id = ?", [rig.corpusIds[0]]);
    await rig.start();
    expect([rig.rows, rig.scopes, rig.catalog.length]).toEqual([1, 1, 1]);
    rig.db.client.run("update corpora set deleted_at = 1 where id = ?", [rig.corpusIds[1]]);
    await rig.start();
    expect([rig.rows, rig.scopes, await rig.files()]).toEqual([0, 0, []]);
  });

  test("switched off, what was kept is removed, and nothing is kept", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.start({ mostBytes: 0 });
    await rig.keep(saltA, 1);
    expect(new Set(rig.sent.map(({ type }) => type))).toEqual(new Set(["forget"]));
    expect([rig.rows, rig.scopes, await rig.files()]).toEqual([0, 0, []]);
    expect(rig.kv.usage()).toEqual([]);
  });

  test("switched off from the first start on, no folder is made", async () => {
    using rig = new KvRig();
    await rig.start({ mostBytes: 0 });
    expect(existsSync(rig.folder)).toBe(false);
  });
});

describe("deletion removes rows first, tells the workers, and unlinks", () => {
  test("of blocks by their keys, in their own corpus alone", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.keep(saltA, 30);
    const [first, second] = rig.catalog;
    rig.kv.evict(spanOf(saltA, 1, 20).blockKeys, saltB);
    expect(rig.rows).toBe(2);
    rig.kv.evict(spanOf(saltA, 1, 20).blockKeys, saltA);
    expect([rig.rows, rig.forgotten]).toEqual([1, [first?.id]]);
    expect(await rig.files()).toEqual([second?.id ?? ""]);
  });

  test("of a corpus, of a tenant", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.keep(saltB, 1);
    rig.kv.evictScopes([saltA]);
    const { rootKey } = spanOf(saltA, 1, 20);
    expect(rig.sent.some((message) => message.type === "forget" && message.rootKeys?.includes(rootKey))).toBe(true);
    await until(() => rig.rows === 1 && rig.scopes === 1, "one corpus is gone");
    rig.kv.evictTenant(rig.tenantIds[0]);
    expect(rig.rows).toBe(1);
    rig.kv.evictTenant(rig.tenantIds[1]);
    const files = await rig.files();
    expect([rig.rows, rig.scopes, files]).toEqual([0, 0, []]);
  });

  test.each([
    ["its blocks", (rig: KvRig) => rig.kv.evict(spanOf(saltA, 1, 20).blockKeys, saltA)],
    ["its corpus", (rig: KvRig) => rig.kv.evictScopes([saltA])],
    ["its tenant", (rig: KvRig) => rig.kv.evictTenant(rig.tenantIds[0])],
    ["its worker", (rig: KvRig) => rig.kv.onLost("worker-0")],
  ])("what is being written when %s goes is never committed", async (_what, act) => {
    using rig = new KvRig();
    await rig.start();
    rig.answer = "nothing";
    const kept = rig.keep(saltA, 1);
    act(rig);
    await kept;
    rig.finish();
    expect([rig.rows, rig.scopes, await rig.files()]).toEqual([0, 0, []]);
    expect(rig.catalog).toEqual([]);
  });

  test("what was being written when its blocks went and then its worker leaves no file", async () => {
    using rig = new KvRig();
    await rig.start();
    rig.answer = "nothing";
    const kept = rig.keep(saltA, 1);
    rig.kv.evict(spanOf(saltA, 1, 20).blockKeys, saltA);
    await kept;
    const message = rig.sent.find(({ type }) => type === "keep");
    if (message?.type !== "keep") throw new Error("nothing is to be kept");
    for (const name of [message.temporaryName, message.object.id]) writeFileSync(join(rig.folder, name), "sealed");
    rig.kv.onLost("worker-0");
    expect(await rig.files()).toEqual([]);
  });

  test("a deleted key is nowhere in the database's files", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const sealed = rig.db.client.query<{ k: Uint8Array }, []>("select sealed_key as k from kv_scopes").get()?.k;
    const holds = (path: string) => existsSync(path) && readFileSync(path).includes(Buffer.from(sealed ?? []));
    rig.db.truncateLog();
    expect(holds(join(rig.dir, "spangate.db"))).toBe(true);
    rig.kv.evictScopes([saltA]);
    rig.db.truncateLog();
    for (const name of ["spangate.db", "spangate.db-wal"]) expect(holds(join(rig.dir, name))).toBe(false);
  });

  test("a backup holds no key", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const keys = rig.db.client
      .query<{ k: Uint8Array }, []>("select sealed_key as k from kv_scopes union all select sealed_key from kv_objects")
      .all();
    expect(keys.length).toBe(2);
    writeFileSync(join(rig.dir, "secret"), "s");
    const target = join(rig.dir, "backup");
    backupFolder(rig.dir, target);
    const bytes = readFileSync(target);
    for (const { k } of keys) expect(bytes.includes(Buffer.from(k))).toBe(false);
  });
});

describe("room", () => {
  test("what was used longest ago goes; a use counts", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const bytes = rig.kv.usage()[0]?.bytes ?? 0;
    await rig.start({ mostBytes: 3 * bytes });
    await rig.keep(saltA, 20);
    await rig.keep(saltA, 40);
    const [first, second, third] = rig.db.client
      .query<{ id: string }, []>("select id from kv_objects order by seq")
      .all();
    rig.db.client.run("update kv_objects set used_at = seq");
    const { tokenIds, blockKeys, rootKey } = spanOf(saltA, 1, 20);
    rig.kv.account.noteUse({ runs: [{ kind: "span", tokenIds, position: 0, sees: [], blockKeys, rootKey }] });
    await rig.keep(saltA, 60);
    expect(rig.forgotten).toEqual([second?.id ?? ""]);
    expect([rig.rows, rig.kv.usage()[0]?.bytes]).toEqual([3, 3 * bytes]);
    const files = await rig.files();
    expect([first, third].every((row) => files.includes(row?.id ?? ""))).toBe(true);
  });

  test("what comes and goes is told, and not what a start finds", async () => {
    using rig = new KvRig();
    const told: unknown[] = [];
    const note = (...change: readonly unknown[]): void => void told.push(change);
    const listener = { held: note, loaded: note };
    await rig.start({ listener });
    await rig.keep(saltB, 1);
    const [, b] = rig.tenantIds;
    const blocks = rig.kv.usage()[0]?.blocks ?? 0;
    expect([told.splice(0), blocks > 0]).toEqual([[["disk", b, blocks]], true]);
    await rig.start({ listener });
    expect([rig.kv.usage()[0]?.blocks, told]).toEqual([blocks, []]);
    rig.kv.evictTenant(b);
    await until(() => told.length > 0, "it is told");
    expect(told).toEqual([["disk", b, -blocks]]);
  });

  test("a tenant's limit is kept by its own files, those used longest ago first; others' stay", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltB, 1);
    const bytes = rig.kv.usage()[0]?.bytes ?? 0;
    const [a, b] = rig.tenantIds;
    rig.quotas.set(a, 2 * bytes);
    for (const from of [1, 20, 40]) await rig.keep(saltA, from);
    const held = () =>
      [...(rig.kv.places?.usesByTenant() ?? [])].map(([id, [use]]) => [id, use?.objects, use?.quotaBytes]);
    expect(held()).toEqual([
      [b, 1, undefined],
      [a, 2, 2 * bytes],
    ]);
    expect(rig.forgotten).toEqual([rig.catalog[1]?.id ?? ""]);
    // A lower limit holds at once, one below a single file lets none be written, and none being left is no entry.
    rig.quotas.set(a, bytes);
    await rig.kv.account.trim(a);
    expect(held().map(([, objects]) => objects)).toEqual([1, 1]);
    rig.quotas.set(a, bytes - 1);
    await rig.kv.account.trim(a);
    await rig.keep(saltA, 60);
    expect(held().map(([id]) => id)).toEqual([b]);
    expect(rig.rows).toBe(1);
    // What is being written counts too.
    rig.quotas.set(a, bytes);
    rig.answer = "nothing";
    void rig.keep(saltA, 60);
    await rig.keep(saltA, 70);
    rig.finish();
    expect(held().map(([id, objects]) => [id, objects])).toEqual([
      [b, 1],
      [a, 1],
    ]);
  });

  test("for a job only what was used before it began makes room; why there is none is said", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const bytes = rig.kv.usage()[0]?.bytes ?? 0;
    const { blockKeys } = spanOf(saltA, 1, 20);
    expect([rig.kv.tiersHolding(blockKeys), rig.kv.tiersHolding(spanOf(saltA, 20, 20).blockKeys)]).toEqual([
      ["disk"],
      [],
    ]);
    await rig.start({ mostBytes: 2 * bytes });
    rig.db.client.run("update kv_objects set used_at = 5");
    const begun = Date.now();
    expect(await rig.keep(saltA, 20, 20, begun)).toBeUndefined();
    expect(await rig.keep(saltA, 40, 20, begun)).toBeUndefined();
    expect(await rig.keep(saltA, 60, 20, begun)).toBe("full");
    expect([rig.kv.tiersHolding(blockKeys), rig.rows]).toEqual([[], 2]);
    rig.quotas.set(rig.tenantIds[0], 2 * bytes);
    expect(await rig.keep(saltA, 60, 20, begun)).toBe("quota");
    // What the job finds there counts as used by it.
    rig.db.client.run("update kv_objects set used_at = 5");
    rig.kv.account.touch(spanOf(saltA, 20, 20).blockKeys.at(-1) ?? blockKeys[0] ?? (saltA as never));
    expect(await rig.keep(saltA, 60, 20, begun)).toBeUndefined();
    expect(rig.kv.tiersHolding(spanOf(saltA, 20, 20).blockKeys)).toEqual(["disk"]);
    // A span of which a part is missing is not there.
    await rig.start();
    await rig.keep(saltB, 1, 32 * 4 + 9);
    const long = spanOf(saltB, 1, 32 * 4 + 9).blockKeys;
    expect(rig.kv.tiersHolding(long)).toEqual(["disk"]);
    rig.db.client.run("delete from kv_objects where position > 0");
    expect(rig.kv.tiersHolding(long)).toEqual([]);
  });

  test("what is pinned stays, after a restart too, until it is said otherwise", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const bytes = rig.kv.usage()[0]?.bytes ?? 0;
    const spanKey = spanOf(saltA, 1, 20).blockKeys.at(-1);
    if (spanKey === undefined) throw new Error("a span has a key");
    rig.kv.account.setPinned(new Set([spanKey]));
    await rig.start({ mostBytes: 2 * bytes });
    const first = rig.catalog[0]?.id;
    expect(rig.kv.usage()[0]?.pinnedBytes).toBe(bytes);
    for (const from of [20, 40]) await rig.keep(saltA, from);
    expect(rig.rows).toBe(2);
    expect(rig.forgotten).not.toContain(first);
    // A pin of what is not there yet holds once it is.
    rig.kv.account.setPinned(new Set([spanKey, ...spanOf(saltA, 60, 20).blockKeys.slice(-1)]));
    await rig.keep(saltA, 60);
    await rig.keep(saltA, 80);
    expect([rig.rows, rig.kv.usage()[0]?.pinnedBytes]).toEqual([2, 2 * bytes]);
    await rig.start({ mostBytes: 2 * bytes });
    rig.kv.account.setPinned(new Set());
    await rig.keep(saltA, 80);
    expect([rig.rows, rig.forgotten.length, rig.kv.usage()[0]?.pinnedBytes]).toEqual([2, 1, 0]);
  });

  test("by default it is a quarter of what is free, the files counted as free", async () => {
    using rig = new KvRig();
    rig.freeBytes = 40 * gib;
    await rig.start();
    expect(rig.kv.usage()[0]?.quotaBytes).toBe(10 * gib);
  });

  test("under 2 GiB free, or when a write fails, nothing is written for a while, which is said once", async () => {
    using rig = new KvRig();
    await rig.start();
    rig.freeBytes = 2 * gib - 1;
    await rig.keep(saltA, 1);
    await rig.keep(saltA, 30);
    expect([rig.rows, rig.sent.length, rig.logged.length]).toEqual([0, 0, 1]);
    expect(rig.logged[0]).toContain("under 2 GiB are free");
    expect(rig.kv.isKept(spanOf(saltA, 1, 20).blockKeys[0] ?? (saltA as never))).toBe(true);
    rig.freeBytes = 2 ** 40;
    await rig.start();
    rig.answer = { reason: "ENOSPC" };
    await rig.keep(saltA, 1);
    await rig.keep(saltA, 30);
    expect(rig.logged.filter((line) => line.includes("ENOSPC")).length).toBe(1);
    expect(rig.rows).toBe(0);
  });

  test("an object whose blocks are gone is asked for again", async () => {
    using rig = new KvRig();
    await rig.start();
    rig.answer = { reason: "gone" };
    await rig.keep(saltA, 1);
    rig.answer = "kept";
    await rig.keep(saltA, 1);
    expect([rig.rows, rig.logged]).toEqual([1, []]);
  });
});

describe("a folder that cannot be used is said in a sentence, and everything is computed", () => {
  const prepareFolder: Readonly<Record<string, (rig: KvRig) => void>> = {
    "it belongs to another server": ({ folder }) => {
      mkdirSync(folder);
      writeFileSync(join(folder, "owner"), "somebody else\n");
    },
    "it holds files that are not a server's KV": ({ folder }) => {
      mkdirSync(folder);
      writeFileSync(join(folder, "thesis.txt"), "x");
    },
    "it is a file, or below one": ({ folder }) => writeFileSync(folder, "a file"),
  };

  test.each(Object.keys(prepareFolder))("%s", async (reason) => {
    using rig = new KvRig();
    prepareFolder[reason]?.(rig);
    await rig.start();
    await rig.keep(saltA, 1);
    expect([rig.sent, rig.rows, rig.kv.usage()]).toEqual([[], 0, []]);
    expect(rig.logged.length).toBe(1);
    expect(rig.logged[0]).toContain(reason);
    expect(rig.logged[0]).toContain(rig.folder);
  });
});

test("deletions while the folder cannot be used leave the account as it is", async () => {
  using rig = new KvRig();
  await rig.start();
  for (const salt of [saltA, saltB]) await rig.keep(salt, 1);
  writeFileSync(join(rig.folder, "owner"), "another");
  await rig.start();
  rig.kv.evict(spanOf(saltA, 1, 20).blockKeys, saltA);
  rig.kv.evictScopes([saltB]);
  await until(() => rig.rows === 0, "both are gone");
  expect([rig.kv.usage(), rig.kv.account.all.bytes, [...rig.kv.account.tenants]]).toEqual([[], 0, []]);
});

test("a damaged file's row goes, and its text is kept anew", async () => {
  using rig = new KvRig();
  await rig.start();
  await rig.keep(saltA, 1);
  const [object] = rig.catalog;
  rig.kv.onMessage({ type: "load failed", objectId: object?.id ?? "", reason: "segment 1 is not what was written" });
  expect([rig.rows, rig.logged.length]).toEqual([0, 1]);
  await rig.keep(saltA, 1);
  expect(rig.rows).toBe(1);
});
