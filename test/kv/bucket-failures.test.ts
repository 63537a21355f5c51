/** A bucket that refuses or is gone, in one object or in all: who waits, and what is said. */
import { describe, expect, test } from "bun:test";
import { MoverError } from "../../gateway/mover/protocol.ts";
import { until } from "../support/until.ts";
import { away, BucketRig, three } from "./bucket-rig.ts";
import { saltA } from "./rig.ts";

describe("a bucket that fails", () => {
  test("is said once for each kind of work; nobody waits for it; what it lacks it gets later", async () => {
    using rig = new BucketRig();
    const [first = ""] = await three(rig);
    rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [first]);
    rig.mover.fault = () => away;
    expect(await rig.ask(first)).toBe("s3");
    const asked = rig.mover.jobs.length;
    for (let index = 0; index < 20; index++) expect(await rig.ask(first)).toBe("s3");
    await rig.keep(saltA, 90);
    await until(() => rig.logged.length === 2, "both are said");
    expect(rig.mover.jobs.length).toBe(asked + 1);
    expect(rig.logged.every((line) => line.includes("s3://b/kv") && line.includes("answered 403"))).toBe(true);
    expect(rig.places).toEqual(["02", "12", "12", "11"]);
    rig.mover.fault = () => undefined;
    await rig.uploaded(4);
    await until(async () => (await rig.ask(first)) === "disk", "it is fetched again");
    expect(rig.logged.filter((line) => line.includes("answers again")).length).toBe(2);
  });

  test("in deletions that it never grants: they hold up no other", async () => {
    using rig = new BucketRig();
    const refused = Array.from({ length: 9 }, (_, index) => `${index}`.repeat(32));
    for (const id of refused) rig.mover.objects.set(id, new Uint8Array(1));
    rig.mover.fault = (job) => (job.is === "delete" && refused.includes(job.id) ? away : undefined);
    await rig.open();
    await until(() => rig.logged.length > 0, "they are refused");
    await rig.keep(saltA, 1);
    await rig.uploaded(1);
    rig.kv.evictScopes([saltA]);
    await until(() => rig.mover.objects.size === refused.length && rig.removals === refused.length, "one is gone");
    expect(rig.logged.length).toBe(1);
  });

  test("in one object alone: others come and go", async () => {
    using rig = new BucketRig();
    const [first = "", second = ""] = await three(rig);
    rig.db.client.run("update kv_objects set on_disk = 0 where id in (?, ?)", [first, second]);
    rig.mover.fault = (job) => (job.is === "get" && job.id === first ? away : undefined);
    expect([await rig.ask(first), await rig.ask(second)]).toEqual(["s3", "disk"]);
    const asked = rig.mover.jobs.length;
    expect([await rig.ask(first), rig.mover.jobs.length]).toEqual(["s3", asked]);
    let refused = "";
    rig.mover.fault = (job) => {
      if (job.is !== "put") return undefined;
      refused ||= job.id;
      return job.id === refused ? away : undefined;
    };
    for (const from of [90, 120]) await rig.keep(saltA, from);
    await rig.uploaded(4);
    expect(rig.mover.objects.has(refused)).toBe(false);
  });

  test("holds nothing up when the server stops", async () => {
    using rig = new BucketRig();
    const [first = ""] = await three(rig);
    rig.db.client.run("update kv_objects set on_disk = 0 where id = ?", [first]);
    const gate = Promise.withResolvers<void>();
    rig.mover.fault = () => gate.promise;
    rig.mover.stop = () => gate.reject(new MoverError("bucket", "the server stops"));
    rig.kv.onMessage({ type: "fetch", objectId: first });
    await rig.keep(saltA, 90);
    await until(() => rig.mover.jobs.at(-1)?.startsWith("put") === true, "it is on its way");
    await rig.kv.stop();
    expect(rig.places[3]).toBe("11");
  });
});
