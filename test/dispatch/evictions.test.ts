/** What is evicted stays away: from requests in progress, and from those that are sent later than they read their texts. */
import { describe, expect, test } from "bun:test";
import { Evictions } from "../../gateway/dispatch/evictions.ts";
import type { GatewayMessage } from "../../worker/contract/messages.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import type { FakeProcess } from "./fake-link.ts";
import { corpusSalt, greedy, plan, readyRig, request, spanRun } from "./rig.ts";

const span = spanRun("fragment", 40, corpusSalt);
const spanKey = span.blockKeys.at(-1) as BlockKey;

function sent<Type extends GatewayMessage["type"]>(process: FakeProcess | undefined, type: Type) {
  return (process?.core.received ?? []).filter(
    (message): message is Extract<GatewayMessage, { type: Type }> => message.type === type,
  );
}
const reuses = (process: FakeProcess | undefined): boolean[] => (process?.submits ?? []).map(({ reuse }) => reuse);

describe("by key", () => {
  test("all workers are told", () => {
    const { dispatcher, processes } = readyRig(2);
    dispatcher.evict([spanKey]);
    for (const process of processes) expect(sent(process, "evict")).toEqual([{ type: "evict", blockKeys: [spanKey] }]);
    dispatcher.evict([]);
    expect(sent(processes[0], "evict")).toHaveLength(1);
  });

  test("the key that a corpus's spans begin with stands for all of them", () => {
    const { dispatcher, processes } = readyRig();
    const readAtMs = performance.now() - 1;
    dispatcher.evict([span.rootKey]);
    dispatcher.submit(request("before", { plan: plan([7, 8, 9], [span]), readAtMs }));
    dispatcher.submit(request("other", { plan: plan([7, 8, 9]), readAtMs }));
    expect(reuses(processes[0])).toEqual([false, true]);
  });

  test("a request that read its texts before and is sent after keeps nothing; one that read them after does", () => {
    const { dispatcher, processes } = readyRig();
    const before = performance.now();
    dispatcher.evict([spanKey]);
    const over = { plan: plan([1], [span]) };
    dispatcher.submit(request("late", { ...over, readAtMs: before }));
    dispatcher.submit(request("fresh", over));
    dispatcher.submit(request("other", { plan: plan([1], [spanRun("other", 40, corpusSalt)]), readAtMs: before }));
    const quoting = { runs: plan([1]).runs.map((run) => ({ ...run, quotes: [spanKey] })) };
    dispatcher.submit(request("quotes", { plan: quoting, readAtMs: before }));
    expect(reuses(processes[0])).toEqual([false, true, true, false]);
  });

  test("a request that is sent again after its worker was lost keeps nothing of what went meanwhile", () => {
    const { dispatcher, processes } = readyRig(2);
    dispatcher.submit(request("r", { plan: plan([1], [span]) }));
    dispatcher.evict([spanKey]);
    const first = processes.find((process) => reuses(process).length > 0);
    expect(reuses(first)).toEqual([true]);
    first?.die();
    expect(processes.filter((process) => process !== first).flatMap(reuses)).toEqual([false]);
  });
});

describe("of a tenant", () => {
  test("what it holds goes, and what is computed of its chains; corpora's fragments only when asked for", () => {
    const { dispatcher, processes, residency } = readyRig();
    const [process] = processes;
    const own = spanRun("own", 40);
    const shared = request("r", { tenantId: "tenant-corpus", plan: plan([1, 2, 3], [own, span]) });
    dispatcher.submit({ ...shared, params: greedy(1) });
    dispatcher.submit(request("of another", { plan: plan([5], [spanRun("elsewhere", 40)]), params: greedy(1) }));
    process?.core.tick();
    dispatcher.submit({ ...shared, requestId: "in progress" });
    const roots = shared.plan.runs.map(({ rootKey }) => rootKey);
    const told = (): ReadonlySet<BlockKey> => new Set(sent(process, "evict").at(-1)?.blockKeys);
    expect(residency.holds("worker-0", spanKey)).toBe(true);

    const ownBlocks = dispatcher.evictTenant("tenant-corpus", "text");
    expect(ownBlocks).toBeGreaterThan(0);
    expect(told().has(own.blockKeys.at(-1) as BlockKey)).toBe(true);
    expect(told().has(roots[2] as BlockKey)).toBe(true);
    expect(told().has(spanKey)).toBe(false);

    dispatcher.evictTenant("tenant-corpus", "all");
    expect(told().has(spanKey)).toBe(true);
    for (const key of spanRun("elsewhere", 40).blockKeys) expect(told().has(key)).toBe(false);
    expect(dispatcher.evictTenant("unknown", "all")).toBe(0);
  });

  test("its requests that read their texts before keep nothing", () => {
    const { dispatcher, processes } = readyRig();
    const readAtMs = performance.now();
    dispatcher.evictTenant("tenant-a", "text");
    dispatcher.submit(request("late", { readAtMs }));
    dispatcher.submit(request("of another", { tenantId: "tenant-b", readAtMs }));
    dispatcher.submit(request("fresh"));
    expect(reuses(processes[0])).toEqual([false, true, true]);
  });
});

test("what is too much to remember stands for everything before it", () => {
  const { registry, residency, underway, supervisor } = readyRig();
  const evictions = new Evictions({ registry, residency, underway, supervisor, maxRemembered: 2 });
  const keys = ["a", "b", "c"].map((name) => spanRun(name, 4, corpusSalt).blockKeys.at(-1) as BlockKey);
  const other = request("r", { plan: plan([1], [spanRun("d", 4, corpusSalt)]) });
  const before = performance.now();
  evictions.evict(keys.slice(0, 2));
  expect(evictions.concern(other, before)).toBe(false);
  evictions.evict(keys.slice(2));
  expect(evictions.concern(other, before)).toBe(true);
  expect(evictions.concern(other, performance.now())).toBe(false);
});
