import { describe, expect, test } from "bun:test";
import { PendingBlocks } from "../../../gateway/dispatch/kv/pending-blocks.ts";
import type { FakeProcess } from "../fake-link.ts";
import { corpusSalt, greedy, plan, readyRig, request, spanRun } from "../rig.ts";

function started(workerCount = 2, options = {}) {
  const rig = readyRig(workerCount, options);
  return { ...rig, submits: () => rig.processes.map(({ submittedIds }) => submittedIds) };
}

const span = spanRun("fragment", 400);
const overSpan = { plan: plan([1], [span]) };
const spanKey = span.blockKeys.at(-1) ?? span.rootKey;

describe("what is pendingBlocks", () => {
  test("draws requests over the same text to the worker that computes it, until its prompts are many", () => {
    const { dispatcher, submits } = started();
    for (let index = 0; index < 8; index++) dispatcher.submit(request(`r${index}`, overSpan));
    expect(
      submits()
        .map(({ length }) => length)
        .toSorted(),
    ).toEqual([0, 8]);
    // Each request in flight counts for some tokens: the fragment is computed a second time in the end.
    for (let index = 8; index < 70; index++) dispatcher.submit(request(`r${index}`, overSpan));
    expect(Math.min(...submits().map(({ length }) => length))).toBeGreaterThan(10);
  });

  test("is over with the prompt, with the request, and with the worker", () => {
    const { dispatcher, processes, pendingBlocks } = started(1);
    const [process] = processes;
    dispatcher.submit(request("a", overSpan));
    expect(pendingBlocks.isComing("worker-0", spanKey)).toBe(true);
    process?.core.tick();
    expect(pendingBlocks.isComing("worker-0", spanKey)).toBe(false);
    dispatcher.submit(request("b", { plan: plan([1], [spanRun("other", 100)]) }));
    const otherKey = spanRun("other", 100).blockKeys.at(-1) ?? span.rootKey;
    expect(pendingBlocks.isComing("worker-0", otherKey)).toBe(true);
    process?.handlers.onMessage({ type: "failed", requestId: "b.1", code: "internal", message: "" });
    expect(pendingBlocks.isComing("worker-0", otherKey)).toBe(false);
    dispatcher.submit(request("c", { plan: plan([1], [spanRun("third", 100)]) }));
    process?.die();
    expect(pendingBlocks.isComing("worker-0", spanRun("third", 100).blockKeys[0] ?? span.rootKey)).toBe(false);
  });

  test("is over with the request's end, whether its prompt was told as computed or not", () => {
    const pendingBlocks = new PendingBlocks(() => undefined);
    const [run] = overSpan.plan.runs;
    if (run === undefined) throw new Error("a plan has runs");
    pendingBlocks.begin("w", "a.1", { plan: overSpan.plan, missing: run.blockKeys, tenantId: "tenant_a" });
    expect(pendingBlocks.isComing("w", spanKey)).toBe(true);
    pendingBlocks.end("a.1");
    expect(pendingBlocks.isComing("w", spanKey)).toBe(false);
    expect(pendingBlocks.ownerOf("w", run.rootKey)).toBeUndefined();
  });

  test("two requests that compute the same are both to end before it is over", () => {
    const { dispatcher, processes, pendingBlocks } = started(1);
    for (const id of ["a", "b"]) dispatcher.submit(request(id, overSpan));
    const fail = (requestId: string) =>
      processes[0]?.handlers.onMessage({ type: "failed", requestId, code: "internal", message: "" });
    fail("a.1");
    expect(pendingBlocks.isComing("worker-0", spanKey)).toBe(true);
    fail("b.1");
    expect(pendingBlocks.isComing("worker-0", spanKey)).toBe(false);
  });

  test("nothing of a request without reuse", () => {
    const { dispatcher, pendingBlocks } = started(1);
    dispatcher.submit(request("a", { ...overSpan, reuse: false }));
    expect(pendingBlocks.isComing("worker-0", spanKey)).toBe(false);
  });

  test("owners of chains are known until the worker has told the end, however it ended here", async () => {
    const { dispatcher, processes, pendingBlocks } = started(1);
    const fragment = spanRun("fragment", 40, corpusSalt);
    const [, main] = plan([1], [fragment]).runs;
    if (main === undefined) throw new Error("a plan ends with its main run");
    const events = dispatcher.submit(request("a", { plan: plan([1], [fragment]), params: greedy(100), deadlineMs: 1 }));
    const ownerOf = (rootKey: typeof main.rootKey) => pendingBlocks.ownerOf("worker-0", rootKey);
    expect(ownerOf(fragment.rootKey)).toEqual({ tenantId: "tenant_corpus", isFragment: true });
    expect(ownerOf(main.rootKey)).toEqual({ tenantId: "tenant_a", isFragment: false });
    // The fake worker answers the abort at once; one that is told later is waited for.
    const [process] = processes;
    if (process !== undefined) process.alive = false;
    await expect(events.next()).rejects.toMatchObject({ code: "deadline_exceeded" });
    expect(ownerOf(main.rootKey)).toBeDefined();
    process?.handlers.onMessage({
      type: "finished",
      requestId: "a.1",
      reason: "abort",
      usage: { promptTokens: 0, completionTokens: 0, cachedTokens: 0, cacheWriteTokens: 0 },
      timings: { queueMs: 0, prefillMs: 0, ttftMs: 0 },
      spans: [],
    });
    expect(ownerOf(main.rootKey)).toBeUndefined();
  });
});

describe("a worker whose queue is full", () => {
  const refuse = (process: FakeProcess | undefined, requestId: string) =>
    process?.handlers.onMessage({ type: "failed", requestId, code: "overloaded", message: "queue full" });

  test("is passed over while another has room, and leaves no load behind", () => {
    const { dispatcher, processes, submits, registry } = started();
    dispatcher.submit(request("a"));
    const first = submits().findIndex(({ length }) => length === 1);
    refuse(processes[first], "a.1");
    expect(submits()[1 - first]).toEqual(["a.2"]);
    expect(registry.list()[first]).toMatchObject({ inFlight: 0, pendingTokens: 0 });
    expect(registry.list()[1 - first]).toMatchObject({ inFlight: 1, pendingTokens: 3 });
  });

  test("is the caller's error when all are full", async () => {
    const { dispatcher, processes, submits } = started();
    const events = dispatcher.submit(request("a"));
    const first = submits().findIndex(({ length }) => length === 1);
    refuse(processes[first], "a.1");
    refuse(processes[1 - first], "a.2");
    await expect(events.next()).rejects.toMatchObject({ code: "overloaded", status: 503, retryAfterS: 2 });
    expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
  });
});
