import { describe, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { FairQueue } from "../../gateway/dispatch/fair-queue.ts";
import { fc } from "../support/fast-check.ts";

interface Job {
  readonly tenantId: TenantId;
  readonly tokens: number;
  readonly cost: number;
  readonly number: number;
  readonly arrival: number;
}

const bounds = { maxItems: 1_000_000, maxTokens: 1_000_000_000 };
const job = (tenantId: TenantId, number: number, cost = 100): Job => ({
  tenantId,
  number,
  arrival: number,
  cost,
  tokens: cost,
});

/** Takes and pays, as whoever runs them does. */
function serve(queue: FairQueue<Job>, count: number): Job[] {
  const served: Job[] = [];
  while (served.length < count) {
    const next = queue.take((item) => item);
    if (next === undefined) break;
    queue.charge(next.item, next.item.cost);
    served.push(next.item);
  }
  return served;
}

describe("FairQueue", () => {
  test("tenants that wait all the time get equal tokens within 5 %, whatever their requests cost", () => {
    const costs = fc.array(fc.integer({ min: 50, max: 4_000 }), { minLength: 2, maxLength: 6 });
    fc.assert(
      fc.property(costs, (tenantCosts) => {
        const queue = new FairQueue<Job>(bounds);
        const paid = tenantCosts.map(() => 0);
        const goal = 60 * Math.max(...tenantCosts, 2_000);
        tenantCosts.forEach((cost, tenant) => {
          for (let number = 0; number * cost < 1.2 * goal; number++) queue.add(job(`tenant_${tenant}`, number, cost));
        });
        while (Math.max(...paid) < goal) {
          for (const { tenantId, cost } of serve(queue, 1)) {
            const at = Number(tenantId.slice("tenant_".length));
            paid[at] = (paid[at] ?? 0) + cost;
          }
        }
        for (const tokens of paid) expect(Math.abs(tokens / goal - 1)).toBeLessThan(0.05);
      }),
      { numRuns: 10 },
    );
  });

  test("everything is served, and each tenant's in its order", () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.nat(4), fc.integer({ min: 0, max: 5_000 })), { maxLength: 200 }), (drawn) => {
        const queue = new FairQueue<Job>(bounds);
        const served: Job[] = [];
        drawn.forEach(([tenant, cost], number) => {
          queue.add(job(`tenant_${tenant}`, number, cost));
          if (number % 3 === 0) served.push(...serve(queue, 1));
        });
        served.push(...serve(queue, Number.POSITIVE_INFINITY));
        expect(served.length).toBe(drawn.length);
        expect(queue.size).toBe(0);
        for (const group of Map.groupBy(served, ({ tenantId }) => tenantId).values()) {
          expect(group.map(({ number }) => number)).toEqual(
            group.map(({ number }) => number).toSorted((a, b) => a - b),
          );
        }
      }),
      { numRuns: 50 },
    );
  });

  test("a tenant that has just come is served next, and one in debt after the others", () => {
    const queue = new FairQueue<Job>(bounds);
    for (let number = 0; number < 50; number++) queue.add(job("tenant_a", number, 5_000));
    serve(queue, 20);
    queue.add(job("tenant_b", 0, 100));
    expect(serve(queue, 1)[0]?.tenantId).toBe("tenant_b");
  });

  test("what others were served before one came is not held against them", () => {
    const queue = new FairQueue<Job>(bounds);
    for (const tenantId of ["tenant_a", "tenant_b"] as const)
      for (let number = 0; number < 200; number++) queue.add(job(tenantId, number, 1_000));
    serve(queue, 200);
    for (let number = 0; number < 100; number++) queue.add(job("tenant_c", number, 1_000));
    const next = serve(queue, 30).filter(({ tenantId }) => tenantId === "tenant_c");
    expect(next.length).toBeWithin(9, 13);
  });

  test("what cannot run now keeps nobody else waiting", () => {
    const queue = new FairQueue<Job>(bounds);
    for (const number of [0, 1]) queue.add(job("tenant_a", number));
    queue.add(job("tenant_b", 2));
    expect(queue.take((item) => (item.number === 0 ? undefined : item))?.item.number).toBe(1);
    expect(queue.take((item) => (item.tenantId === "tenant_a" ? undefined : item))?.item.number).toBe(2);
    expect(queue.take(() => undefined)).toBeUndefined();
    expect(queue.size).toBe(1);
  });

  test("what comes back has its old place again, however often it and others were taken", () => {
    const queue = new FairQueue<Job>(bounds);
    const line = () => queue.items().map(({ number }) => number);
    for (let number = 0; number < 6; number++) queue.add(job("tenant_a", number));
    for (const count of [3, 2, 4]) {
      for (const item of serve(queue, count).toReversed()) queue.add(item);
      expect(line()).toEqual([0, 1, 2, 3, 4, 5]);
      for (const item of serve(queue, count)) queue.add(item);
      expect(line()).toEqual([0, 1, 2, 3, 4, 5]);
    }
    const [first] = serve(queue, 1);
    expect(first?.number).toBe(0);
    queue.add(job("tenant_a", 6));
    expect(line()).toEqual([1, 2, 3, 4, 5, 6]);
  });
});
