import { describe, expect, test } from "bun:test";
import { Placement } from "../../../gateway/dispatch/request/placement.ts";
import type { BlockKey } from "../../../worker/contract/units.ts";
import { greedy, plan, readyRig, request, spanRun } from "../rig.ts";

function started(options = {}) {
  const rig = readyRig(2, options);
  return { ...rig, submitted: () => rig.processes.map(({ submittedIds }) => submittedIds) };
}

describe("the requests of one tree", () => {
  test("follow the first one to its worker, whatever waits there", () => {
    const { dispatcher, submitted } = started();
    const placement = new Placement();
    for (const id of ["a", "b", "c", "d"]) dispatcher.submit(request(id, { placement }));
    const [first = [], second = []] = submitted();
    expect([first.length, second.length].toSorted()).toEqual([0, 4]);
    // Without a placement the load decides: they spread.
    for (const id of ["e", "f", "g", "h"]) dispatcher.submit(request(id));
    expect(Math.min(...submitted().map((ids) => ids.length))).toBeGreaterThanOrEqual(3);
  });

  test("wait for their worker when it has no room, and keep nobody else from another", () => {
    const { dispatcher, processes, submitted } = started({ maxRunningPerWorker: 2 });
    const placement = new Placement("worker-1");
    for (const id of ["a", "b", "c", "d"]) dispatcher.submit(request(id, { placement, params: greedy(1) }));
    dispatcher.submit(request("e"));
    expect(submitted()).toEqual([["e.1"], ["a.1", "b.1"]]);
    processes[1]?.core.tick();
    expect(submitted()).toEqual([["e.1"], ["a.1", "b.1", "c.1", "d.1"]]);
  });

  test("move together when their worker is lost", () => {
    const { dispatcher, processes, submitted } = started();
    const placement = new Placement();
    for (const id of ["a", "b"]) dispatcher.submit(request(id, { placement }));
    const lost = submitted().findIndex((ids) => ids.length > 0);
    processes[lost]?.die();
    expect(submitted()[1 - lost]).toEqual(["a.2", "b.2"]);
    dispatcher.submit(request("c", { placement }));
    expect(submitted()[1 - lost]).toEqual(["a.2", "b.2", "c.1"]);
  });
});

test("files count for every worker, at what loading takes, so none stands in a line for what it could load", () => {
  const span = spanRun("x", 320);
  const key = span.blockKeys.at(-1) as BlockKey;
  const place = (holder: string, pendingTokens: number, options: Parameters<typeof readyRig>[1] = {}): number => {
    const { dispatcher, residency, registry, submitted } = started(options);
    const previousKeys = [span.rootKey, ...span.blockKeys].slice(0, span.blockKeys.length);
    const tokenCounts = span.blockKeys.map(() => 16);
    residency.apply(holder, [{ sequence: 1, type: "stored", blockKeys: span.blockKeys, previousKeys, tokenCounts }]);
    registry.addLoad(holder, 0, pendingTokens);
    dispatcher.submit(request("a", { plan: plan([7, 8, 9], [span]) }));
    return submitted().findIndex((ids) => ids.length > 0);
  };
  expect(place("worker-0", 400)).toBe(0);
  const asked: unknown[] = [];
  const blocksInFiles = (blockKeys: readonly BlockKey[]): number => {
    asked.push(blockKeys.at(-1));
    return blockKeys.at(-1) === key ? blockKeys.length : 0;
  };
  expect(place("worker-0", 400, { blocksInFiles })).toBe(1);
  // Half of 320 tokens is what loading is taken to cost.
  expect(place("worker-0", 150, { blocksInFiles })).toBe(0);
  expect(place("worker-1", 150, { blocksInFiles })).toBe(1);
  expect(asked).toContain(key);
});

test("nothing is looked for in files where there is no choice", () => {
  const blocksInFiles = (): number => {
    throw new Error("there is one worker");
  };
  const { dispatcher, processes } = readyRig(1, { blocksInFiles });
  dispatcher.submit(request("a"));
  expect(processes[0]?.submittedIds).toEqual(["a.1"]);
});

test("the tokens that close a chain reach the worker; a chat's chain stays open", () => {
  const { dispatcher, processes } = started();
  dispatcher.submit(request("a", { closeTokenIds: Int32Array.of(1, 10) }));
  dispatcher.submit(request("b"));
  const submits = processes.flatMap((process) => process.submits);
  const byId = new Map(submits.map((submit) => [submit.requestId, submit]));
  expect(byId.get("a.1")?.closeTokenIds).toEqual(Int32Array.of(1, 10));
  expect("closeTokenIds" in (byId.get("b.1") ?? {})).toBe(false);
});

test("a blend report comes back with the end", async () => {
  const { dispatcher, processes, submitted } = started();
  const events = dispatcher.submit(request("a"));
  const at = submitted().findIndex((ids) => ids.length > 0);
  processes[at]?.handlers.onMessage({
    type: "finished",
    requestId: "a.1",
    reason: "length",
    usage: { promptTokens: 3, completionTokens: 0, cachedTokens: 0, cacheWriteTokens: 0 },
    timings: { queueMs: 0, prefillMs: 0, ttftMs: 0 },
    spans: [],
    blend: { copiedTokens: 40, recomputedTokens: 6 },
  });
  const { value } = await events.next();
  expect(value).toMatchObject({ type: "finished", blend: { copiedTokens: 40, recomputedTokens: 6 } });
});
