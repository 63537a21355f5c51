/** Why KV was not found, as a request that asks for it is told: each reason once, from what worker and gateway know. */

import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../../db/ids.ts";
import { KvHistory } from "../../../gateway/dispatch/kv/history.ts";
import { type LookUp, missReports } from "../../../gateway/dispatch/kv/miss-reasons.ts";
import type { MissReport } from "../../../gateway/dispatch/request/miss-report.ts";
import { Placement } from "../../../gateway/dispatch/request/placement.ts";
import type { DispatchRequest } from "../../../gateway/dispatch/request/request.ts";
import { foldSpan, rootKey, runBlockKeys } from "../../../worker/contract/block-key.ts";
import type { PlanRun } from "../../../worker/contract/messages.ts";
import type { BlockKey, CacheSalt } from "../../../worker/contract/units.ts";
import { fakeCard } from "../fake-core.ts";
import { greedy, plan, readyRig, request, salt, spanRun } from "../rig.ts";

const otherSalt = "b3RoZXI=" as CacheSalt;
const prompt = Array.from({ length: 40 }, (_, index) => index);

function started(workerCount = 1) {
  const rig = readyRig(workerCount);
  let requests = 0;
  /** Runs a request to its end. */
  const ask = async (changes: Partial<DispatchRequest>): Promise<readonly MissReport[] | undefined> => {
    requests += 1;
    const events = rig.dispatcher.submit(request(`r${requests}`, { params: greedy(1), diagnose: true, ...changes }));
    for (const process of rig.processes) process.core.tick();
    for await (const event of events) if (event.type === "finished") return event.misses;
    return undefined;
  };
  return { ...rig, ask };
}

const reasonsOf = (misses: readonly MissReport[] | undefined) => misses?.map(({ id, reason }) => [id, reason]);

describe("why a span was not found", () => {
  const span = spanRun("s", 40);
  const withSpan = { plan: plan([1, 2, 3], [span]) };

  test("never computed, then found; the end of a prompt is below a block", async () => {
    const { ask } = started();
    expect(await ask(withSpan)).toEqual([
      { id: "s", tokens: 40, cachedTokens: 0, reason: "never_computed" },
      { id: undefined, tokens: 3, cachedTokens: 0, reason: "below_block" },
    ]);
    expect(await ask(withSpan)).toEqual([
      { id: "s", tokens: 40, cachedTokens: 40, reason: undefined },
      { id: undefined, tokens: 3, cachedTokens: 0, reason: "below_block" },
    ]);
  });

  test("who does not ask is told nothing, and its worker is not asked", async () => {
    const { ask, processes } = started();
    expect(await ask({ ...withSpan, diagnose: false })).toBeUndefined();
    const submits = processes[0]?.submits;
    expect(submits).toHaveLength(1);
    expect(submits?.[0]).not.toHaveProperty("tellFound");
  });

  test("evicted for want of memory, and computed again since", async () => {
    const { ask, processes } = started();
    await ask(withSpan);
    processes[0]?.core.receive({ type: "evict", blockKeys: span.blockKeys });
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", "evicted"]);
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", undefined]);
  });

  test("removed by a deletion or a purge; what was never there is not removed", async () => {
    const { ask, dispatcher, processes } = started();
    dispatcher.evictions.evict(span.blockKeys, span.rootKey);
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", "never_computed"]);
    dispatcher.evictions.evict(span.blockKeys, span.rootKey);
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", "removed"]);
    dispatcher.evictions.evictTenant("tenant_a", "text");
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", "removed"]);
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", undefined]);
    // It was there again, so what it was removed for once is not why it is gone.
    processes[0]?.core.receive({ type: "evict", blockKeys: span.blockKeys });
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", "evicted"]);
  });

  test("its worker has ended", async () => {
    const { ask, processes } = started();
    await ask(withSpan);
    processes[0]?.die();
    while (processes.length < 2) await Bun.sleep(1);
    processes[1]?.ready();
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", "worker_lost"]);
  });

  test("another worker has it", async () => {
    const { ask } = started(2);
    await ask({ ...withSpan, placement: new Placement("worker-0") });
    const elsewhere = await ask({ ...withSpan, placement: new Placement("worker-1") });
    expect(reasonsOf(elsewhere)?.[0]).toEqual(["s", "other_worker"]);
  });

  test("the salt is another one, for the tenant's own text alone", async () => {
    const { ask } = started();
    await ask(withSpan);
    const salted = { plan: plan([1, 2, 3], [spanRun("s", 40, otherSalt)]) };
    expect(reasonsOf(await ask({ ...salted, tenantId: "tenant_b" }))?.[0]).toEqual(["s", "never_computed"]);
    const again = { plan: plan([1, 2, 3], [spanRun("s", 40, "bW9yZQ==" as CacheSalt)]) };
    expect(reasonsOf(await ask(again))?.[0]).toEqual(["s", "salt_changed"]);
    expect(reasonsOf(await ask(withSpan))?.[0]).toEqual(["s", undefined]);
  });

  test("no reuse was asked for, or its text was removed while it waited", async () => {
    const { ask, dispatcher } = started();
    await ask(withSpan);
    expect(reasonsOf(await ask({ ...withSpan, reuse: false }))).toEqual([
      ["s", "reuse_off"],
      [undefined, "reuse_off"],
    ]);
    const readAtMs = performance.now();
    dispatcher.evictions.evict(span.blockKeys, span.rootKey);
    expect(reasonsOf(await ask({ ...withSpan, readAtMs }))?.[0]).toEqual(["s", "reuse_off"]);
  });
});

describe("why a prompt's own text was not found", () => {
  /** Two spans before the same text. */
  const mainAfter = (spanKey: BlockKey): PlanRun => {
    const tokenIds = Int32Array.from(prompt);
    const root = foldSpan(rootKey(fakeCard.digest, salt, "main"), spanKey);
    const blockKeys = runBlockKeys(root, tokenIds, fakeCard.blockTokens, false);
    const sees = [{ run: 0, firstToken: 0, tokenCount: 20, offset: 0 }];
    return { kind: "main", tokenIds, position: 20, sees, blockKeys, rootKey: root };
  };
  const asked = (name: string) => {
    const span = spanRun(name, 20);
    return { plan: { runs: [span, mainAfter(span.blockKeys.at(-1) as BlockKey)] } };
  };

  test("other text stands before it", async () => {
    const { ask } = started();
    expect(reasonsOf(await ask(asked("a")))).toEqual([
      ["a", "never_computed"],
      [undefined, "never_computed"],
    ]);
    expect(reasonsOf(await ask(asked("b")))).toEqual([
      ["b", "never_computed"],
      [undefined, "text_before_changed"],
    ]);
  });

  test("the same text elsewhere says nothing of a prompt whose beginning is there", async () => {
    const { ask } = started();
    await ask(asked("a"));
    await ask(asked("b"));
    const span = spanRun("a", 20);
    const main = mainAfter(span.blockKeys.at(-1) as BlockKey);
    const tokenIds = Int32Array.from([...prompt, ...prompt]);
    const blockKeys = runBlockKeys(main.rootKey, tokenIds, fakeCard.blockTokens, false);
    const longer = { plan: { runs: [span, { ...main, tokenIds, blockKeys }] } };
    expect(reasonsOf(await ask(longer))).toEqual([
      ["a", undefined],
      [undefined, "never_computed"],
    ]);
  });

  test("a text that begins as another goes on with what was never computed", async () => {
    const { ask } = started();
    await ask({ plan: plan(prompt) });
    const longer = plan([...prompt.slice(0, 32), ...prompt]);
    expect(reasonsOf(await ask({ plan: longer }))).toEqual([[undefined, "never_computed"]]);
  });
});

test("parts of one span are one report, with the first reason that is not the prompt's end", () => {
  const [first, second] = [spanRun("s", 20), { ...spanRun("t", 10), spanId: "s" }];
  const main = plan([1, 2]).runs;
  const lookUp: LookUp = [undefined, "evicted", "below_block"];
  expect(missReports([first, second, ...main], lookUp, [20, 0, 0])).toEqual([
    { id: "s", tokens: 30, cachedTokens: 20, reason: "evicted" },
    { id: undefined, tokens: 2, cachedTokens: 0, reason: "below_block" },
  ]);
  // It was there as the request was sent.
  expect(missReports([first], [undefined], [16])[0]?.reason).toBe("evicted");
  expect(missReports([...main, ...main], ["below_block", "never_computed"], [0, 0])[0]?.reason).toBe("never_computed");
});

/** Tokens whose first 16 had one name in 53 bits of 32-bit hashes, as one tenant's text and as another's. */
const ofVictim = Int32Array.from({ length: 20 }, (_, index) => index + 1);
const forged = Int32Array.of(...new Array<number>(14).fill(7), 381696, 980833612, 1, 2, 3, 4);

function weakName(tenantId: TenantId, tokenIds: Int32Array): number {
  const bytes = new Uint8Array(tokenIds.slice(0, fakeCard.blockTokens).buffer);
  const seed = Bun.hash.crc32(`${tenantId} main`);
  return Bun.hash.murmur32v3(bytes, seed) * 2 ** 21 + ((Bun.hash.cityHash32(bytes) ^ seed) >>> 11);
}

test("tokens that collide with another tenant's in a weak hash tell nothing of what it has asked", async () => {
  expect(weakName("tenant_b", forged)).toBe(weakName("tenant_a", ofVictim));
  const { ask } = started();
  await ask({ tenantId: "tenant_a", plan: plan([...ofVictim]) });
  const reasons = await ask({ tenantId: "tenant_b", plan: plan([...forged]) });
  expect(reasonsOf(reasons)).toEqual([[undefined, "never_computed"]]);
  const root = rootKey(fakeCard.digest, otherSalt, "main");
  const blockKeys = runBlockKeys(root, ofVictim, fakeCard.blockTokens, false);
  const runs = plan([...ofVictim]).runs.map((run) => ({ ...run, rootKey: root, blockKeys }));
  const same = await ask({ tenantId: "tenant_a", plan: { runs } });
  expect(reasonsOf(same)).toEqual([[undefined, "salt_changed"]]);
});

test("a text is known to the tenant that sent it alone, however many another sends", () => {
  const history = new KvHistory({ maxGone: 1, maxTexts: 64 });
  const mine = spanRun("mine", 16);
  history.noteTexts("tenant_t", [mine], 16);
  for (let n = 0; n < 1_000; n++)
    history.noteTexts("tenant_flood", [{ ...mine, tokenIds: new Int32Array(16).fill(n) }], 16);
  const elsewhere = spanRun("mine", 16, otherSalt);
  expect(history.formerKey("tenant_t", elsewhere, 16)).toBe(mine.blockKeys[0] as BlockKey);
  expect(history.formerKey("tenant_another", elsewhere, 16)).toBeUndefined();
});

test("what went longest ago is forgotten", () => {
  const history = new KvHistory({ maxGone: 2, maxTexts: 1 });
  const keys = spanRun("s", 48).blockKeys;
  history.lost(keys);
  expect(keys.map((key) => history.goneFor(key))).toEqual([undefined, "worker_lost", "worker_lost"]);
  const other = spanRun("t", 48, otherSalt);
  history.noteTexts("tenant_t", [spanRun("s", 48)], 16);
  history.noteTexts("tenant_t", [spanRun("t", 48)], 16);
  expect(history.formerKey("tenant_t", spanRun("s", 48, otherSalt), 16)).toBeUndefined();
  expect(history.formerKey("tenant_t", other, 16)).toBe(spanRun("t", 48).blockKeys[0] as BlockKey);
});
