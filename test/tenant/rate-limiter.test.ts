import { describe, expect, test } from "bun:test";
import type { RateLimits } from "../../db/limits.ts";
import { ApiError } from "../../gateway/base/errors.ts";
import { type LimitedOwner, RateLimiter } from "../../gateway/tenant/rate-limiter.ts";
import { fc } from "../support/fast-check.ts";

const none: RateLimits = { requestsPerMinute: null, tokensPerMinute: null, concurrency: null };
const owner = (limits: Partial<RateLimits>, id = "tenant_a", kind: LimitedOwner["kind"] = "tenant"): LimitedOwner => {
  return { id, kind, limits: { ...none, ...limits } };
};

function limiterAt(startMs = 1_000_000) {
  const clock = { nowMs: startMs };
  const limiter = new RateLimiter(100, () => clock.nowMs);
  let count = 0;
  const admit = (...owners: LimitedOwner[]) => limiter.admit(`req_${count++}`, owners);
  return { clock, limiter, admit };
}

function refusal(run: () => unknown): Pick<ApiError, "code" | "retryAfterS"> | undefined {
  try {
    run();
    return undefined;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return { code: error.code, retryAfterS: error.retryAfterS };
  }
}

describe("requests a minute", () => {
  const three = owner({ requestsPerMinute: 3 });

  test("as many at once, then one whenever a part of the minute has passed", () => {
    const { admit, clock } = limiterAt();
    for (let i = 0; i < 3; i++) admit(three).end();
    expect(refusal(() => admit(three))).toEqual({ code: "rate_limited", retryAfterS: 20 });
    clock.nowMs += 19_000;
    expect(refusal(() => admit(three))).toEqual({ code: "rate_limited", retryAfterS: 1 });
    clock.nowMs += 1_000;
    admit(three).end();
    expect(refusal(() => admit(three))).toEqual({ code: "rate_limited", retryAfterS: 20 });
  });

  test("whoever comes again after Retry-After is admitted, and nobody gets more than the limit and one burst", () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 500 }), fc.array(fc.nat(5_000), { maxLength: 60 }), (perMinute, pauses) => {
        const { admit, clock } = limiterAt();
        const one = owner({ requestsPerMinute: perMinute });
        const startMs = clock.nowMs;
        let admitted = 0;
        for (const pauseMs of pauses) {
          clock.nowMs += pauseMs;
          for (let attempt = 0; attempt < 3; attempt++) {
            const refused = refusal(() => admit(one).end());
            if (refused === undefined) {
              admitted += 1;
              continue;
            }
            clock.nowMs += (refused.retryAfterS ?? 0) * 1000;
            expect(refusal(() => admit(one).end())).toBeUndefined();
            admitted += 1;
          }
        }
        expect(admitted).toBeLessThanOrEqual(perMinute + ((clock.nowMs - startMs) / 60_000) * perMinute + 1e-6);
      }),
      { numRuns: 50 },
    );
  });

  test("a key's limit and its tenant's both count, and a refusal takes nothing of either", () => {
    const { admit, limiter } = limiterAt();
    const tenant = owner({ requestsPerMinute: 10 });
    const key = owner({ requestsPerMinute: 1 }, "key_1", "API key");
    const other = owner({ requestsPerMinute: 5 }, "key_2", "API key");
    admit(tenant, key).end();
    for (let i = 0; i < 20; i++) expect(refusal(() => admit(tenant, key))?.code).toBe("rate_limited");
    expect(limiter.standing([tenant], "requests")).toMatchObject({ limit: 10, remaining: 9 });
    admit(tenant, other).end();
    expect(limiter.standing([tenant, other], "requests")).toMatchObject({ limit: 5, remaining: 4 });
    expect(limiter.standing([tenant], "tokens")).toBeUndefined();
  });

  test("a limit that is raised counts from the next request", () => {
    const { admit } = limiterAt();
    admit(owner({ requestsPerMinute: 1 })).end();
    expect(refusal(() => admit(owner({ requestsPerMinute: 1 })))?.code).toBe("rate_limited");
    expect(refusal(() => admit(owner({ requestsPerMinute: 2 })))).toBeUndefined();
  });
});

describe("tokens a minute", () => {
  const hundred = owner({ tokensPerMinute: 100 });

  test("are reserved by estimate and settled by what was used", () => {
    const { admit, limiter } = limiterAt();
    const reservation = admit(hundred).reserve(80);
    expect(limiter.standing([hundred], "tokens")).toMatchObject({ limit: 100, remaining: 20, resetMs: 48_000 });
    expect(refusal(() => admit(hundred).reserve(30))).toEqual({ code: "rate_limited", retryAfterS: 6 });
    reservation.settle(50);
    expect(limiter.standing([hundred], "tokens")).toMatchObject({ remaining: 50 });
    admit(hundred).reserve(30);
  });

  test("what comes after a request's first work is not refused but owed", () => {
    const { admit, clock } = limiterAt();
    const admission = admit(hundred);
    admission.reserve(60).settle(60);
    admission.reserve(90).settle(90);
    expect(admission.tokensWaitMs()).toBeCloseTo(30_600, 5);
    expect(refusal(() => admit(hundred))).toEqual({ code: "rate_limited", retryAfterS: 31 });
    clock.nowMs += 31_000;
    expect(admission.tokensWaitMs()).toBe(0);
    expect(refusal(() => admit(hundred))).toBeUndefined();
  });

  test("a request larger than the limit waits for all of it, and owes the rest", () => {
    const { admit, clock } = limiterAt();
    const small = admit(hundred).reserve(10);
    expect(refusal(() => admit(hundred).reserve(5_000))).toEqual({ code: "rate_limited", retryAfterS: 6 });
    small.settle(10);
    clock.nowMs += 6_000;
    admit(hundred).reserve(5_000).settle(300);
    expect(refusal(() => admit(hundred))).toEqual({ code: "rate_limited", retryAfterS: 121 });
  });
});

describe("requests at the same time", () => {
  const two = owner({ concurrency: 2 });

  test("a place is free again when one has ended, once", () => {
    const { admit, limiter } = limiterAt();
    const first = admit(two);
    admit(two);
    expect(refusal(() => admit(two))).toEqual({ code: "concurrency_limited", retryAfterS: 1 });
    first.end();
    first.end();
    admit(two);
    expect(refusal(() => admit(two))?.code).toBe("concurrency_limited");
    expect(limiter.running("tenant_a")).toBe(2);
  });

  test("work is found by its request's id until the request has ended", () => {
    const { limiter } = limiterAt();
    const admission = limiter.admit("req_a", [two]);
    expect(limiter.admissionOf("req_a.0")).toBe(admission);
    expect(limiter.admissionOf("req_a.17.3")).toBe(admission);
    expect(limiter.admissionOf("req_ab.0")).toBeUndefined();
    admission.end();
    expect(limiter.admissionOf("req_a.0")).toBeUndefined();
    expect(limiter.running("tenant_a")).toBe(0);
  });
});

describe("what no request waits for", () => {
  const hundred = owner({ tokensPerMinute: 100 });

  test("begins when half of a minute's tokens are there, and its debt holds up what comes", () => {
    const { admit, limiter, clock } = limiterAt();
    limiter.requireTokens(hundred);
    limiter.spend(hundred, 150);
    expect(refusal(() => limiter.requireTokens(hundred))).toEqual({ code: "rate_limited", retryAfterS: 60 });
    expect(refusal(() => admit(hundred))).toEqual({ code: "rate_limited", retryAfterS: 31 });
    clock.nowMs += 31_000;
    admit(hundred).end();
    expect(refusal(() => limiter.requireTokens(hundred))).toMatchObject({ code: "rate_limited" });
    clock.nowMs += 30_000;
    limiter.requireTokens(hundred);
  });

  test("is bounded by nothing where there is no limit", () => {
    const { limiter } = limiterAt();
    const free = owner({ requestsPerMinute: 1 });
    limiter.spend(free, 1_000_000);
    limiter.requireTokens(free);
  });
});

test("looks are ten to a request and ten a second at least, and take neither requests nor places", () => {
  const { admit, limiter, clock } = limiterAt();
  const few = owner({ requestsPerMinute: 1, concurrency: 1 });
  for (let i = 0; i < 600; i++) limiter.look([few]);
  expect(refusal(() => limiter.look([few]))).toEqual({ code: "rate_limited", retryAfterS: 1 });
  clock.nowMs += 1_000;
  for (let i = 0; i < 10; i++) limiter.look([few]);
  admit(few).end();
  const many = owner({ requestsPerMinute: 100 }, "tenant_b");
  for (let i = 0; i < 1_000; i++) limiter.look([many]);
  expect(refusal(() => limiter.look([many]))?.code).toBe("rate_limited");
});
