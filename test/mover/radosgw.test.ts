/** The mover against a real S3 server. */
import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BucketStore } from "../../gateway/mover/bucket-store.ts";
import { isLong } from "../support/effort.ts";
import { startRadosgw } from "../support/radosgw.ts";

test.skipIf(!isLong || Bun.which("radosgw") === null)(
  "Ceph's S3 server takes, lists, gives and deletes what the mover sends, and refuses as it is understood",
  async () => {
    await using server = await startRadosgw();
    const folder = mkdtempSync(join(tmpdir(), "spangate-radosgw-"));
    const settings = { bucket: "kv-files", prefix: "it's_(a)/b!*-c/", access: server.access, folder };
    const store = new BucketStore(settings);
    const idOf = (index: number): string => index.toString(16).padStart(32, "0");
    const bytes = 20 * 1024 * 1024;
    const content = new Uint8Array(bytes).map((_, index) => (index * 31) % 253);
    writeFileSync(join(folder, idOf(0)), content);
    await store.do({ is: "put", id: idOf(0), bytes });
    rmSync(join(folder, idOf(0)));
    await store.do({ is: "get", id: idOf(0), bytes, aside: "aside" });
    expect(readFileSync(join(folder, idOf(0))).equals(content)).toBe(true);
    const refused = (changed: object, failure: string, message: RegExp) =>
      expect(new BucketStore({ ...settings, ...changed }).do({ is: "put", id: idOf(0), bytes })).rejects.toMatchObject({
        failure,
        message: expect.stringMatching(message),
      });
    await refused({ access: { ...server.access, secretAccessKey: "another" } }, "bucket", /403.*SignatureDoesNotMatch/);
    await refused({ access: { ...server.access, accessKeyId: "another" } }, "bucket", /403.*InvalidAccessKeyId/);
    await refused({ bucket: "not-there" }, "bucket", /404.*NoSuchBucket/);
    const missing = store.do({ is: "get", id: idOf(9_999), bytes, aside: "aside" });
    await expect(missing).rejects.toMatchObject({ failure: "missing" });
    const shorter = store.do({ is: "get", id: idOf(0), bytes: 5, aside: "aside" });
    await expect(shorter).rejects.toMatchObject({ failure: "damaged" });
    const ids = Array.from({ length: 1_005 }, (_, index) => idOf(index));
    for (let at = 1; at < ids.length; at += 16) {
      const some = ids.slice(at, at + 16);
      for (const id of some) writeFileSync(join(folder, id), "x");
      await Promise.all(some.map((id) => store.do({ is: "put", id, bytes: 1 })));
    }
    const first = await store.do({ is: "list", after: undefined });
    const second = await store.do({ is: "list", after: first?.next });
    expect([first?.ids.length, second?.next]).toEqual([1_000, undefined]);
    expect([...(first?.ids ?? []), ...(second?.ids ?? [])]).toEqual(ids);
    await Promise.all([...ids, idOf(9_999)].map((id) => store.do({ is: "delete", id })));
    expect(await server.list()).toEqual([]);
    rmSync(folder, { recursive: true });
  },
  180_000,
);
