/** A short prompt of a tenant with one request, beside a tenant with many. */
import { describe, expect, test } from "bun:test";
import type { Batch } from "../../worker/backend/backend.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const [busy, light] = [1, 2];

function rowCounts(batch: Batch): number[] {
  return Array.from(batch.pieceRows.subarray(1), (end, i) => end - batch.pieceRows[i]);
}

class SharedWorld extends TinyWorld {
  readonly steps: number[][];

  constructor(prefillTokensBesideDecodes = 16) {
    const steps: number[][] = [];
    super({
      shape: { blockCount: 256 },
      limits: { maxRunningRequests: 32, maxWaitingRequests: 64, stepTokens: 64, prefillTokensBesideDecodes },
      onForward: (batch) => void steps.push(rowCounts(batch)),
    });
    this.steps = steps;
  }

  ask(owner: number, name: string, tokens: number, maxTokens = 12): void {
    const parts = { question: countUp(name.charCodeAt(0), tokens), salt: `owner-${owner}` as CacheSalt };
    const message = submitPlan(name, parts, { params: { maxTokens, ignoreEos: true } });
    this.engine.submit({ ...message, owners: { owners: [{ number: owner }], ofRun: Uint16Array.of(0) } });
  }

  /** Four requests that are answered. */
  async occupied(): Promise<void> {
    for (const name of ["a", "b", "c", "d"]) this.ask(busy, name, 4, 40);
    for (let step = 0; step < 3; step++) await this.step();
    this.steps.length = 0;
  }

  async step1(): Promise<number[] | undefined> {
    await this.step();
    return this.steps.at(-1);
  }
}

describe("a tenant with one request beside one with many", () => {
  test("has its prompt in a step of its own, and then takes its turns with the others", async () => {
    const world = new SharedWorld();
    await world.occupied();
    world.ask(light, "x", 9);
    expect(await world.step1()).toEqual([9]);
    expect(world.tokensOf("x")).toHaveLength(1);
    expect(await world.step1()).toEqual([1, 1, 1, 1, 1]);
    await world.settle();
    for (const [owner, name, tokens, maxTokens] of [
      [light, "x", 9, 12],
      [busy, "a", 4, 40],
    ] as const) {
      const parts = { question: countUp(name.charCodeAt(0), tokens), salt: `owner-${owner}` as CacheSalt };
      const message = submitPlan(name, parts, { params: { maxTokens, ignoreEos: true } });
      const expected = referenceAnswer(message, world.backend.shape, eosTokenIds);
      expect(world.tokensOf(name)).toEqual(expected.tokenIds);
    }
  });

  test("takes every other step at most, however many such tenants there are", async () => {
    const world = new SharedWorld();
    await world.occupied();
    for (let owner = 10; owner < 14; owner++) {
      world.ask(owner, String.fromCharCode(70 + owner), 5);
      await world.step();
    }
    const withBusy = world.steps.map((rows) => rows.filter((count) => count === 1).length >= 4);
    expect(withBusy).toEqual([false, true, false, true]);
  });

  test("with a long prompt is one of all", async () => {
    const world = new SharedWorld();
    await world.occupied();
    world.ask(light, "x", 17);
    expect(await world.step1()).toEqual([1, 1, 1, 1, 16]);
  });

  test("may have some more, as long as they are fewer than four", async () => {
    const world = new SharedWorld();
    await world.occupied();
    for (const name of ["x", "y", "z"]) world.ask(light, name, 5);
    expect(await world.step1()).toEqual([5, 5, 5]);
    const many = new SharedWorld();
    await many.occupied();
    for (const name of ["w", "x", "y", "z"]) many.ask(light, name, 3);
    expect(await many.step1()).toEqual([1, 1, 1, 1, 3, 3, 2]);
  });

  test("beside fewer than four of another's is one of all", async () => {
    const quiet = new SharedWorld();
    for (const name of ["a", "b", "c"]) quiet.ask(busy, name, 4, 40);
    await quiet.step();
    quiet.ask(light, "x", 5);
    expect(await quiet.step1()).toEqual([1, 1, 1, 5]);
  });

  test("leaves it fewer prompt rows in a step, for a minute", async () => {
    const world = new SharedWorld();
    const flood = async (from: number): Promise<number> => {
      for (let i = 0; i < 6; i++) world.ask(busy, String.fromCharCode(from + i), 15, 1);
      const [first = []] = [await world.step1()];
      await world.settle();
      return first.reduce((sum, rows) => sum + rows, 0);
    };
    expect(await flood(65)).toBe(64);
    world.ask(light, "z", 5, 1);
    await world.settle();
    expect(await flood(75)).toBe(8);
    world.nowMs += 60_000;
    expect(await flood(85)).toBe(64);
  });
});
