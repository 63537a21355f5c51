/** Files of the folder go many at a time, and none of them waits for the rows of others. */
import { expect, test } from "bun:test";
import { newId } from "../../db/ids.ts";
import { insertKvObject, listKvObjectIds } from "../../db/kv-objects.ts";
import { openDb } from "../../db/open.ts";
import { removeFiles, systemFolderFiles } from "../../gateway/kv/folder.ts";
import { KvRemoval, removedAtOnce } from "../../gateway/kv/removal.ts";

const names = Array.from({ length: 300 }, (_, index) => index.toString(16).padStart(32, "0"));

/** Notes which files are unlinked; each takes a round of the event loop. */
function slowFiles() {
  const unlinked: string[] = [];
  let [running, most] = [0, 0];
  const unlink = async (path: string): Promise<void> => {
    running += 1;
    most = Math.max(most, running);
    await new Promise((resolve) => setImmediate(resolve));
    running -= 1;
    unlinked.push(path);
    if (path.endsWith(names[7] ?? "")) throw new Error("ENOENT");
  };
  return { files: { ...systemFolderFiles, unlink }, unlinked, most: () => most };
}

test("all are removed, some dozens at the same time, also beside one that is gone already", async () => {
  const { files, unlinked, most } = slowFiles();
  await removeFiles(files, "/kv", names);
  expect(unlinked.toSorted()).toEqual(names.map((name) => `/kv/${name}`));
  expect(most()).toBeGreaterThan(8);
  expect(most()).toBeLessThan(128);
});

test("those whose rows are removed go while the rows of others are still there", async () => {
  const db = openDb(":memory:");
  const scope = {
    name: "s",
    tenantId: newId("tenant"),
    corpusId: newId("corpus"),
    saltEpoch: 0,
    sealedKey: Buffer.of(1),
  };
  const facts = { sealedKey: Buffer.of(1), modelDigest: "m", format: "f", rootKey: "r", previousKey: "r" };
  const sizes = { position: 0, tokenCount: 1, blockCount: 1, bytes: 1, usedAt: 0, pinned: 0, onDisk: 1, inBucket: 0 };
  db.unsynced(() => {
    for (const id of [...names, ...names.map((name) => `f${name.slice(1)}`)]) {
      insertKvObject(db, scope, { id, ...facts, ...sizes, tenantId: scope.tenantId, lastKey: id, spanKey: id });
    }
  });
  const rowsLeft: number[] = [];
  const unlink = async (): Promise<void> => void rowsLeft.push(listKvObjectIds(db).length);
  const removal: KvRemoval = new KvRemoval({
    ...{ db, folder: "/kv", files: { ...systemFolderFiles, unlink }, log: () => undefined },
    onDestroy: () => undefined,
    onGone: (objects) => void removal.unlink(objects.map(({ id }) => id)),
  });
  removal.scopes([1]);
  await removal.stop();
  expect(rowsLeft.length).toBe(2 * names.length);
  expect(rowsLeft[0]).toBeGreaterThan(0);
  expect(rowsLeft.filter((left) => left > 0).length).toBeGreaterThan(removedAtOnce / 2);
  db.close();
});
