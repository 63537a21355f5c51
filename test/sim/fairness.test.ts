/** What one tenant's load may cost another, in virtual time: deterministic, one seed each. */
import { describe, expect, test } from "bun:test";
import { effort } from "../support/effort.ts";
import type { PoolAnswer, PoolRequest } from "./pool-types.ts";
import { drawRequests } from "./pool-workloads.ts";
import { PoolWorld, stepMs, stepTokens } from "./pool-world.ts";

/** As many as the simulated workers run. */
const maxRunningPerWorker = 32;
const [heavy, light] = [0, 1];
/** A request a second of the light tenant. */
const seconds = effort(25, 40);
/** Of the simulated workers, with all the rows it may have. */
const fullStepMs = stepMs(stepTokens);

interface Load {
  readonly tenant: number;
  readonly perSecond: number;
  readonly seconds: number;
  readonly answerTokens?: number;
  readonly fragmentCount?: number;
}

function requestsOf({ tenant, perSecond, seconds, answerTokens = 64, fragmentCount = 12 }: Load): PoolRequest[] {
  const drawn = drawRequests({
    seed: 7 + tenant,
    requestCount: perSecond * seconds,
    corpusCount: 1,
    fragmentCount,
    fragmentsPerRequest: 3,
    zipf: 0.8,
    meanGapMs: 1_000 / perSecond,
    answerTokens,
  });
  return drawn.map((request) => ({ ...request, tenant, corpus: tenant }));
}

async function life(loads: readonly Load[], options: { blockCount?: number; maxRunningPerWorker?: number } = {}) {
  const world = new PoolWorld({
    workerCount: 1,
    fragmentTokens: 64,
    blockCount: 4_000,
    maxRunningPerWorker,
    ...options,
  });
  const requests = loads.flatMap(requestsOf).sort((a, b) => a.atMs - b.atMs);
  await world.run(requests);
  return { world, requests };
}

const of = (answers: readonly PoolAnswer[], tenant: number) => answers.filter((answer) => answer.tenant === tenant);

function percentile(values: readonly number[], part: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? Number.NaN;
}
const ttftOf = (answers: readonly PoolAnswer[]) => answers.map(({ ttftMs }) => ttftMs);
const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);
const hitShare = (answers: readonly PoolAnswer[]) =>
  sum(answers.map(({ cachedTokens }) => cachedTokens)) / sum(answers.map(({ promptTokens }) => promptTokens));

describe("a tenant with a request a second beside one with a hundred times as many", () => {
  const quiet: Load = { tenant: light, perSecond: 1, seconds };
  const noisy: Load = { tenant: heavy, perSecond: 100, seconds };

  test("waits at most twice as long for its first token, finds its blocks, and is never refused", async () => {
    const blockCount = 40_000;
    const alone = of((await life([quiet], { blockCount })).world.answers, light);
    const { world, requests } = await life([quiet, noisy], { blockCount });
    const beside = of(world.answers, light);
    expect([alone.length, beside.length]).toEqual([seconds, seconds]);
    expect(percentile(ttftOf(beside), 0.99)).toBeLessThan(2 * percentile(ttftOf(alone), 0.99));
    expect(hitShare(beside)).toBeGreaterThan(hitShare(alone) - 0.05);
    // The load is one that does not fit: the other tenant's own requests wait, and it works through all of them.
    expect(percentile(ttftOf(of(world.answers, heavy)), 0.5)).toBeGreaterThan(1_000);
    expect(world.answers.length + world.refusals.length).toBe(requests.length);
  }, 60_000);
});

describe("a tenant with a corpus beside one with ever new text, in a pool that this fills again and again", () => {
  const blockCount = 1_500;
  const quiet: Load = { tenant: light, perSecond: 1, seconds };
  const flood: Load = { tenant: heavy, perSecond: 30, seconds, fragmentCount: 1_000_000, answerTokens: 16 };

  test("finds its blocks as it does alone", async () => {
    const alone = of((await life([quiet], { blockCount })).world.answers, light);
    const { world } = await life([quiet, flood], { blockCount });
    const beside = of(world.answers, light);
    expect(beside).toHaveLength(seconds);
    expect(hitShare(beside)).toBeGreaterThan(hitShare(alone) - 0.05);
    // What it stands beside: text that is computed once and pushes out what was computed before, many times the pool.
    expect(hitShare(of(world.answers, heavy))).toBeLessThan(0.05);
    const evicted = world.engines().map(([, engine]) => engine.stats().evictedBlocks);
    expect(sum(evicted)).toBeGreaterThan(5 * blockCount);
  }, 60_000);
});

test("a light tenant waits for a few steps, not for all the questions that a worker has of a heavy one", async () => {
  const blockCount = 40_000;
  const quiet: Load = { tenant: light, perSecond: 10, seconds: 6 };
  // Found text and short answers: what there is to compute are questions, more than the worker can.
  const flood: Load = { tenant: heavy, perSecond: 1_500, seconds: 6, answerTokens: 2 };
  const { world } = await life([quiet, flood], { blockCount });
  expect(percentile(ttftOf(of(world.answers, light)), 0.5)).toBeLessThan(3 * fullStepMs);
  expect(percentile(ttftOf(of(world.answers, heavy)), 0.5)).toBeGreaterThan(20 * fullStepMs);
}, 60_000);

describe("one tenant alone", () => {
  test("loses nothing by the window: its requests take as long as if a worker had them all", async () => {
    const load: Load = { tenant: heavy, perSecond: 100, seconds: 6 };
    const [windowed, open] = [await life([load]), await life([load], { maxRunningPerWorker: 1_000 })];
    expect(windowed.world.answers).toHaveLength(600);
    expect(windowed.world.nowMs).toBeLessThan(1.02 * open.world.nowMs);
    const mean = (answers: readonly PoolAnswer[]) => sum(ttftOf(answers)) / answers.length;
    expect(mean(windowed.world.answers)).toBeLessThan(1.05 * mean(open.world.answers));
  }, 60_000);
});

test("two tenants that both want everything get the same tokens, whatever their requests look like", async () => {
  const world = new PoolWorld({ workerCount: 1, fragmentTokens: 64, blockCount: 40_000, maxRunningPerWorker });
  const short = requestsOf({ tenant: heavy, perSecond: 1_000, seconds: 2, answerTokens: 16 });
  const long = requestsOf({ tenant: light, perSecond: 250, seconds: 2, answerTokens: 96 });
  await world.run([...short, ...long].sort((a, b) => a.atMs - b.atMs));
  // While both have something that waits: until the first of them is through.
  const counts = [short.length, long.length].map((count) => count * 0.9);
  const tokens = [0, 0];
  const ended = [0, 0];
  for (const { tenant, completionTokens, promptTokens, cachedTokens } of world.answers) {
    tokens[tenant] = (tokens[tenant] ?? 0) + completionTokens + promptTokens - cachedTokens;
    ended[tenant] = (ended[tenant] ?? 0) + 1;
    if (counts.some((count, index) => (ended[index] ?? 0) > count)) break;
  }
  const [first = 0, second = 0] = tokens;
  expect(first / (first + second)).toBeWithin(0.45, 0.55);
}, 60_000);
