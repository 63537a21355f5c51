/** Files are written one after the other and synced in groups: what fails is one file's, and leaves nothing. */
import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import * as systemFiles from "node:fs/promises";
import type { WorkerMessage } from "../../worker/contract/messages.ts";
import type { FileSystem, OpenFile } from "../../worker/tiers/file-system.ts";
import { Keeps } from "../../worker/tiers/keeps.ts";
import { countUp, submitPlan } from "../engine/plans.ts";
import { until } from "../support/until.ts";
import { DiskFolder, keepMessages, modelDigest, openWorld } from "./disk-world.ts";

const spans = Array.from({ length: 40 }, (_, index) => countUp(2 * index, 9 + (index % 5)));

test("of many files some cannot be synced and one is cancelled: the others are there, under their names", async () => {
  using folder = new DiskFolder();
  const world = openWorld(256);
  world.engine.submit(submitPlan("prepare", { spans }, { params: { maxTokens: 0 } }));
  await world.settle();
  const { mover, shape } = world.backend;
  const messages = spans.flatMap((tokenIds) => keepMessages(folder.path, tokenIds));
  const ids = messages.map(({ object }) => object.id);
  const bad = new Set([ids[3], ids[17]]);
  const cancelled = ids[21] ?? "";
  let folderSyncs = 0;
  const files: FileSystem = {
    ...systemFiles,
    async open(path, flags, mode): Promise<OpenFile> {
      const handle = await systemFiles.open(path, flags, mode);
      const { datasync, sync } = handle;
      const isBad = [...bad].some((id) => id !== undefined && path.includes(id));
      handle.datasync = () =>
        isBad ? Promise.reject(Object.assign(new Error(), { code: "EIO" })) : datasync.call(handle);
      handle.sync = () => {
        folderSyncs += 1;
        return sync.call(handle);
      };
      return handle;
    },
  };
  const ends: WorkerMessage[] = [];
  const keeps = new Keeps({
    shape: { modelDigest, blockTokens: shape.blockTokens, blocks: mover.format },
    ...{ mover, cache: world.engine.cache, turn: () => undefined, emit: (end) => ends.push(end), files },
  });
  for (const message of messages) keeps.add(message);
  keeps.cancel([cancelled]);
  await until(() => ends.length === messages.length, "all have ended");
  const failed = ends.flatMap((end) => (end.type === "keep failed" ? [[end.objectId, end.reason]] : []));
  expect(failed.toSorted()).toEqual(
    [
      [ids[3], "EIO"],
      [ids[17], "EIO"],
      [cancelled, "gone"],
    ].toSorted(),
  );
  const there = ids.filter((id) => !bad.has(id) && id !== cancelled);
  expect(readdirSync(folder.path).toSorted()).toEqual(there.toSorted());
  // 40 files in groups of 16.
  expect(folderSyncs).toBe(3);
});
