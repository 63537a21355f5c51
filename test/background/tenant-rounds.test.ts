/** Work of many tenants in a few lanes: who is served next, who waits, and what a failure or a stop does. */
import { afterEach, describe, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { TenantRounds, type TenantRoundsOptions, type TenantWork } from "../../gateway/background/tenant-rounds.ts";

const id = (name: string): TenantId => `tenant_${name}`;
let rounds: TenantRounds | undefined;
afterEach(() => rounds?.stop());

const yieldToOthers = () => new Promise<void>((resolve) => setImmediate(resolve));

/** Work of so many slices for each tenant, and the order in which they began. */
function world(slices: Record<string, number>, options: Partial<TenantRoundsOptions> = {}) {
  const order: string[] = [];
  const logged: string[] = [];
  let atOnce = 0;
  let most = 0;
  const open = (tenantId: TenantId): TenantWork | undefined => {
    const name = tenantId.slice("tenant_".length);
    if ((slices[name] ?? 0) <= 0) return undefined;
    return {
      readyAtMs: () => 0,
      runSlice: async () => {
        slices[name] = (slices[name] ?? 0) - 1;
        order.push(name);
        atOnce += 1;
        most = Math.max(most, atOnce);
        await yieldToOthers();
        atOnce -= 1;
        return (slices[name] ?? 0) > 0;
      },
    };
  };
  const made = new TenantRounds({
    ...{ name: "work", log: (_level, message) => void logged.push(message) },
    ...{ lanes: 1, maxOpen: 8, open, ...options },
  });
  rounds = made;
  return { rounds: made, order, logged, most: () => most, slices };
}

describe("rounds", () => {
  test("tenants have a slice each, one that comes late as well", async () => {
    const { rounds, order } = world({ a: 5, b: 2, c: 1 });
    rounds.offer(id("a"));
    rounds.offer(id("b"));
    while (order.length < 2) await yieldToOthers();
    rounds.offer(id("c"));
    await rounds.idle();
    expect(order.slice(0, 5).toSorted()).toEqual(["a", "a", "b", "b", "c"]);
    expect(order.slice(5)).toEqual(["a", "a", "a"]);
    expect(rounds.isIdle).toBe(true);
  });

  test("only so many have their work open; the others follow", async () => {
    const { rounds, order } = world({ a: 3, b: 3, c: 1 }, { maxOpen: 2 });
    for (const name of ["a", "b", "c"]) rounds.offer(id(name));
    await rounds.idle();
    expect(order.slice(0, 5)).toEqual(["a", "b", "a", "b", "a"]);
    expect(order.slice(5).toSorted()).toEqual(["b", "c"]);
  });

  test("a tenant has no more slices at a time than it may, however many lanes are free", async () => {
    const alone = world({ a: 6 }, { lanes: 3 });
    alone.rounds.offer(id("a"));
    await alone.rounds.idle();
    expect(alone.most()).toBe(3);
    const bound = world({ a: 6 }, { lanes: 3, slicesPerTenant: 2 });
    bound.rounds.offer(id("a"));
    await bound.rounds.idle();
    expect(bound.most()).toBe(2);
  });

  test("a lane more is for a tenant of which nothing runs", async () => {
    const gates = new Map<string, PromiseWithResolvers<void>>();
    const running: string[] = [];
    const open = (tenantId: TenantId): TenantWork => ({
      readyAtMs: () => 0,
      runSlice: async () => {
        running.push(tenantId);
        const gate = gates.get(tenantId) ?? Promise.withResolvers<void>();
        gates.set(tenantId, gate);
        await gate.promise;
        return false;
      },
    });
    const { rounds } = world({}, { lanes: 2, spareLanes: 1, open });
    rounds.offer(id("a"));
    while (running.length < 2) await yieldToOthers();
    rounds.offer(id("b"));
    rounds.offer(id("c"));
    while (running.length < 3) await yieldToOthers();
    for (let i = 0; i < 5; i++) await yieldToOthers();
    expect(running).toEqual([id("a"), id("a"), id("b")]);
    for (const name of ["b", "c", "a"]) {
      gates.set(id(name), gates.get(id(name)) ?? Promise.withResolvers<void>());
      gates.get(id(name))?.resolve();
    }
    await rounds.idle();
    expect(running).toContain(id("c"));
  });

  test("who waits has no turn until then, and keeps nobody from one", async () => {
    const order: string[] = [];
    let readyMs = Number.POSITIVE_INFINITY;
    let left = 3;
    const open = (tenantId: TenantId): TenantWork => ({
      readyAtMs: () => (tenantId === id("slow") ? readyMs : 0),
      runSlice: () => {
        order.push(tenantId);
        if (tenantId === id("slow")) return Promise.resolve(false);
        left -= 1;
        return Promise.resolve(left > 0);
      },
    });
    const { rounds } = world({}, { open });
    rounds.offer(id("slow"));
    rounds.offer(id("quick"));
    while (left > 0) await yieldToOthers();
    expect(order).toEqual([id("quick"), id("quick"), id("quick")]);
    readyMs = performance.now() + 20;
    rounds.offer(id("slow"));
    await rounds.idle();
    expect(order.at(-1)).toBe(id("slow"));
    expect(performance.now()).toBeGreaterThanOrEqual(readyMs);
  });

  test("what fails is closed and opened anew a little later; others go on meanwhile", async () => {
    let failures = 1;
    let opened = 0;
    let closed = 0;
    const order: string[] = [];
    const open = (tenantId: TenantId): TenantWork => {
      opened += 1;
      return {
        readyAtMs: () => 0,
        runSlice: async () => {
          order.push(tenantId);
          await yieldToOthers();
          if (tenantId === id("a") && failures-- > 0) throw new Error("the text of a tenant");
          return false;
        },
        close: () => {
          closed += 1;
        },
      };
    };
    const { rounds, logged } = world({}, { open });
    rounds.offer(id("a"));
    rounds.offer(id("b"));
    await rounds.idle();
    expect(order).toEqual([id("a"), id("b"), id("a")]);
    expect([opened, closed]).toEqual([3, 3]);
    expect(logged).toEqual(["work is held up and will be tried again"]);
  });

  test("what comes while the last slice runs is looked for again", async () => {
    const { rounds, order, slices } = world({ a: 1 });
    rounds.offer(id("a"));
    while (order.length === 0) await yieldToOthers();
    rounds.offer(id("a"));
    // Not known when the slice said that nothing was left.
    slices.a = 0;
    await Promise.resolve();
    const idle = rounds.idle();
    slices.a = 1;
    await idle;
    expect(order).toEqual(["a", "a"]);
    rounds.offer(id("a"));
    await rounds.idle();
    expect(rounds.isIdle).toBe(true);
  });

  test("stops after the slices that run", async () => {
    const { rounds, order } = world({ a: 100, b: 100 }, { lanes: 2 });
    rounds.offer(id("a"));
    rounds.offer(id("b"));
    while (order.length < 4) await yieldToOthers();
    await rounds.stop();
    const count = order.length;
    for (let i = 0; i < 5; i++) await yieldToOthers();
    expect(order).toHaveLength(count);
    expect(count).toBeLessThan(10);
  });
});
