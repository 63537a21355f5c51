/** KV in a bucket at the gateway: what goes up, what comes back, what is deleted, and what a start finds. */
import { describe, expect, test } from "bun:test";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { systemFolderFiles } from "../../gateway/kv/folder.ts";
import { MoverError } from "../../gateway/mover/protocol.ts";
import { until } from "../support/until.ts";
import { away, BucketRig, three } from "./bucket-rig.ts";
import { saltA, saltB, spanOf } from "./rig.ts";

describe("what is in the folder goes to the bucket", () => {
  test("and is counted; after a restart nothing goes twice", async () => {
    using rig = new BucketRig();
    const ids = await three(rig);
    expect([...rig.mover.objects.keys()].sort()).toEqual([...ids].sort());
    expect(rig.use("s3")).toMatchObject({ objects: 3, bytes: rig.use("disk")?.bytes });
    await rig.open();
    rig.mover.jobs.length = 0;
    await rig.keep(saltA, 90);
    await rig.uploaded(4);
    expect(rig.mover.jobs.filter((job) => job.startsWith("put"))).toEqual([`put ${rig.ids[3]}`]);
    expect(new Set(rig.serverIds).size).toBe(1);
  });

  test("the one used last first", async () => {
    using rig = new BucketRig();
    await rig.start();
    for (const from of [1, 30, 60]) await rig.keep(saltA, from);
    const [first, second, third] = rig.ids;
    rig.db.client.run("update kv_objects set used_at = seq % 3");
    await rig.open();
    await rig.uploaded(3);
    const puts = rig.mover.jobs.filter((job) => job.startsWith("put"));
    expect(puts).toEqual([second, first, third].map((id) => `put ${id}`));
  });

  test("up to its size: what was used longest ago makes room there, and nothing goes round in circles", async () => {
    using rig = new BucketRig();
    const [first = "", second = ""] = await three(rig);
    const each = (rig.use("s3")?.bytes ?? 0) / 3;
    await rig.open({ mostBytes: 3 * each });
    // The first is in the bucket alone, the second in both.
    rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [first]);
    for (const from of [90, 120]) await rig.keep(saltA, from);
    await until(() => !rig.mover.objects.has(second) && rig.removals === 0, "there is room");
    await rig.uploaded(3);
    expect(rig.ids).not.toContain(first);
    expect(rig.places).toEqual(["10", "12", "12", "12"]);
    expect(rig.mover.objects.has(second)).toBe(false);
    const asked = rig.mover.jobs.length;
    await rig.keep(saltA, 90);
    expect(rig.mover.jobs.length).toBe(asked);
    expect(rig.use("s3")).toMatchObject({ objects: 3, bytes: 3 * each });
  });

  test("a tenant's limit holds for its own: others' stay, and go up after it", async () => {
    using rig = new BucketRig();
    const [first = "", second = "", third = ""] = await three(rig);
    const each = (rig.use("s3")?.bytes ?? 0) / 3;
    rig.bucketQuotas.set(rig.tenantIds[0], 2 * each);
    rig.kv.account.setPinned(new Set([spanOf(saltA, 1, 20).blockKeys.at(-1) ?? spanOf(saltA, 1, 20).rootKey]));
    await rig.keep(saltB, 1);
    await rig.uploaded(4);
    await rig.keep(saltA, 90);
    await until(() => rig.places.at(-1) === "12" && rig.removals === 0, "it is there");
    // What is pinned stays.
    expect([first, second, third].map((id) => rig.mover.objects.has(id))).toEqual([true, false, false]);
    expect(rig.mover.objects.size).toBe(3);
    rig.bucketQuotas.set(rig.tenantIds[0], 1);
    await rig.keep(saltA, 120);
    await rig.keep(saltB, 30);
    await until(() => rig.mover.objects.size === 4, "the other tenant's is there");
    expect(rig.places.slice(-2)).toEqual(["10", "12"]);
  });

  test("a smaller size than before is kept to from the start on", async () => {
    using rig = new BucketRig();
    await three(rig);
    const each = (rig.use("s3")?.bytes ?? 0) / 3;
    await rig.open({ mostBytes: each });
    await until(() => rig.mover.objects.size === 1 && rig.removals === 0, "it is small");
    expect(rig.places).toEqual(["10", "10", "12"]);
  });

  test("a file that is gone is gone from the database too", async () => {
    using rig = new BucketRig();
    await rig.start();
    await rig.keep(saltA, 1);
    const [id = ""] = rig.ids;
    rig.mover.fault = (job) => {
      if (job.is === "put") rmSync(join(rig.folder, id), { force: true });
      return undefined;
    };
    await rig.open();
    await until(() => rig.rows === 0, "its row is gone");
    expect(rig.forgotten).toEqual([id]);
  });
});

describe("what makes room in the folder comes back from the bucket", () => {
  test("when a worker asks for it, the file as it was", async () => {
    using rig = new BucketRig();
    const [first = "", second = ""] = await three(rig);
    const bytes = (rig.use("disk")?.bytes ?? 0) / 3;
    await rig.open({ diskBytes: 3 * bytes });
    writeFileSync(join(rig.folder, first), "sealed by a worker");
    rig.mover.objects.set(first, readFileSync(join(rig.folder, first)));
    await rig.keep(saltA, 90);
    expect(rig.places).toEqual(["02", "12", "12", "10"]);
    expect(rig.sent).toContainEqual({ type: "moved", objectIds: [first], tier: "s3" });
    expect(rig.use("disk")?.objects).toBe(3);
    // It takes the place of what was used before the others.
    expect(await rig.ask(first)).toBe("disk");
    expect(rig.sent).toContainEqual({ type: "moved", objectIds: [second], tier: "s3" });
    expect(rig.places.slice(0, 2)).toEqual(["12", "02"]);
    expect((await rig.files()).includes(second)).toBe(false);
    expect(readFileSync(join(rig.folder, first), "utf8")).toBe("sealed by a worker");
  });

  test("while its old file is still going: the one that comes stays", async () => {
    using rig = new BucketRig();
    const [first = ""] = await three(rig);
    const gate = Promise.withResolvers<void>();
    const unlink = (path: string): Promise<void> => gate.promise.then(() => systemFolderFiles.unlink(path));
    await rig.open({ diskBytes: rig.use("disk")?.bytes ?? 0, files: { ...systemFolderFiles, unlink } });
    await rig.keep(saltA, 90);
    expect(rig.places[0]).toBe("02");
    const told = rig.ask(first);
    await Bun.sleep(20);
    expect(rig.mover.jobs).not.toContain(`get ${first}`);
    gate.resolve();
    expect(await told).toBe("disk");
    expect(await rig.files()).toContain(first);
  });

  test("when the folder is lost: workers are told that it is in the bucket", async () => {
    using rig = new BucketRig();
    const ids = await three(rig);
    await rig.kv.stop();
    rmSync(rig.folder, { recursive: true });
    await rig.open();
    expect(rig.places).toEqual(["02", "02", "02"]);
    const told = rig.sent.flatMap((one) => (one.type === "catalog" && one.tier === "s3" ? one.objects : []));
    expect(new Set(told.map(({ id }) => id))).toEqual(new Set(ids));
    expect(rig.sent.every((one) => one.type !== "catalog" || !one.warm)).toBe(true);
    expect(await Promise.all(ids.map((id) => rig.ask(id)))).toEqual(["disk", "disk", "disk"]);
    expect(rig.use("disk")?.objects).toBe(3);
    expect((await rig.files()).sort()).toEqual([...ids].sort());
  });

  test("two that ask at once get it once", async () => {
    using rig = new BucketRig();
    const [id = ""] = await three(rig);
    rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [id]);
    expect(await Promise.all([rig.ask(id), rig.ask(id)])).toEqual(["disk", "disk"]);
    expect(rig.mover.jobs.filter((job) => job === `get ${id}`).length).toBe(1);
    expect(await rig.ask(id)).toBe("disk");
  });

  test("a file that cannot be read comes from the bucket; one that came from there is given up", async () => {
    using rig = new BucketRig();
    const [id = ""] = await three(rig);
    rig.kv.onMessage({ type: "load failed", objectId: id, reason: "damaged" });
    expect(rig.places[0]).toBe("02");
    const again = rig.sent.findLast(({ type }) => type === "catalog");
    expect(again?.type === "catalog" && [again.tier, again.objects.map((one) => one.id)]).toEqual(["s3", [id]]);
    expect(await rig.ask(id)).toBe("disk");
    const moved = rig.sent.findLast(({ type }) => type === "moved");
    const copy = moved?.type === "moved" ? moved.copy : undefined;
    expect(copy).toBe(1);
    // Another worker says only now what it found of the first file.
    const toldBefore = rig.sent.length;
    rig.kv.onMessage({ type: "load failed", objectId: id, reason: "damaged" });
    expect(rig.places[0]).toBe("12");
    const last = rig.sent.slice(toldBefore).flatMap((one) => (one.type === "catalog" ? one.objects : []));
    expect(last.map((object) => [object.id, object.copy])).toEqual([[id, copy]]);
    rig.kv.onMessage({ type: "load failed", objectId: id, reason: "damaged", copy: 1 });
    expect(rig.ids).not.toContain(id);
    await until(() => !rig.mover.objects.has(id), "the bucket's is gone too");
  });

  test.each([
    ["is not there", new MoverError("missing", "it is not in the bucket")],
    ["has another size", new MoverError("damaged", "the object has 1 bytes, not 2")],
  ])("an object that %s is forgotten", async (_what, fault) => {
    using rig = new BucketRig();
    const [id = ""] = await three(rig);
    rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [id]);
    rig.mover.fault = (job) => (job.is === "get" ? fault : undefined);
    expect(await rig.ask(id)).toBe("forgotten");
    expect(rig.ids).not.toContain(id);
  });

  test("what is deleted while it comes leaves no file", async () => {
    using rig = new BucketRig();
    const [id = ""] = await three(rig);
    rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [id]);
    const gate = Promise.withResolvers<void>();
    rig.mover.fault = (job) => (job.is === "get" ? gate.promise : undefined);
    rig.kv.onMessage({ type: "fetch", objectId: id });
    await until(() => rig.mover.jobs.includes(`get ${id}`), "it is on its way");
    rig.kv.evict(spanOf(saltA, 1, 20).blockKeys, saltA);
    gate.resolve();
    await until(() => rig.removals === 0 && rig.mover.objects.size === 2, "the bucket has it no more");
    expect(await rig.files()).not.toContain(id);
  });
});

describe("deletion", () => {
  test.each([
    ["blocks", 2, (rig: BucketRig) => rig.kv.evict(spanOf(saltA, 1, 20).blockKeys, saltA)],
    ["a corpus", 0, (rig: BucketRig) => rig.kv.evictScopes([saltA])],
    ["a tenant", 0, (rig: BucketRig) => rig.kv.evictTenant(rig.tenantIds[0])],
  ])("of %s reaches the bucket", async (_what, left, act) => {
    using rig = new BucketRig();
    await three(rig);
    act(rig);
    await until(() => rig.mover.objects.size === left && rig.removals === 0, "the bucket's objects are gone");
    expect([rig.rows, rig.use("s3")?.objects]).toEqual([left, left]);
  });

  test("of what the bucket does not let go: its key goes at once, its bytes at a later start", async () => {
    using rig = new BucketRig();
    await three(rig);
    await rig.keep(saltB, 1);
    await rig.uploaded(4);
    rig.mover.fault = () => away;
    rig.kv.evictScopes([saltA]);
    expect(rig.db.client.query("select 1 from kv_scopes where length(sealed_key) > 0").all().length).toBe(1);
    await until(() => rig.rows === 1, "rows are gone");
    expect([rig.removals, rig.mover.objects.size]).toEqual([3, 4]);
    await until(() => rig.logged.some((line) => line.includes("its deletion is tried again")), "it is said");
    await rig.open();
    expect([rig.removals, rig.mover.objects.size]).toEqual([3, 4]);
    rig.mover.fault = () => undefined;
    await rig.open();
    await until(() => rig.removals === 0, "the bucket is reached");
    expect([...rig.mover.objects.keys()]).toEqual(rig.ids);
  });

  test("of what is on its way there waits until it has arrived", async () => {
    using rig = new BucketRig();
    await rig.open();
    const gate = Promise.withResolvers<void>();
    rig.mover.fault = (job) => (job.is === "put" ? gate.promise : undefined);
    await rig.keep(saltA, 1);
    await until(() => rig.mover.jobs.some((job) => job.startsWith("put")), "it is on its way");
    const bytes = readFileSync(join(rig.folder, rig.ids[0] ?? ""));
    rig.kv.evictScopes([saltA]);
    await until(() => rig.rows === 0, "its row is gone");
    // Time enough for a deletion that does not wait.
    await Bun.sleep(50);
    expect([rig.removals, rig.mover.jobs.filter((job) => job.startsWith("delete"))]).toEqual([1, []]);
    // The upload had read the file before it was unlinked.
    writeFileSync(join(rig.folder, rig.mover.jobs.at(-1)?.slice(4) ?? ""), bytes);
    gate.resolve();
    await until(() => rig.removals === 0 && rig.mover.objects.size === 0, "it is deleted");
    expect(rig.use("s3")).toMatchObject({ objects: 0, bytes: 0 });
  });
});

describe("a start", () => {
  test("deletes what has no row, and looks again at what it does not know to be there", async () => {
    using rig = new BucketRig();
    const ids = await three(rig);
    await rig.kv.stop();
    for (let index = 0; index < 5; index++) rig.mover.objects.set(`${index}`.repeat(32), new Uint8Array(1));
    rig.db.client.run("update kv_objects set in_bucket = 0 where id = ?", [ids[0] ?? ""]);
    rig.db.client.run("update kv_objects set in_bucket = 1, on_disk = 0 where id = ?", [ids[1] ?? ""]);
    await rig.open();
    await until(() => rig.mover.objects.size === 2 && rig.removals === 0, "orphans are gone");
    await rig.uploaded(2);
    expect(rig.ids).toEqual([ids[0] ?? "", ids[2] ?? ""]);
    expect(rig.use("s3")?.objects).toBe(2);
  });

  test.each([
    ["with another bucket", "s3://other/kv"],
    ["without a bucket", undefined],
  ])("%s forgets what was in the old one alone", async (_what, address) => {
    using rig = new BucketRig();
    const [first = ""] = await three(rig);
    rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [first]);
    const earlier = rig.mover.objects.size;
    await (address === undefined ? rig.start({ mostBytes: 2 ** 40 }) : rig.open({ address }));
    expect(rig.ids).not.toContain(first);
    if (address === undefined) {
      expect(rig.places).toEqual(["10", "10"]);
      expect(rig.mover.objects.size).toBe(earlier);
      expect(rig.use("s3")).toBeUndefined();
    } else await rig.uploaded(2);
    expect(rig.removals).toBe(0);
    await rig.open();
    // Back at the first bucket, what is left there without a row is found.
    await until(() => !rig.mover.objects.has(first) && rig.removals === 0, "what was left is gone");
    expect(new Set(rig.serverIds).size).toBe(1);
  });
});
