/** What simulated lives of servers found in the gateway's side of KV files, written out. */
import { describe, expect, jest, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { KvRig, saltA, saltB, spanOf } from "./rig.ts";

describe("what simulated lives found (test/sim/tiers.test.ts)", () => {
  test("a power cut while the folder is made leaves a folder that is taken over, not another server's", async () => {
    using rig = new KvRig();
    mkdirSync(rig.folder);
    writeFileSync(join(rig.folder, "owner.tmp"), "");
    await rig.start();
    await rig.keep(saltA, 1);
    expect([rig.rows, rig.logged]).toEqual([1, []]);
    expect(readFileSync(join(rig.folder, "owner"), "utf8")).toBe("me\n");
    expect(existsSync(join(rig.folder, "owner.tmp"))).toBe(false);
  });

  test("parts of a span are loaded in the order of its chain, whichever was committed last", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 30, 3 * 32 * 4);
    rig.db.client.run("update kv_objects set used_at = used_at + position");
    await rig.start();
    const warm = rig.sent.find((message) => message.type === "catalog" && message.warm);
    expect(warm?.type === "catalog" ? warm.objects.map(({ position }) => position) : []).toEqual([0, 128, 256]);
  });

  test("a database that takes no change is no error of prepare's, of a worker's message or of a start", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const { client } = rig.db;
    const [object] = rig.catalog;
    client.run("create trigger full before delete on kv_objects begin select raise(abort, 'full'); end");
    rig.kv.onMessage({ type: "load failed", objectId: object?.id ?? "", reason: "EIO" });
    await rig.start({ mostBytes: rig.kv.usage()[0]?.bytes ?? 0 });
    await rig.keep(saltA, 40);
    expect([rig.rows, rig.logged.length]).toEqual([1, 2]);
    rmSync(join(rig.folder, object?.id ?? ""));
    await rig.start();
    expect([rig.kv.usage(), rig.logged.at(-1)]).toEqual([[], expect.stringContaining("is not kept in")]);
    client.run("drop trigger full");
    await rig.start();
    expect(rig.kv.usage()[0]?.objects).toBe(0);
  });

  test("keys that a full database kept are destroyed later, of corpora that live on too", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const { client } = rig.db;
    client.run("create trigger full before update on kv_scopes begin select raise(abort, 'full'); end");
    jest.useFakeTimers();
    try {
      rig.kv.evictScopes([saltA]);
      expect(rig.scopes).toBe(1);
      client.run("drop trigger full");
      jest.advanceTimersByTime(1_000);
    } finally {
      jest.useRealTimers();
    }
    expect([await rig.files(), rig.rows, rig.scopes]).toEqual([[], 0, 0]);
  });

  test("workers forget a deleted corpus while the database is full, and one that starts then is not told of it", async () => {
    using rig = new KvRig();
    await rig.start();
    await rig.keep(saltA, 1);
    await rig.keep(saltB, 1);
    rig.db.client.run("create trigger full before update on kv_scopes begin select raise(abort, 'full'); end");
    rig.kv.evictScopes([saltA]);
    const { rootKey } = spanOf(saltA, 1, 20);
    expect(rig.sent.at(-1)).toEqual({ type: "forget", objectIds: [], rootKeys: [rootKey] });
    rig.sent.length = 0;
    await rig.kv.onReady("worker-0");
    expect(rig.catalog.map((object) => object.rootKey)).toEqual([spanOf(saltB, 1, 20).rootKey]);
  });
});
