import { expect, test } from "bun:test";
import { fileURLToPath } from "node:url";
import { MemoryWatch, type MemoryWatchOptions } from "../../gateway/process/memory-watch.ts";

const bounds = {
  ...{ lookMs: 10, collectBytes: 10, holdBytes: 20, tightBytes: 25, mostBytes: 40, youngMs: 20 },
  ...{ allMs: 60, settleMs: 30, restMs: 20, againMs: 1_000 },
  busy: { youngEveryMs: 40, oldMs: 80 },
  usual: { youngEveryMs: 60, oldMs: 110 },
};

/**
 * Looks ten milliseconds apart at so many resident bytes: "y" a collection of young objects begins, "a" one of all
 * objects, "h" long work waits, "." none of these.
 */
function looks(bytes: readonly number[], isWork = true, changed: Partial<MemoryWatchOptions> = {}): string {
  let [at, marks] = [0, ""];
  const mark = (text: string): void => {
    marks += text;
  };
  const watch = new MemoryWatch({
    residentBytes: () => bytes[at] ?? 0,
    collectYoung: () => mark("y"),
    collectAll: () => mark("a"),
    nowMs: () => at * 10,
    ...bounds,
    ...changed,
  });
  for (at = 0; at < bytes.length; at++) {
    const before = marks;
    if (watch.look(isWork)) mark("h");
    if (marks === before) mark(".");
  }
  return marks;
}

test("young objects are collected again and again while the process is larger than before", () => {
  expect(looks([100, 105, 111, 115, 112, 113, 111, 112, 105, 104])).toBe(".." + "y..." + "y." + "..");
});

test("garbage is collected less often where no long work makes it", () => {
  expect(looks([100, ...Array<number>(13).fill(115)], false)).toBe("." + "y....." + "y...." + "a.");
});

test("long work waits for a collection where the growth goes on, and goes on between two collections", () => {
  expect(looks([100, 111, 125, 130, 130, 130, 130, 130])).toBe(".yh.." + "yhh.");
});

test("what stays is collected with all objects, and what that leaves is what later growth is measured by", () => {
  const grown = [100, ...Array<number>(9).fill(115)];
  expect(looks(grown)).toBe(".y...y..." + "a");
  const freed = [115, 108, 109, 110, 110, 110];
  expect(looks([...grown, ...freed, 118, 118, 119])).toBe(".y...y...a" + "......" + "..y");
});

test("what all collections leave is live: no more begin for it", () => {
  expect(looks([100, ...Array<number>(30).fill(115)])).toBe(`.y...y...a...y${".".repeat(17)}`);
});

test("what was live under a long request is collected again after it, each time twice as late", () => {
  const marks = looks([100, ...Array<number>(60).fill(115)], true, { againMs: 100 });
  expect(marks).toBe(`.y...y...a...y${".".repeat(5)}a${".".repeat(19)}a${".".repeat(21)}`);
});

test("a process that shrinks is measured by what it shrank to", () => {
  expect(looks([100, 60, 71, 60])).toBe("..y.");
});

test("work that nobody waits for has no room from a growth on, and again when that is gone; garbage is then urgent", () => {
  let [bytes, now, collections] = [100, 0, 0];
  const watch = new MemoryWatch({
    residentBytes: () => bytes,
    collectYoung: () => undefined,
    collectAll: () => {
      collections += 1;
    },
    nowMs: () => now,
    ...bounds,
  });
  const tightAt = (growth: number): boolean => {
    [bytes, now] = [100 + growth, now + 10];
    watch.look(false);
    return watch.isTight;
  };
  expect([20, 25, 26, 25, 0].map(tightAt)).toEqual([false, false, true, false, false]);
  // 80 ms as beside long work, and not 110.
  for (let looks = 0; looks < 9; looks++) tightAt(30);
  expect(collections).toBe(1);
});

/** A watch over a process that is always a little larger than what its last collection of all objects left. */
function creeping() {
  let [bytes, now, collections] = [100, 0, 0];
  const watch = new MemoryWatch({
    residentBytes: () => bytes,
    collectYoung: () => undefined,
    collectAll: () => {
      collections += 1;
    },
    nowMs: () => now,
    ...bounds,
  });
  /** Long work until one more collection has ended, which leaves 12 bytes more than the last one. */
  const workOn = (): void => {
    bytes += 12;
    const before = collections;
    for (let looks = 0; collections === before && looks < 20; looks++) look(true);
    for (let looks = 0; looks < 7; looks++) look(true);
  };
  const look = (isWork: boolean): boolean => {
    now += 10;
    watch.look(isWork);
    return watch.isTight;
  };
  return { workOn, look, collections: () => collections };
}

test("garbage that takes the place of garbage is growth, however little each collection of all objects leaves more", () => {
  const { workOn, look, collections } = creeping();
  for (let times = 0; times < 3; times++) workOn();
  expect([look(true), collections()]).toEqual([false, 3]);
  workOn();
  expect([look(true), collections()]).toEqual([true, 5]);
});

test("what all collections leave while no long work runs is live", () => {
  const { workOn, look, collections } = creeping();
  for (let times = 0; times < 4; times++) workOn();
  expect(look(true)).toBeTrue();
  const rested = Array.from({ length: 6 }, () => look(false));
  expect(rested).toEqual([true, false, false, false, false, false]);
  expect(collections()).toBe(5);
});

test("long work that never ends does not stop other work for good", () => {
  const { workOn, look } = creeping();
  for (let times = 0; times < 4; times++) workOn();
  const tight = Array.from({ length: 200 }, () => look(true));
  expect([tight[0], tight.indexOf(false) > 20, tight.at(-1)]).toEqual([true, true, false]);
});

test("between two looks what was seen last holds", () => {
  let [bytes, now, asked] = [100, 0, 0];
  const watch = new MemoryWatch({
    residentBytes: () => {
      asked += 1;
      return bytes;
    },
    collectYoung: () => undefined,
    collectAll: () => undefined,
    nowMs: () => now,
    ...bounds,
  });
  bytes = 130;
  now = 1;
  expect(watch.look(true)).toBeTrue();
  const before = asked;
  bytes = 100;
  now = 10;
  expect([watch.look(true), asked]).toEqual([true, before]);
  now = 11;
  expect([watch.look(true), asked]).toEqual([false, before + 1]);
});

test("old garbage is collected beside the event loop when the process grows", async () => {
  const program = fileURLToPath(new URL("../support/old-garbage.ts", import.meta.url));
  const child = Bun.spawn([process.execPath, program], { stdout: "pipe" });
  const { garbageMib, leftMib } = (await child.stdout.json()) as { garbageMib: number; leftMib: number };
  expect(garbageMib).toBeGreaterThan(50);
  expect(leftMib).toBeLessThan(0.75 * garbageMib);
}, 60_000);

test("a collection of all objects takes no memory, whatever was allocated before", async () => {
  const program = fileURLToPath(new URL("../support/collections.ts", import.meta.url));
  const child = Bun.spawn([process.execPath, program], { stdout: "pipe" });
  const { mostMib } = (await child.stdout.json()) as { mostMib: number };
  // A buffer that is filled with zeros takes twice the heap, more than 50 MiB.
  expect(mostMib).toBeLessThan(16);
}, 60_000);
