import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { limits } from "../../gateway/config.ts";
import type { PreparedSpan, PrepareFacts } from "../../gateway/corpus/base/ports.ts";
import type { TenantMeter } from "../../gateway/generate/token-metering.ts";
import type { NoRoom } from "../../gateway/kv/account.ts";
import { Lowerer } from "../../gateway/lower/plan.ts";
import { SpanService, type SpanServiceDeps } from "../../gateway/prepare/span-service.ts";
import type { KvTier } from "../../worker/contract/tiers.ts";
import type { BlockKey } from "../../worker/contract/units.ts";
import { fakeCard } from "../dispatch/fake-core.ts";
import { fakeLinks } from "../dispatch/fake-link.ts";
import { makeRig, corpusSalt as salt } from "../dispatch/rig.ts";
import { BucketRig } from "../kv/bucket-rig.ts";
import { card, saltA } from "../kv/rig.ts";
import { until } from "../support/until.ts";
import { models, textSide } from "../text/models.ts";

const fragment = (id: string, words: number) => ({ id, text: `${id} ${"the ".repeat(words)}`, salt });

function service(devices = ["cpu", "cpu"], meter?: TenantMeter, kv?: SpanServiceDeps["kv"]) {
  const links = fakeLinks();
  const rig = makeRig(links.openLink, devices);
  rig.supervisor.start(rig.dispatcher);
  const lowerer = new Lowerer({ ...textSide(models.chatml), card: fakeCard, cacheBytes: 100_000 });
  const spans = new SpanService({
    ...rig,
    modelReady: () => rig.supervisor.firstReady(),
    kvQuotaBytesOf: (tenantId) => (tenantId === "tenant_bounded" ? 10 * fakeCard.kvBytesPerBlock : undefined),
    lowererFor: () => lowerer,
    ...(meter === undefined ? {} : { meter }),
    ...(kv === undefined ? {} : { kv }),
  });
  const tick = () => links.processes.forEach((process) => void process.core.tick());
  const timer = setInterval(tick, 0);
  return { ...rig, ...links, spans, lowerer, [Symbol.dispose]: () => clearInterval(timer) };
}

async function prepare(
  spans: SpanService,
  fragments: readonly ReturnType<typeof fragment>[],
  signal = new AbortController().signal,
  facts: PrepareFacts = {},
) {
  const prepared: PreparedSpan[] = [];
  for await (const span of spans.prepareSpans(fragments, signal, facts)) prepared.push(span);
  await Promise.all(prepared.map(({ kept }) => kept));
  return prepared;
}

const blockBytes = fakeCard.kvBytesPerBlock;

/** Files that take what `refusals` does not refuse. */
class FakeFiles implements NonNullable<SpanServiceDeps["kv"]> {
  readonly tiers = ["disk"] as const;
  readonly kept = new Set<BlockKey>();
  readonly touched: BlockKey[] = [];
  refusal: NoRoom | undefined;

  async keep(_workerId: string, { blockKeys }: { blockKeys: readonly BlockKey[] }): Promise<NoRoom | undefined> {
    if (this.refusal === undefined) for (const key of blockKeys) this.kept.add(key);
    return this.refusal;
  }
  trim = async (): Promise<void> => undefined;
  tiersHolding(blockKeys: readonly BlockKey[]): readonly KvTier[] {
    return blockKeys.every((key) => this.kept.has(key)) ? ["disk"] : [];
  }
  readonly account = { touch: (spanKey: BlockKey) => void this.touched.push(spanKey), setPinned: () => undefined };
  usage = () => [
    { tier: "disk" as const, objects: 0, blocks: 0, bytes: 0, pinnedBytes: 0, quotaBytes: 640 * blockBytes },
  ];
  isKept = (spanKey: BlockKey): boolean => this.kept.has(spanKey);
  evict = (): void => undefined;
  evictScopes = (): void => undefined;
  evictTenant = (): void => undefined;
}

describe("what was used", () => {
  test("is kept by a worker that holds it, once; not when nobody does or it was evicted meanwhile", async () => {
    const files = new FakeFiles();
    using rig = service(["cpu"], undefined, files);
    rig.processes[0]?.ready();
    const [a, b] = [fragment("a", 10), fragment("b", 10)];
    const { blockKeys, rootKey } = rig.spans.lowerSpan(a);
    const readAtMs = performance.now();
    expect(await rig.spans.keepUsed(a, readAtMs)).toBeUndefined();
    const device = { goal: { tier: "device", sinceMs: 0, tokensThere: 0 } } as const;
    await prepare(rig.spans, [a, b], undefined, device);
    expect(await rig.spans.keepUsed(a, readAtMs)).toEqual({ spanKey: blockKeys.at(-1) ?? rootKey, worker: 0 });
    expect(files.tiersHolding(blockKeys)).toEqual(["disk"]);
    expect(await rig.spans.keepUsed(a, readAtMs)).toBeUndefined();
    rig.dispatcher.evictions.evict(rig.spans.lowerSpan(b).blockKeys, rootKey);
    // The text is there again; the request had read the one that was deleted.
    await prepare(rig.spans, [b], undefined, device);
    expect(await rig.spans.keepUsed(b, readAtMs)).toBeUndefined();
    expect(files.kept.size).toBe(blockKeys.length);
    expect(await rig.spans.keepUsed(b, performance.now())).toBeDefined();
  });
});

describe("where prepared KV has to be", () => {
  const goal = (tier: KvTier) => ({ goal: { tier, sinceMs: 0, tokensThere: 0 } });

  test("a worker alone: nothing is written; files: what lies there is not computed again", async () => {
    const files = new FakeFiles();
    using rig = service(["cpu"], undefined, files);
    rig.processes[0]?.ready();
    const [a, b] = [fragment("a", 10), fragment("b", 10)];
    await prepare(rig.spans, [a], undefined, goal("device"));
    expect([files.kept.size, rig.processes[0]?.submits.length]).toEqual([0, 1]);
    await prepare(rig.spans, [a], undefined, goal("disk"));
    expect(files.tiersHolding(rig.spans.lowerSpan(a).blockKeys)).toEqual(["disk"]);
    const found = await prepare(rig.spans, [a, b], undefined, goal("disk"));
    expect(found).toMatchObject([
      { id: "a", source: "disk", worker: null },
      { id: "b", source: "computed", worker: 0 },
    ]);
    expect(files.touched).toEqual(rig.spans.lowerSpan(a).blockKeys.slice(-1));
    // Only the span that was not there was given to a worker.
    expect(rig.processes[0]?.submits.at(-1)?.plan.runs.map(({ spanId }) => spanId)).toEqual(["b"]);
  });

  test("a bucket: it waits until the copy is there, and does not compute again what is", async () => {
    using bucket = new BucketRig();
    const { blockTokens } = fakeCard;
    const model = { ...card, blockTokens, kvFormat: { name: "fake", blockTokens, blockBytes } };
    await bucket.open({ model });
    using rig = service(["cpu"], undefined, bucket.kv);
    rig.processes[0]?.ready();
    const span = { ...fragment("a", 10), salt: saltA };
    const gate = Promise.withResolvers<void>();
    bucket.mover.fault = (job) => (job.is === "put" ? gate.promise : undefined);
    let isDone = false;
    const preparing = prepare(rig.spans, [span], undefined, goal("s3")).finally(() => {
      isDone = true;
    });
    await until(() => bucket.mover.jobs.some((job) => job.startsWith("put")), "it is on its way");
    // Time enough for a job that does not wait.
    await Bun.sleep(50);
    expect([isDone, bucket.places]).toEqual([false, ["11"]]);
    gate.resolve();
    expect(await preparing).toMatchObject([{ id: "a", source: "computed", worker: 0 }]);
    expect([bucket.places, bucket.mover.objects.size]).toEqual([["12"], 1]);
    expect(await prepare(rig.spans, [span], undefined, goal("s3"))).toMatchObject([
      { id: "a", source: "s3", worker: null },
    ]);
    expect(rig.processes[0]?.submits.length).toBe(1);
    await bucket.kv.stop();
  });

  test("the host's memory: it waits for the copy, and says what has no room", async () => {
    const files = new FakeFiles();
    using rig = service(["cpu"], undefined, files);
    const [process] = rig.processes;
    expect(rig.spans.tiers).toEqual(["device", "disk"]);
    process?.handlers.onMessage({
      type: "ready",
      card: { ...fakeCard, hostKv: { blockCount: 8, bytesPerBlock: 100 } },
    });
    expect(rig.spans.tiers).toEqual(["device", "host", "disk"]);
    expect(rig.spans.mostPinnedBlocks("tenant_free", "host")).toBe(1);
    const a = fragment("a", 10);
    const { blockKeys, rootKey, tokenIds } = rig.spans.lowerSpan(a);
    let isDone = false;
    const prepared = prepare(rig.spans, [a], undefined, goal("host")).finally(() => (isDone = true));
    await until(() => process?.submits.length === 1, "it is computed");
    await Bun.sleep(30);
    expect([isDone, files.kept.size]).toEqual([false, 0]);
    const previousKeys = [rootKey, ...blockKeys].slice(0, blockKeys.length);
    const copied = { sequence: 1, type: "stored", tier: "host", blockKeys, previousKeys } as const;
    rig.residency.apply("worker-0", [{ ...copied, tokenCounts: blockKeys.map(() => fakeCard.blockTokens) }]);
    expect(await prepared).toMatchObject([{ id: "a", worker: 0 }]);
    expect(rig.spans.residentWorkers(blockKeys.at(-1) ?? rootKey, "host")).toEqual([0]);
    const tokensThere = 8 * fakeCard.blockTokens - tokenIds.length + 1;
    const refused = prepare(rig.spans, [a], undefined, { goal: { tier: "host", sinceMs: 0, tokensThere } });
    const refusal = await refused.catch((error: unknown) => error);
    expect(refusal).toMatchObject({ code: "storage_full", message: expect.stringContaining("SPANGATE_KV_HOST_BYTES") });
  });

  test.each([
    ["full", "storage_full"],
    ["quota", "quota_exceeded"],
  ] as const)("no room (%s) is an error for who wants it there, and none for who does not", async (refusal, code) => {
    const files = new FakeFiles();
    files.refusal = refusal;
    using rig = service(["cpu"], undefined, files);
    rig.processes[0]?.ready();
    expect(await prepare(rig.spans, [fragment("a", 10)])).toHaveLength(1);
    const failed = await prepare(rig.spans, [fragment("a", 10)], undefined, goal("disk")).catch(
      (error: unknown) => error,
    );
    expect(failed).toMatchObject({ code });
  });

  test("as much may be pinned as the tier or the tenant's limit has room for", () => {
    using rig = service(["cpu"], undefined, new FakeFiles());
    rig.processes[0]?.ready();
    const most = (tenantId: TenantId) =>
      (["device", "disk"] as const).map((tier) => rig.spans.mostPinnedBlocks(tenantId, tier));
    expect(rig.spans.tiers).toEqual(["device", "disk"]);
    expect(most("tenant_free")).toEqual([fakeCard.blockCount / 8, 80]);
    expect(most("tenant_bounded")).toEqual([10, 10]);
  });
});

describe("preparing", () => {
  test("for a tenant waits while it has no tokens, and counts what was computed", async () => {
    let open = false;
    const spent: (readonly [string, number])[] = [];
    using rig = service(["cpu"], {
      requireTokens: () => {
        if (!open) throw new ApiError("rate_limited", { retryAfterS: 7 });
      },
      spend: (tenantId, tokens) => void spent.push([tenantId, tokens]),
    });
    for (const process of rig.processes) process.ready();
    const run = async (facts: PrepareFacts): Promise<void> => {
      const signal = new AbortController().signal;
      for await (const _ of rig.spans.prepareSpans([fragment("a", 10)], signal, facts));
    };
    await expect(run({ tenantId: "tenant_t" })).rejects.toMatchObject({ code: "rate_limited", retryAfterS: 7 });
    expect(rig.processes[0]?.submits).toEqual([]);
    await run({ tenantId: "tenant_t", mayWait: false });
    open = true;
    await run({ tenantId: "tenant_t" });
    await run({});
    expect(spent.map(([tenantId]) => tenantId)).toEqual(["tenant_t", "tenant_t"]);
    for (const [, tokens] of spent) expect(tokens).toBeGreaterThan(10);
  });

  test("waits for a model, works in groups, and puts fragments on every worker that has room", async () => {
    using rig = service();
    const fragments = Array.from({ length: limits.prepareSpans + 3 }, (_, index) => fragment(`f${index}`, 10));
    const running = prepare(rig.spans, fragments);
    expect(() => rig.spans.lowerSpan(fragment("x", 1))).toThrow("No worker is ready");
    for (const process of rig.processes) process.ready();
    const prepared = await running;
    expect(prepared.map((span) => span.id)).toEqual(fragments.map((one) => one.id));
    for (const process of rig.processes) {
      const { submits } = process;
      expect(submits.map((submit) => submit.plan.runs.length)).toEqual([limits.prepareSpans, 3]);
      expect(submits.every((submit) => submit.params.maxTokens === 0)).toBe(true);
    }
  });

  test("a group ends where its tokens would be too many, and one fragment alone may be as long as it is", async () => {
    using rig = service(["cpu"]);
    for (const process of rig.processes) process.ready();
    // This tokenizer makes three tokens of each word; some stay free for the template's own.
    const half = Math.floor((limits.prepareTokens / 2 - 100) / 3);
    await prepare(rig.spans, [fragment("a", half), fragment("b", half), fragment("c", half), fragment("d", 3 * half)]);
    const submits = rig.processes[0]?.submits ?? [];
    expect(submits.map((submit) => submit.plan.runs.length)).toEqual([2, 1, 1]);
  });

  test("a corpus has one home when pools fill up, goes on where room is, and what is used much goes to all", async () => {
    using rig = service();
    for (const process of rig.processes) process.ready();
    // This tokenizer makes three tokens of each word.
    const wordsOf = (blockCount: number) => Math.floor((blockCount * fakeCard.blockTokens - 100) / 3);
    const quarter = fakeCard.blockCount / 4;
    const prepareOne = async (one: ReturnType<typeof fragment>): Promise<readonly number[]> => {
      const [prepared] = await prepare(rig.spans, [one]);
      const { blockKeys, rootKey } = rig.spans.lowerSpan(one);
      const held = rig.spans.residentWorkers(blockKeys.at(-1) ?? rootKey);
      expect(held).toContain(prepared?.worker ?? -1);
      return held;
    };
    expect(await prepareOne(fragment("copied", wordsOf(quarter)))).toEqual([0, 1]);
    const [home = -1, ...more] = await prepareOne(fragment("at home", wordsOf(quarter)));
    expect(more).toEqual([]);
    const cold = fragment("at home as well", wordsOf(quarter));
    expect(await prepareOne(cold)).toEqual([home]);
    expect(await prepareOne(fragment("outgrown", wordsOf(quarter)))).toEqual([1 - home]);
    for (let use = 0; use < 20; use++) rig.uses.note(rig.lowerer.preparePlan([cold]));
    expect(await prepareOne(cold)).toEqual([0, 1]);
  });

  test("what is resident is known by its span key, until it is evicted", async () => {
    using rig = service();
    for (const process of rig.processes) process.ready();
    const [span] = await prepare(rig.spans, [fragment("a", 10)]);
    const { blockKeys, rootKey } = rig.spans.lowerSpan(fragment("a", 10));
    const spanKey = blockKeys.at(-1) ?? rootKey;
    expect(rig.spans.residentWorkers(spanKey)).toEqual([0, 1]);
    expect(rig.spans.residentWorkers(spanKey)).toContain(span?.worker ?? -1);
    rig.spans.evict(blockKeys, fragment("a", 10).salt);
    expect(rig.spans.residentWorkers(spanKey)).toEqual([]);
  });

  test("a model that cannot be loaded is no fault of the job, which may be tried again", async () => {
    using rig = service();
    const running = prepare(rig.spans, [fragment("a", 10)]);
    const fatal = { type: "fatal", message: "config.json: no such file" } as const;
    for (const process of rig.processes) process.handlers.onMessage(fatal);
    await expect(running).rejects.toMatchObject({ code: "not_ready" });
  });

  test("a job cancelled while no model is known does not wait for one", async () => {
    using rig = service();
    const controller = new AbortController();
    const running = prepare(rig.spans, [fragment("a", 10)], controller.signal);
    controller.abort();
    expect(await running).toEqual([]);
  });

  test("a cancelled job leaves nothing running", async () => {
    using rig = service();
    for (const process of rig.processes) process.ready();
    const controller = new AbortController();
    controller.abort();
    await prepare(rig.spans, [fragment("a", 10)], controller.signal);
    expect(rig.dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
  });
});
