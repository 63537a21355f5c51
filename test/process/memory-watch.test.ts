import { expect, test } from "bun:test";
import { MemoryWatch } from "../../gateway/process/memory-watch.ts";

/** Looks ten milliseconds apart at so many resident bytes: "c" a collection begins, "h" long work waits, "." neither. */
function looks(bytes: readonly number[]): string {
  let [at, count] = [0, 0];
  const watch = new MemoryWatch({
    residentBytes: () => bytes[at] ?? 0,
    collect: () => void count++,
    nowMs: () => at * 10,
    ...{ lookMs: 10, collectBytes: 10, holdBytes: 20, collectMs: 50 },
  });
  const marks = bytes.map((_, index) => {
    at = index;
    const before = count;
    const isHeld = watch.look();
    return (count > before ? "c" : "") + (isHeld ? "h" : "") || ".";
  });
  return marks.join("");
}

test("a collection begins with growth, and long work waits where the growth goes on meanwhile", () => {
  expect(looks([100, 105, 111, 115, 121, 125, 118, 130])).toBe("..c.hh..");
});

test("what a collection frees is room for the next growth", () => {
  expect(looks([100, 115, 104, 103, 102, 101, 101, 112, 113])).toBe(".c...." + ".c.");
});

test("what is still there after a collection lives: it holds nobody, and no other collection begins for it", () => {
  expect(looks([100, 130, 130, 130, 130, 130, 130, 130, 135, 138])).toBe(".ch" + "hhhh" + "....");
});

test("between two looks what was seen last holds", () => {
  let [bytes, now, asked] = [100, 0, 0];
  const watch = new MemoryWatch({
    residentBytes: () => {
      asked += 1;
      return bytes;
    },
    collect: () => undefined,
    nowMs: () => now,
    ...{ lookMs: 5, collectBytes: 10, holdBytes: 20, collectMs: 50 },
  });
  bytes = 130;
  now = 1;
  expect(watch.look()).toBeTrue();
  const before = asked;
  bytes = 100;
  now = 5;
  expect([watch.look(), asked]).toEqual([true, before]);
  now = 6;
  expect([watch.look(), asked]).toEqual([false, before + 1]);
});
