/** Windows of time: exact counts, quantiles within a bin, and nothing that grows without bound. */
import { describe, expect, test } from "bun:test";
import type { TraceHead } from "../../gateway/telemetry/ended-trace.ts";
import { statsOfTraces, TraceStats } from "../../gateway/telemetry/trace-stats.ts";
import { fc } from "../support/fast-check.ts";

const head = (fields: Partial<TraceHead> = {}): TraceHead => ({
  ...{ requestId: "r", tenantId: "tenant_a", keyId: "key_1", method: "POST", route: "/x", status: 200 },
  ...{ startedAtMs: 0, durationMs: 10, failed: false, runs: 1 },
  ...{ promptTokens: 100, cachedTokens: 60, completionTokens: 5, queueMs: 1, firstTokenMs: 8, stageMs: {} },
  ...fields,
});

const minuteMs = 60_000;
/** Bins grow by 2^(1/4), and the middle is given. */
const binError = 2 ** (1 / 8) + 1e-9;

describe("statistics", () => {
  test("count by minute and by quarter of an hour, of a tenant and of all", () => {
    let nowMs = 10_000 * 15 * minuteMs;
    const stats = new TraceStats(() => nowMs);
    stats.add(head());
    nowMs += minuteMs;
    stats.add(head({ failed: true, firstTokenMs: undefined }));
    stats.add(head({ tenantId: "tenant_b", promptTokens: 7, cachedTokens: 0 }));
    const own = stats.read("minute", "tenant_a");
    expect(own.windows.map(({ requests, failed }) => [requests, failed])).toEqual([
      [1, 0],
      [1, 1],
    ]);
    expect(own.windows[1]?.atMs).toBe(nowMs);
    expect(own.windows[1]?.firstTokenMs).toBeUndefined();
    expect(own.total).toMatchObject({ requests: 2, promptTokens: 200, cachedTokens: 120, completionTokens: 10 });
    expect(stats.read("quarter_hour", "tenant_a").windows).toHaveLength(1);
    expect(stats.read("minute", undefined).total).toMatchObject({ requests: 3, promptTokens: 207, cachedTokens: 120 });
    expect(stats.read("minute", "tenant_nobody").total.requests).toBe(0);
  });

  test("forget minutes after two hours and quarters of an hour after a day", () => {
    let nowMs = 10_000 * 15 * minuteMs;
    const stats = new TraceStats(() => nowMs);
    stats.add(head());
    const requests = (resolution: "minute" | "quarter_hour") => stats.read(resolution, "tenant_a").total.requests;
    nowMs += 119 * minuteMs;
    expect(requests("minute")).toBe(1);
    nowMs += minuteMs;
    expect([requests("minute"), requests("quarter_hour")]).toEqual([0, 1]);
    nowMs += (96 * 15 - 120 - 1) * minuteMs;
    expect(requests("quarter_hour")).toBe(1);
    nowMs += minuteMs;
    expect(requests("quarter_hour")).toBe(0);
  });

  test("quantiles are those of the sorted values, to within a bin", () => {
    const times = fc.array(fc.double({ min: 0.07, max: 1e6, noNaN: true }), { minLength: 1, maxLength: 300 });
    fc.assert(
      fc.property(times, (values) => {
        const traces = values.map((firstTokenMs) => head({ firstTokenMs }));
        const quantiles = statsOfTraces(traces, "minute", 0).total.firstTokenMs;
        const sorted = values.toSorted((a, b) => a - b);
        for (const [part, given = Number.NaN] of [
          [0.5, quantiles?.p50],
          [0.99, quantiles?.p99],
        ] as const) {
          const ratio = given / (sorted[Math.ceil(part * sorted.length) - 1] ?? Number.NaN);
          expect(ratio).toBeLessThanOrEqual(binError);
          expect(ratio).toBeGreaterThanOrEqual(1 / binError);
        }
      }),
    );
  });

  test("times beyond all bins, and none at all, are counted", () => {
    const traces = [0, 1e9, Number.MIN_VALUE].map((firstTokenMs) => head({ firstTokenMs }));
    const { firstTokenMs, requests } = statsOfTraces(traces, "minute", 0).total;
    expect([requests, (firstTokenMs?.p50 ?? 1) < 0.1, (firstTokenMs?.p99 ?? 0) > 9e5]).toEqual([3, true, true]);
  });

  test("where windows are too many, the tenant goes that was seen longest ago, never the sums of all", () => {
    const stats = new TraceStats(() => 0, 4);
    for (const tenantId of ["tenant_a", "tenant_b", "tenant_a", "tenant_c"]) stats.add(head({ tenantId }));
    const requests = (tenantId?: string) => stats.read("minute", tenantId).total.requests;
    expect(["tenant_a", "tenant_b", "tenant_c", undefined].map(requests)).toEqual([2, 0, 1, 4]);
    stats.forget("tenant_a");
    stats.add(head({ tenantId: "tenant_d" }));
    expect(["tenant_a", "tenant_c", "tenant_d"].map(requests)).toEqual([0, 1, 1]);
  });
});
