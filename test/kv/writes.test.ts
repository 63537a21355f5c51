/** The line of files that are to be written. */
import { expect, test } from "bun:test";
import { KvWrites, type PendingObject } from "../../gateway/kv/writes.ts";
import { nobody } from "../../worker/contract/owners.ts";
import type { BlockKey } from "../../worker/contract/units.ts";

function pending(id: string, bytes: number): PendingObject {
  const key = id as BlockKey;
  const keys = { rootKey: key, previousKey: key, lastKey: key, position: 0, tokenCount: 1 };
  return {
    object: { id, dataKey: new Uint8Array(32), ...keys, owner: nobody },
    facts: { tenantId: "tenant_a", corpusId: "vs_1", saltEpoch: 0 },
    ...{ workerId: "worker-0", spanKey: key, scopeName: "s", format: "f", modelDigest: "m", bytes, blockCount: 1 },
  };
}

test("who waits for room in the line goes on when a write has ended, and gives up when it is not wanted", async () => {
  const writes = new KvWrites(100);
  void writes.begin(pending("a", 60));
  expect(writes.isFull).toBe(false);
  void writes.begin(pending("b", 60));
  void writes.begin(pending("c", 60));
  expect(writes.isFull).toBe(true);
  let isWanted = true;
  const ends: boolean[] = [];
  const waits = [writes.freed(() => true), writes.freed(() => isWanted)].map((wait) =>
    wait.then((it) => ends.push(it)),
  );
  isWanted = false;
  writes.settle("a");
  await Bun.sleep(0);
  expect(ends).toEqual([false]);
  writes.drop(({ object }) => object.id === "b");
  await Promise.all(waits);
  expect(ends).toEqual([false, true]);
  expect(writes.bytes).toBe(60);
});
