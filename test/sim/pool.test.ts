/** What the router and the placement of fragments must be worth, in virtual time: deterministic, one seed each. */
import { describe, expect, test } from "bun:test";
import { residentKeys } from "../support/resident-keys.ts";
import { byCorpus, drawRequests, leastLoaded, type PoolWorkload, roundRobin } from "./pool-workloads.ts";
import { type PoolOptions, type PoolReport, PoolWorld } from "./pool-world.ts";

const skewed: PoolWorkload = {
  seed: 2,
  requestCount: 400,
  corpusCount: 1,
  fragmentCount: 200,
  fragmentsPerRequest: 3,
  zipf: 1.1,
  meanGapMs: 6,
};

const fourWorkers: PoolOptions = { workerCount: 4, fragmentTokens: 64, blockCount: 1_200 };

async function life(options: PoolOptions, workload: PoolWorkload): Promise<PoolReport> {
  const world = new PoolWorld(options);
  await world.run(drawRequests(workload));
  const report = world.report();
  expect(report.failures).toBe(0);
  expect(report.ttftMs.length).toBe(workload.requestCount);
  return report;
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;

describe("routing over four workers", () => {
  test("fragments asked about unevenly are found more often than by load alone, and the load stays even", async () => {
    const routed = await life(fourWorkers, skewed);
    for (const policy of [roundRobin, leastLoaded]) {
      const blind = await life({ ...fourWorkers, policy }, skewed);
      expect(routed.computedTokens).toBeLessThan(0.85 * blind.computedTokens);
      expect(mean(routed.ttftMs)).toBeLessThan(mean(blind.ttftMs));
    }
    expect(routed.imbalance).toBeLessThan(1.2);
  });

  test("a corpus that everybody asks about does not stay on one worker", async () => {
    const routed = await life(fourWorkers, skewed);
    const pinned = await life({ ...fourWorkers, policy: byCorpus }, skewed);
    expect(pinned.imbalance).toBe(4);
    expect(mean(routed.ttftMs)).toBeLessThan(mean(pinned.ttftMs) / 4);
    // What that costs in tokens computed again is little.
    expect(routed.computedTokens).toBeLessThan(1.3 * pinned.computedTokens);
  });

  test("a burst over the same fragments computes them about once", async () => {
    const bursts = { ...skewed, corpusCount: 4, zipf: 0.6, meanGapMs: 30, burst: 6 };
    const routed = await life(fourWorkers, bursts);
    const least = await life({ ...fourWorkers, policy: byCorpus }, bursts);
    const blind = await life({ ...fourWorkers, policy: leastLoaded }, bursts);
    expect(routed.computedTokens).toBeLessThan(1.1 * least.computedTokens);
    expect(blind.computedTokens).toBeGreaterThan(1.4 * least.computedTokens);
    expect(mean(routed.ttftMs)).toBeLessThan(1.05 * mean(least.ttftMs));
  });

  test("the same life twice", async () => {
    expect(await life(fourWorkers, skewed)).toEqual(await life(fourWorkers, skewed));
  });
});

describe("preparing over several workers", () => {
  interface Prepared {
    /** After preparing. */
    readonly computedTokens: number;
    readonly meanTtftMs: number;
  }

  async function prepared(
    options: Pick<PoolOptions, "workerCount" | "blockCount">,
    corpora: Pick<PoolWorkload, "corpusCount" | "fragmentCount">,
    homes: "placed" | "one" | "all",
  ): Promise<Prepared> {
    const world = new PoolWorld({ ...options, fragmentTokens: 64 });
    const fragments = Array.from({ length: corpora.fragmentCount }, (_, index) => index);
    for (let corpus = 0; corpus < corpora.corpusCount; corpus++) await world.prepare(corpus, fragments, homes);
    const before = world.report().computedTokens;
    const load = { seed: 9, requestCount: 300, fragmentsPerRequest: 3, zipf: 0.8, meanGapMs: 24 / options.workerCount };
    const requests = drawRequests({ ...corpora, ...load });
    await world.run(requests.map((request) => ({ ...request, atMs: request.atMs + world.nowMs })));
    const { computedTokens, ttftMs } = world.report();
    return { computedTokens: computedTokens - before, meanTtftMs: mean(ttftMs) };
  }

  // A question's own tokens and its answer's are computed in any case.
  const questionTokens = 300 * (12 + 7);

  test("where there is room, every worker holds all and no fragment is computed again", async () => {
    const options = { workerCount: 4, blockCount: 8_000 };
    const corpus = { corpusCount: 1, fragmentCount: 100 };
    const placed = await prepared(options, corpus, "placed");
    expect(placed.computedTokens).toBe(questionTokens);
    expect(placed.meanTtftMs).toBeLessThan((await prepared(options, corpus, "one")).meanTtftMs);
  });

  test("corpora that fit on no worker together are at home on one each, and found there", async () => {
    const options = { workerCount: 4, blockCount: 1_200 };
    const corpora = { corpusCount: 4, fragmentCount: 75 };
    expect((await prepared(options, corpora, "placed")).computedTokens).toBe(questionTokens);
    expect((await prepared(options, corpora, "all")).computedTokens).toBeGreaterThan(2 * questionTokens);
  });

  test("a corpus larger than a pool is spread over several", async () => {
    const options = { workerCount: 4, blockCount: 1_200 };
    const corpus = { corpusCount: 1, fragmentCount: 300 };
    const placed = await prepared(options, corpus, "placed");
    for (const homes of ["one", "all"] as const) {
      const other = await prepared(options, corpus, homes);
      expect(placed.computedTokens).toBeLessThan(0.8 * other.computedTokens);
      expect(placed.meanTtftMs).toBeLessThan(0.8 * other.meanTtftMs);
    }
  });
});

test("accounts of tenants and corpora are exact at any time: what each engine holds, by whose chain it is", async () => {
  const world = new PoolWorld({ workerCount: 2, fragmentTokens: 64, blockCount: 300 });
  const load = { ...skewed, corpusCount: 3, fragmentCount: 40, requestCount: 60 };
  let [evictedBlocks, nobodys] = [0, 0];
  for (let round = 0; round < 5; round++) {
    const requests = drawRequests({ ...load, seed: 100 + round });
    await world.run(requests.map((request) => ({ ...request, atMs: request.atMs + world.nowMs })));
    for (const [workerId, engine] of world.engines()) {
      const keys = residentKeys(engine);
      const accounts = [...world.residency.byTenant(workerId)];
      expect(accounts.reduce((sum, [, { blockCount }]) => sum + blockCount, 0)).toBe(keys.length);
      for (const [tenantId, held] of accounts) {
        const corpus = Number(tenantId.replace("tenant_", ""));
        const fragmentKeys = new Set(Array.from({ length: 40 }, (_, n) => world.spanRun(corpus, n).blockKeys).flat());
        expect(held.fragmentBlockCount).toBe(keys.filter((key) => fragmentKeys.has(key)).length);
        if (tenantId === "") nobodys += held.blockCount;
      }
      const { usedBlocks, cachedBlocks, evictedBlocks: evicted } = engine.stats();
      expect([usedBlocks, cachedBlocks]).toEqual([0, keys.length]);
      evictedBlocks += evicted;
    }
  }
  expect(nobodys).toBe(0);
  expect(evictedBlocks).toBeGreaterThan(1_000);
});
