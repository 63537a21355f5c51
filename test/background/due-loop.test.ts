import { expect, test } from "bun:test";
import { DueLoop, type DueLoopOptions } from "../../gateway/background/due-loop.ts";
import { until } from "../support/until.ts";

/** A loop whose clock the test moves, and the errors that freed space on the disk. */
function loopOf(work: DueLoopOptions["work"], nowMs: () => number = () => 1_000) {
  const relieved: unknown[] = [];
  const db = { relieve: (error: unknown) => relieved.push(error) > 0 };
  return { loop: new DueLoop({ name: "a test", log: () => undefined, db, nowMs, work }), relieved };
}

test("work is done again when the next object is due, and not before", async () => {
  const starts: number[] = [];
  const done = Promise.withResolvers<void>();
  const { loop } = loopOf(async () => {
    starts.push(performance.now());
    if (starts.length === 1) return 1_200;
    done.resolve();
    return undefined;
  });
  loop.wake();
  await done.promise;
  expect((starts[1] ?? 0) - (starts[0] ?? 0)).toBeGreaterThanOrEqual(195);
  await loop.stop();
});

test("what stays although it is due is not looked at without a pause", async () => {
  let runs = 0;
  const { loop } = loopOf(async () => {
    runs += 1;
    return 0;
  });
  const startMs = performance.now();
  loop.wake();
  await until(() => runs >= 3, "it is looked at again", undefined, 5);
  await loop.stop();
  // 50 ms lie between two looks, on a machine with other things to do as well.
  expect(runs).toBeLessThanOrEqual(1 + Math.ceil((performance.now() - startMs) / 49));
});

test("a stopped loop does nothing more", async () => {
  let runs = 0;
  const { loop } = loopOf(async () => {
    runs += 1;
    return 0;
  });
  loop.wake();
  await loop.idle();
  await loop.stop();
  await Bun.sleep(120);
  expect(runs).toBe(1);
});

test("an error may free space on the disk, and the work is tried again", async () => {
  const fault = new Error("the disk is full");
  const done = Promise.withResolvers<void>();
  let runs = 0;
  const { loop, relieved } = loopOf(async () => {
    runs += 1;
    if (runs === 1) throw fault;
    done.resolve();
    return undefined;
  });
  loop.wake();
  await done.promise;
  expect(relieved).toEqual([fault]);
  await loop.stop();
});
