/**
 * Deterministic simulation of KV in files: crashes at every step, a disk that fails in every way, deletions at any time.
 * A failure names its own seed; `SIM_SEED=n` replays it.
 */
import { afterAll, beforeAll, expect, jest, mock, setDefaultTimeout, test } from "bun:test";
import * as crypto from "node:crypto";
import { openDb } from "../../db/open.ts";
import { KvScopes } from "../../gateway/kv/scopes.ts";
import { effort } from "../support/effort.ts";
import { readText } from "../support/import-graph.ts";
import { testSeed } from "../support/seed.ts";
import { Choices } from "./random.ts";
import { tiersMutants } from "./tiers-mutant-list.ts";
import { type TiersCounts, TiersWorld } from "./tiers-world.ts";

setDefaultTimeout(3_600_000);

const only = process.env.SIM_SEED;
/** `SIM_COUNT=n` lives n lives. */
const seedCount = Number(process.env.SIM_COUNT ?? effort(110, 10_000));
const firstSeed = only === undefined ? testSeed() : Number(only);
const endSeed = only === undefined ? firstSeed + seedCount : firstSeed + 1;
/** Things that happen in a life before it is brought to its end. */
const actionCount = 250;

const original = { ...crypto };
/** Ids and keys come from the seed too. */
let random = new Choices(0);
const drawnBytes = (size: number): Buffer => Buffer.from(Array.from({ length: size }, () => random.int(0, 255)));

beforeAll(() => mock.module("node:crypto", () => ({ ...original, randomBytes: drawnBytes })));
afterAll(() => mock.module("node:crypto", () => original));

test("lives of servers with KV in files", async () => {
  const db = openDb(":memory:");
  const scopes = new KvScopes(new Uint8Array(32).fill(7));
  const total = new Map<string, number>();
  for (let seed = firstSeed; seed < endSeed; seed++) {
    random = new Choices(seed ^ 0x5eed);
    // The clock begins anew, so that each seed has the same life wherever it is in line.
    jest.useFakeTimers({ now: 1_800_000_000_000 });
    try {
      const counts = await new TiersWorld(seed, db, scopes).run(actionCount);
      for (const [name, count] of Object.entries(counts)) total.set(name, (total.get(name) ?? 0) + count);
    } catch (error) {
      const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
      throw new Error(`SIM_SEED=${seed} bun test test/sim/tiers.test.ts replays this: ${text}`);
    } finally {
      jest.clearAllTimers();
      jest.useRealTimers();
    }
  }
  db.close();
  process.stdout.write(`${JSON.stringify(Object.fromEntries(total))}\n`);
  if (only !== undefined) return;
  const of = (name: keyof TiersCounts): number => total.get(name) ?? 0;
  for (const name of ["answers", "kept", "loaded", "keepFailed", "gone", "powerCuts", "checkedFiles"] as const) {
    expect([name, of(name) > seedCount / 20]).toEqual([name, true]);
  }
  expect(of("loadFailed")).toBeGreaterThan(0);
  // What is computed sooner than it would be loaded may be computed.
  expect(of("foundTokens")).toBeGreaterThan(0.7 * of("keptTokens"));
});

test("every mutant's place is found once", () => {
  const places = tiersMutants.map(({ name, file, find }) => ({ name, count: readText(file).split(find).length - 1 }));
  expect(places.filter(({ count }) => count !== 1)).toEqual([]);
});
