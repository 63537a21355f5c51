import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { TenantId } from "../../db/ids.ts";
import { type Db, openDb } from "../../db/open.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { type LimitedOwner, RateLimiter } from "../../gateway/tenant/rate-limiter.ts";
import { TokenBudgets } from "../../gateway/tenant/token-budgets.ts";
import { UsageLedger } from "../../gateway/tenant/usage.ts";
import { fc } from "../support/fast-check.ts";

const lastOfMonth = Date.UTC(2026, 0, 31, 22);
const hourMs = 3_600_000;
let db: Db;
const clock = { nowMs: lastOfMonth };
let ledgers: UsageLedger[] = [];

beforeEach(() => {
  db = openDb(":memory:");
  clock.nowMs = lastOfMonth;
});
afterEach(() => {
  for (const ledger of ledgers) ledger.stop();
  ledgers = [];
  db.close();
});

/** A server's part in this; each one after the first is a restart. */
function start() {
  const usage = new UsageLedger(
    db,
    () => undefined,
    () => clock.nowMs,
  );
  ledgers.push(usage);
  const budgets = new TokenBudgets(usage, () => clock.nowMs);
  const limiter = new RateLimiter(100, () => 1_000, budgets);
  let count = 0;
  const admit = (owner: LimitedOwner) => limiter.admit(`req_${count++}`, [owner]);
  /** What a request does that computes so many tokens. */
  const work = (owner: LimitedOwner, tokens: number) => {
    const admission = admit(owner);
    try {
      admission.reserve(tokens).settle(tokens);
      usage.add(owner.budget?.tenantId ?? "tenant_none", { completionTokens: tokens });
    } finally {
      admission.end();
    }
  };
  return { usage, budgets, limiter, admit, work };
}

function tenant(tokensPerDay: number | null, tokensPerMonth: number | null, id: TenantId = "tenant_a"): LimitedOwner {
  const limits = { requestsPerMinute: null, tokensPerMinute: null, concurrency: null };
  return { id, kind: "tenant", limits, budget: { tenantId: id, tokensPerDay, tokensPerMonth } };
}

function refusal(run: () => unknown): Pick<ApiError, "code" | "retryAfterS" | "message"> | undefined {
  try {
    run();
    return undefined;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return { code: error.code, retryAfterS: error.retryAfterS, message: error.message };
  }
}

describe("a tenant's budget", () => {
  test("of a day ends with it, and Retry-After says when", () => {
    const { work } = start();
    const ten = tenant(10, null);
    work(ten, 4);
    work(ten, 5);
    work(ten, 5);
    expect(refusal(() => work(ten, 1))).toEqual({
      code: "quota_exceeded",
      retryAfterS: 7_200,
      message: "The tenant has used its 10 tokens of this day. The next day begins at 2026-02-01T00:00Z.",
    });
    // Another tenant's is its own.
    work(tenant(10, null, "tenant_b"), 1);
    clock.nowMs += 2 * hourMs - 1;
    expect(refusal(() => work(ten, 1))).toMatchObject({ code: "quota_exceeded", retryAfterS: 1 });
    clock.nowMs += 1;
    expect(refusal(() => work(ten, 1))).toBeUndefined();
  });

  test("of a month holds beyond the day; of two that are used up the later one counts", () => {
    const { work, budgets } = start();
    clock.nowMs = Date.UTC(2026, 1, 27, 12);
    const both = tenant(10, 15);
    work(both, 10);
    expect(refusal(() => work(both, 1))).toMatchObject({ code: "quota_exceeded", retryAfterS: 12 * 3_600 });
    clock.nowMs = Date.UTC(2026, 1, 28, 12);
    work(both, 10);
    const refused = refusal(() => work(both, 1));
    expect(refused).toMatchObject({ code: "quota_exceeded", retryAfterS: 12 * 3_600 });
    expect(refused?.message).toContain("15 tokens of this month");
    expect(both.budget && budgets.standing(both.budget)).toEqual([
      { period: "day", limit: 10, used: 10, resetsAt: Date.UTC(2026, 2, 1) },
      { period: "month", limit: 15, used: 20, resetsAt: Date.UTC(2026, 2, 1) },
    ]);
    clock.nowMs = Date.UTC(2026, 2, 1);
    expect(refusal(() => work(both, 1))).toBeUndefined();
  });

  test("counts what was computed: cached tokens are free, embeddings are not", () => {
    const { usage, budgets } = start();
    usage.add("tenant_a", { promptTokens: 100, cachedTokens: 90, cacheWriteTokens: 10, completionTokens: 7 });
    usage.add("tenant_a", { embeddingTokens: 5 });
    const used = budgets.standing({ tenantId: "tenant_a", tokensPerDay: null, tokensPerMonth: 50 });
    expect(used.map((standing) => standing.used)).toEqual([22, 22]);
  });

  test("is what it was after a restart, with what was not written yet before it", () => {
    const first = start();
    const ten = tenant(10, null);
    first.work(ten, 6);
    first.usage.stop();
    const next = start();
    // Added before anybody has asked: these tokens are in memory, the others in the database.
    next.usage.add("tenant_a", { promptTokens: 4 });
    expect(refusal(() => next.work(ten, 1))).toMatchObject({ code: "quota_exceeded" });
  });

  test("holds background work and the queries of a bulk request, and no request that computes nothing", () => {
    const { work, limiter, admit } = start();
    const ten = tenant(10, null);
    const bulk = admit(ten);
    expect(bulk.tokensWaitMs()).toBe(0);
    work(ten, 10);
    expect(() => bulk.tokensWaitMs()).toThrow("has used its 10 tokens");
    expect(() => limiter.requireTokens(ten)).toThrow("has used its 10 tokens");
    admit(ten).end();
  });

  test("is reserved by what runs: others wait for the rest, and are overrun by one piece of work at most", () => {
    const { usage, admit } = start();
    const hundred = tenant(100, null);
    const running = [admit(hundred).reserve(60), admit(hundred).reserve(60)];
    expect(refusal(() => admit(hundred).reserve(1))).toMatchObject({ code: "rate_limited", retryAfterS: 1 });
    // It took far less than it had reserved, so others may begin.
    running[0]?.settle(5);
    usage.add("tenant_a", { completionTokens: 5 });
    expect(refusal(() => admit(hundred).reserve(1))).toBeUndefined();
  });

  test("is never overrun by more than the largest piece of work, however much comes at once", () => {
    const sizes = fc.array(fc.record({ reserved: fc.integer({ min: 1, max: 40 }), ends: fc.nat(3) }), {
      maxLength: 60,
    });
    fc.assert(
      fc.property(sizes, (pieces) => {
        const { usage, admit } = start();
        const id: TenantId = `tenant_${"x".repeat(8)}`;
        const before = usage.spentBy(id).day;
        const limit = before + 100;
        const owner = tenant(limit, null, id);
        const running: (() => void)[] = [];
        for (const { reserved, ends } of pieces) {
          for (const end of running.splice(0, ends)) end();
          refusal(() => {
            const reservation = admit(owner).reserve(reserved);
            running.push(() => {
              reservation.settle(reserved);
              usage.add(id, { completionTokens: reserved });
            });
          });
        }
        for (const end of running) end();
        expect(usage.spentBy(id).day).toBeLessThan(limit + 40);
      }),
    );
  });
});
