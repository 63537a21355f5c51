/** What lies in files goes, and its uses are written down, in pieces between which others work. */
import { expect, spyOn, test } from "bun:test";
import type { BlockKey } from "../../worker/contract/units.ts";
import { KvRig, saltA, saltB } from "./rig.ts";

test("a lowered limit takes very many files in pieces, between which others work", async () => {
  using rig = new KvRig();
  await rig.start();
  await rig.keep(saltA, 1);
  await rig.keep(saltB, 1);
  const [a] = rig.tenantIds;
  rig.copy(a, 1_000);
  await rig.start();
  const bytes = (rig.kv.usage()[0]?.bytes ?? 0) / 1_002;
  rig.quotas.set(a, 100 * bytes);
  const dropped: number[] = [];
  let isDone = false;
  const done = rig.kv.account.trim(a).then(() => {
    isDone = true;
  });
  for (let before = rig.rows; !isDone; before = rig.rows) {
    await new Promise(setImmediate);
    dropped.push(before - rig.rows);
  }
  await done;
  expect(rig.rows).toBe(101);
  expect(Math.max(...dropped)).toBeLessThanOrEqual(200);
  expect(dropped.filter((count) => count > 0).length).toBeGreaterThanOrEqual(4);
  expect(rig.kv.account.of(a)).toMatchObject({ objects: 100, bytes: 100 * bytes });
});

test("a limit that was lowered at a start is kept in pieces too, before a span is written", async () => {
  using rig = new KvRig();
  await rig.start();
  await rig.keep(saltA, 1);
  rig.copy(rig.tenantIds[0], 1_000);
  await rig.start();
  const bytes = (rig.kv.usage()[0]?.bytes ?? 0) / 1_001;
  await rig.start({ mostBytes: 10 * bytes });
  using removed = spyOn(rig.db, "statement");
  await rig.kv.trim(saltA);
  const pieces = removed.mock.calls.filter(([name]) => name === "removeKvObjects").length;
  expect([rig.rows, pieces]).toEqual([10, 5]);
  expect(await rig.keep(saltA, 40)).toBeUndefined();
  expect(rig.rows).toBe(10);
});

test("uses are written down in pieces, and no power cut is waited for", async () => {
  using rig = new KvRig();
  await rig.start();
  using statement = spyOn(rig.db, "statement");
  using unsynced = spyOn(rig.db, "unsynced");
  const pieces = () => statement.mock.calls.filter(([name]) => name === "touchKvSpans").length;
  for (let at = 0; at < 1_000; at++) rig.kv.account.touch(`${at}`.padStart(32, "0") as BlockKey);
  expect(pieces()).toBe(0);
  for (let turn = 0, before = 0; pieces() < 5 && turn < 100; turn++, before = pieces()) {
    await new Promise(setImmediate);
    expect(pieces() - before).toBeLessThanOrEqual(1);
  }
  expect([pieces(), unsynced.mock.calls.length]).toEqual([5, 5]);
});
