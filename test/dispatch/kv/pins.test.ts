import { expect, test } from "bun:test";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { type FakeProcess, fakeLinks } from "../fake-link.ts";
import { makeRig } from "../rig.ts";

const keys = (...names: string[]): ReadonlyMap<BlockKey, string> =>
  new Map(names.map((name) => [name as BlockKey, `tenant_${name[0]}`]));

const told = (process: FakeProcess | undefined): (readonly (boolean | string)[])[] =>
  (process?.core.received ?? []).flatMap((message) =>
    message.type === "pin" ? [[message.tier ?? message.pinned, ...message.blockKeys]] : [],
  );

test("workers hear of what changes, and of all of it when they begin", () => {
  const { openLink, processes } = fakeLinks();
  const { pins, supervisor, dispatcher } = makeRig(openLink, ["cpu", "cpu"]);
  supervisor.start(dispatcher);
  processes[0]?.ready();
  pins.set(keys("a1", "a2"));
  expect(told(processes[0])).toEqual([[true, "a1", "a2"]]);
  // The other one is not ready yet.
  expect(told(processes[1])).toEqual([]);
  pins.set(keys("a2", "b1"));
  expect(told(processes[0]).slice(1)).toEqual([
    [false, "a1"],
    [true, "b1"],
  ]);
  processes[1]?.ready();
  pins.onReady("worker-1");
  expect(told(processes[1])).toEqual([[true, "a2", "b1"]]);
  pins.set(keys("a2", "b1"));
  expect(told(processes[0])).toHaveLength(3);
});

test("counts what a worker holds of them, by tenant", () => {
  const { openLink } = fakeLinks();
  const { pins, residency } = makeRig(openLink, ["cpu"]);
  pins.set(keys("a1", "a2", "b1"));
  const blockKeys = ["a1", "a2", "c1"] as BlockKey[];
  const stored = { sequence: 1, type: "stored", blockKeys, previousKeys: blockKeys, tokenCounts: [1, 1, 1] } as const;
  residency.apply("worker-0", [stored]);
  expect([...pins.heldBy("worker-0")]).toEqual([["tenant_a", 2]]);
  expect([...pins.heldBy("worker-1")]).toEqual([]);
});

test("what is pinned in the host's memory alone is told apart, and what was moved between is told anew", () => {
  const { openLink, processes } = fakeLinks();
  const { pins, supervisor, dispatcher, residency } = makeRig(openLink, ["cpu", "cpu"]);
  supervisor.start(dispatcher);
  processes[0]?.ready();
  pins.set(keys("a1"), keys("a1", "a2", "a3"));
  expect(told(processes[0])).toEqual([
    [true, "a1"],
    ["host", "a2", "a3"],
  ]);
  pins.set(keys("a2"), keys("a1"));
  expect(told(processes[0]).slice(2)).toEqual([
    [false, "a1", "a2", "a3"],
    [true, "a2"],
    ["host", "a1"],
  ]);
  pins.onReady("worker-0");
  expect(told(processes[0]).slice(5)).toEqual([
    [true, "a2"],
    ["host", "a1"],
  ]);
  const blockKeys = [...keys("a1", "a2").keys()];
  const stored = { type: "stored", blockKeys, previousKeys: blockKeys, tokenCounts: [1, 1] } as const;
  residency.apply("worker-0", [
    { sequence: 1, ...stored },
    { sequence: 2, ...stored, tier: "host" },
  ]);
  // A device's pins hold below too.
  expect([...pins.heldBy("worker-0"), ...pins.heldBy("worker-0", "host")]).toEqual([
    ["tenant_a", 1],
    ["tenant_a", 2],
  ]);
});
