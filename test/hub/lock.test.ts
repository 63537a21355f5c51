/** A file of the cache has one process at a time, those of other tools included. */
import { expect, test } from "bun:test";
import { join } from "node:path";
import { lockFile } from "../../gateway/hub/file-lock.ts";
import { newFolder } from "./rig.ts";

const never = new AbortController().signal;

test("others wait until it is unlocked, or their work is called off", async () => {
  const path = join(newFolder(), "locks", "blob.lock");
  const unlock = await lockFile(path, never, () => undefined);
  const order: string[] = [];
  const stop = new AbortController();
  const calledOff = lockFile(path, stop.signal, () => stop.abort(new Error("called off")));
  await expect(calledOff).rejects.toThrow("called off");
  const second = lockFile(path, never, () => {
    order.push("waits");
    setTimeout(() => {
      order.push("unlocked");
      unlock();
    }, 10);
  });
  (await second)();
  expect(order).toEqual(["waits", "unlocked"]);
});

test("it is the lock of flock(1), as other tools take it", async () => {
  const path = join(newFolder(), "blob.lock");
  const unlock = await lockFile(path, never, () => undefined);
  const tried = () => Bun.spawnSync(["flock", "--nonblock", path, "true"]).exitCode;
  expect(tried()).toBe(1);
  unlock();
  expect(tried()).toBe(0);
});
