import { expect, test } from "bun:test";
import { UseCounts } from "../../../gateway/dispatch/kv/use-counts.ts";
import { plan, spanRun } from "../rig.ts";

const keyOf = (name: string) => spanRun(name, 20).blockKeys.at(-1) ?? spanRun(name, 20).rootKey;

test("uses of spans are counted, fade by half in ten minutes, and are bounded", () => {
  const clock = { nowMs: 0 };
  const uses = new UseCounts(2, () => clock.nowMs);
  for (let count = 0; count < 4; count++) uses.note(plan([1], [spanRun("a", 20), spanRun("b", 20)]));
  expect([uses.of(keyOf("a")), uses.of(keyOf("b")), uses.of(keyOf("c"))]).toEqual([4, 4, 0]);
  clock.nowMs = 600_000;
  expect(uses.of(keyOf("a"))).toBe(2);
  uses.note(plan([1], [spanRun("a", 20)]));
  expect(uses.of(keyOf("a"))).toBe(3);
  uses.note(plan([1], [spanRun("c", 20)]));
  expect([uses.of(keyOf("b")), uses.of(keyOf("c"))]).toEqual([0, 1]);
});
