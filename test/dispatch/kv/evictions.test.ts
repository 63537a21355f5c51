/** What is evicted stays away: from requests in progress, and from those that are sent later than they read their texts. */
import { describe, expect, test } from "bun:test";
import { Evictions } from "../../../gateway/dispatch/kv/evictions.ts";
import { KvOwners } from "../../../gateway/dispatch/kv/owners.ts";
import { PendingBlocks } from "../../../gateway/dispatch/kv/pending-blocks.ts";
import type { GatewayMessage, PlanRun } from "../../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../../worker/contract/units.ts";
import type { FakeProcess } from "../fake-link.ts";
import { corpusSalt, greedy, plan, readyRig, request, spanRun } from "../rig.ts";

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
    dispatcher.evictions.evict([spanKey], span.rootKey);
    for (const process of processes) expect(sent(process, "evict")).toEqual([{ type: "evict", blockKeys: [spanKey] }]);
    dispatcher.evictions.evict([], span.rootKey);
    expect(sent(processes[0], "evict")).toHaveLength(1);
  });

  test("the key that a corpus's spans begin with stands for all of them", () => {
    const { dispatcher, processes } = readyRig();
    const readAtMs = performance.now() - 1;
    dispatcher.evictions.evict([span.rootKey], span.rootKey);
    dispatcher.submit(request("before", { plan: plan([7, 8, 9], [span]), readAtMs }));
    dispatcher.submit(request("other", { plan: plan([7, 8, 9]), readAtMs }));
    expect(reuses(processes[0])).toEqual([false, true]);
  });

  test("a request that read its texts before and is sent after keeps nothing; one that read them after does", () => {
    const { dispatcher, processes } = readyRig();
    const before = performance.now();
    dispatcher.evictions.evict([spanKey], span.rootKey);
    const over = { plan: plan([1], [span]) };
    dispatcher.submit(request("late", { ...over, readAtMs: before }));
    dispatcher.submit(request("fresh", over));
    dispatcher.submit(request("other", { plan: plan([1], [spanRun("other", 40, corpusSalt)]), readAtMs: before }));
    const quoting = { runs: plan([1]).runs.map((run) => ({ ...run, quotes: [spanKey, span.rootKey] })) };
    dispatcher.submit(request("quotes", { plan: quoting, readAtMs: before }));
    expect(reuses(processes[0])).toEqual([false, true, true, false]);
  });

  test("a request that is sent again after its worker was lost keeps nothing of what went meanwhile", () => {
    const { dispatcher, processes } = readyRig(2);
    dispatcher.submit(request("r", { plan: plan([1], [span]) }));
    dispatcher.evictions.evict([spanKey], span.rootKey);
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
    const shared = request("r", { tenantId: "tenant_corpus", plan: plan([1, 2, 3], [own, span]) });
    dispatcher.submit({ ...shared, params: greedy(1) });
    dispatcher.submit(request("of another", { plan: plan([5], [spanRun("elsewhere", 40)]), params: greedy(1) }));
    process?.core.tick();
    dispatcher.submit({ ...shared, requestId: "in progress" });
    const roots = shared.plan.runs.map(({ rootKey }) => rootKey);
    const told = (): ReadonlySet<BlockKey> => new Set(sent(process, "evict").at(-1)?.blockKeys);
    expect(residency.holds("worker-0", spanKey)).toBe(true);

    const ownBlocks = dispatcher.evictions.evictTenant("tenant_corpus", "text");
    expect(ownBlocks).toBeGreaterThan(0);
    expect(told().has(own.blockKeys.at(-1) as BlockKey)).toBe(true);
    expect(told().has(roots[2] as BlockKey)).toBe(true);
    expect(told().has(spanKey)).toBe(false);

    dispatcher.evictions.evictTenant("tenant_corpus", "all");
    expect(told().has(spanKey)).toBe(true);
    for (const key of spanRun("elsewhere", 40).blockKeys) expect(told().has(key)).toBe(false);
    expect(dispatcher.evictions.evictTenant("tenant_unknown", "all")).toBe(0);
  });

  test("its requests that read their texts before keep nothing", () => {
    const { dispatcher, processes } = readyRig();
    const readAtMs = performance.now();
    dispatcher.evictions.evictTenant("tenant_a", "text");
    dispatcher.submit(request("late", { readAtMs }));
    dispatcher.submit(request("of another", { tenantId: "tenant_b", readAtMs }));
    dispatcher.submit(request("fresh"));
    expect(reuses(processes[0])).toEqual([false, true, true]);
  });
});

describe("what a tenant made of a corpus", () => {
  const over = { tenantId: "tenant_b" as const, plan: plan([1, 2, 3], [span]) };

  test("workers are told whose of it goes; who has computed nothing has nothing to forget", () => {
    const { dispatcher, processes } = readyRig(2);
    dispatcher.evictions.evictDerived(span.rootKey, "tenant_b");
    expect(processes.flatMap((process) => sent(process, "evict"))).toEqual([]);
    dispatcher.submit(request("a"));
    dispatcher.submit(request("b", over));
    dispatcher.evictions.evictDerived(span.rootKey, "tenant_b");
    // The first tenant has the first number, the corpus's owner the second.
    const told = [{ type: "evict", blockKeys: [span.rootKey], owner: 3 }];
    for (const process of processes) expect(sent(process, "evict")).toEqual(told as never);
  });

  test("its requests over the corpus that read it before keep nothing; others', and its other ones, do", () => {
    const { dispatcher, processes } = readyRig();
    const readAtMs = performance.now();
    dispatcher.submit(request("first", over));
    dispatcher.evictions.evictDerived(span.rootKey, "tenant_b");
    dispatcher.submit(request("late", { ...over, readAtMs }));
    dispatcher.submit(
      request("quotes", {
        tenantId: "tenant_b",
        plan: { runs: plan([1]).runs.map((run) => ({ ...run, quotes: [span.rootKey] })) },
        readAtMs,
      }),
    );
    dispatcher.submit(request("of its own", { tenantId: "tenant_b", plan: plan([1, 2, 3]), readAtMs }));
    dispatcher.submit(request("of another", { ...over, tenantId: "tenant_a", readAtMs }));
    dispatcher.submit(request("fresh", over));
    expect(reuses(processes[0])).toEqual([true, false, false, true, true, true]);
  });

  test("a tenant that may have had another number before loses all that is its own", () => {
    const owners = new KvOwners(() => undefined, 1);
    const numbered = (): number | undefined => owners.numberOf("tenant_b");
    expect(numbered()).toBeUndefined();
    owners.ofPlan(["tenant_b"], 1);
    expect(numbered()).toBe(1);
    owners.ofPlan(["tenant_c"], 1);
    owners.ofPlan(["tenant_b"], 1);
    expect(numbered()).toBeUndefined();
  });
});

describe("more than is remembered", () => {
  const corpora = new Map(
    ["mine", "theirs"].map((name) => [spanRun(name, 4, btoa(name) as CacheSalt).rootKey, `tenant_${name}` as const]),
  );
  const [mine, theirs] = [...corpora.keys()] as [BlockKey, BlockKey];
  const of = (name: string, corpus: string): PlanRun => spanRun(name, 4, btoa(corpus) as CacheSalt);
  const keysOf = (corpus: string, count: number): BlockKey[] =>
    Array.from({ length: count }, (_, n) => of(`${n} ${corpus}`, corpus).blockKeys.at(-1) as BlockKey);
  const opened = (): Evictions => {
    const { registry, residency, supervisor } = readyRig();
    const pendingBlocks = new PendingBlocks((root) => corpora.get(root));
    const owners = new KvOwners();
    return new Evictions({ registry, residency, pendingBlocks, supervisor, owners, maxRemembered: 64 });
  };

  test("stands for all that is its owner's, and for nobody else's: others' prompts are kept", () => {
    const evictions = opened();
    const over = (name: string, corpus: string) => request("r", { plan: plan([1], [of(name, corpus)]) });
    const before = performance.now();
    evictions.evict(keysOf("theirs", 4), theirs);
    evictions.evict(keysOf("mine", 32), mine);
    expect(evictions.concern(over("another", "mine"), before)).toBe(false);
    for (let round = 0; round < 8; round++) evictions.evict(keysOf("mine", 128).slice(round), mine);
    expect(evictions.concern(over("another", "mine"), before)).toBe(true);
    expect(evictions.concern(over("another", "mine"), performance.now() + 1)).toBe(false);
    expect(evictions.concern(over("another", "theirs"), before)).toBe(false);
    expect(evictions.concern(over("2 theirs", "theirs"), before)).toBe(true);
    expect(evictions.concern(request("r"), before)).toBe(false);
  });
});
