/** What is kept of requests: whose, how much, and until when; against a plain list as the model. */
import { describe, expect, test } from "bun:test";
import type { EndedTrace, TraceDetails, TraceHead } from "../../gateway/telemetry/ended-trace.ts";
import { TraceRing, type TraceView } from "../../gateway/telemetry/trace-ring.ts";
import { fc } from "../support/fast-check.ts";

const noDetails = { stages: [], runs: [], fragments: [], leftOut: { stages: 0, runs: 0, fragments: 0 } };

const trace = (requestId: string, fields: Partial<TraceHead> = {}, details: TraceDetails = noDetails): EndedTrace => ({
  head: {
    ...{ requestId, tenantId: "tenant_a", keyId: "key_1", method: "POST", route: "/x", status: 200 },
    ...{ startedAtMs: 0, durationMs: 10, failed: false, runs: 1 },
    ...{ promptTokens: 100, cachedTokens: 60, completionTokens: 5, queueMs: 1, firstTokenMs: 8, stageMs: {} },
    ...fields,
  },
  details,
});

const ids = (ring: TraceRing, view: TraceView, order: "newest" | "slowest" = "newest", limit = 100) =>
  ring.list(view, { limit, order }).rows.map(({ requestId }) => requestId);

describe("the ring", () => {
  test("keeps the last of each tenant, whatever others do", () => {
    const ring = new TraceRing({ tracesPerTenant: 3, mostBytes: 1e6 });
    ring.add(trace("b0", { tenantId: "tenant_b" }));
    for (let at = 0; at < 10; at++) ring.add(trace(`a${at}`));
    expect(ids(ring, { tenantId: "tenant_a" })).toEqual(["a9", "a8", "a7"]);
    expect(ids(ring, { tenantId: "tenant_b" })).toEqual(["b0"]);
    expect(ids(ring, {})).toEqual(["a9", "a8", "a7", "b0"]);
    expect(ring.find("a6", {})).toBeUndefined();
  });

  test("gives details of what a caller may see, and nothing of anything else", () => {
    const ring = new TraceRing({ tracesPerTenant: 3, mostBytes: 1e6 });
    const stage = { name: "prefill", startMs: 1, durationMs: 2, run: 0, failed: false };
    ring.add(trace("a", {}, { ...noDetails, stages: [stage] }));
    for (const view of [{}, { tenantId: "tenant_a" }, { tenantId: "tenant_a", keyId: "key_1" }]) {
      expect(ring.details("a", view)?.stages).toEqual([stage]);
    }
    for (const view of [{ tenantId: "tenant_b" }, { tenantId: "tenant_a", keyId: "key_2" }]) {
      expect([ring.find("a", view), ring.details("a", view), ids(ring, view)]).toEqual([undefined, undefined, []]);
    }
  });

  test("gives back its memory: the tenant whose last request is longest ago goes first, and all of it", () => {
    const one = new TraceRing({ tracesPerTenant: 100, mostBytes: 1e6 });
    one.add(trace("x"));
    const ring = new TraceRing({ tracesPerTenant: 100, mostBytes: 4 * one.bytes });
    ring.add(trace("b0", { tenantId: "tenant_b" }));
    ring.add(trace("a0"));
    ring.add(trace("b1", { tenantId: "tenant_b" }));
    ring.add(trace("c0", { tenantId: "tenant_c" }));
    ring.add(trace("b2", { tenantId: "tenant_b" }));
    expect(ids(ring, {})).toEqual(["b2", "c0", "b1", "b0"]);
    ring.add(trace("d0", { tenantId: "tenant_d" }));
    expect(ids(ring, {})).toEqual(["d0", "b2", "b1", "b0"]);
    // A tenant that is alone loses its own oldest.
    for (let at = 0; at < 6; at++) ring.add(trace(`d${at + 1}`, { tenantId: "tenant_d" }));
    expect(ids(ring, {})).toEqual(["d6", "d5", "d4", "d3"]);
    expect(ring.bytes).toBe(4 * one.bytes);
    ring.forget("tenant_d");
    expect([ring.bytes, ids(ring, {})]).toEqual([0, []]);
  });

  test("pages go on after a trace, and the slowest come first where they are asked for", () => {
    const ring = new TraceRing({ tracesPerTenant: 100, mostBytes: 1e6 });
    [5, 9, 1, 9, 7].forEach((durationMs, at) => {
      ring.add(trace(`a${at}`, { durationMs }));
    });
    const first = ring.list({}, { limit: 2, order: "newest" });
    expect([first.rows.map(({ requestId }) => requestId), first.hasMore]).toEqual([["a4", "a3"], true]);
    const rest = ring.list({}, { limit: 3, order: "newest", after: first.rows[1] });
    expect([rest.rows.map(({ requestId }) => requestId), rest.hasMore]).toEqual([["a2", "a1", "a0"], false]);
    expect(ids(ring, {}, "slowest", 3)).toEqual(["a3", "a1", "a4"]);
  });

  test("does what a plain list of all traces says that it does", () => {
    const adds = fc.array(
      fc.record({
        tenant: fc.integer({ min: 0, max: 4 }),
        key: fc.integer({ min: 0, max: 1 }),
        stages: fc.integer({ min: 0, max: 30 }),
        forget: fc.boolean(),
      }),
      { maxLength: 120 },
    );
    const stage = { name: "queue", startMs: 0, durationMs: 1, failed: false };
    fc.assert(
      fc.property(adds, fc.integer({ min: 2_000, max: 20_000 }), (steps, mostBytes) => {
        const [perTenant, ring] = [4, new TraceRing({ tracesPerTenant: 4, mostBytes })];
        let model: { id: string; tenant: string; key: string; bytes: number }[] = [];
        const last = new Map<string, number>();
        steps.forEach(({ tenant: number, key: keyNumber, stages, forget }, at) => {
          const [tenant, key, id] = [`tenant_${number}`, `key_${keyNumber}`, `r${at}`];
          if (forget && at % 7 === 0) {
            ring.forget(tenant);
            model = model.filter((one) => one.tenant !== tenant);
          }
          const before = ring.bytes;
          const alone = new TraceRing({ tracesPerTenant: 1, mostBytes: 1e9 });
          const details = { ...noDetails, stages: Array.from({ length: stages }, () => stage) };
          const added = trace(id, { tenantId: tenant, keyId: key }, details);
          alone.add(added);
          ring.add(added);
          if (alone.bytes > mostBytes) {
            expect(ring.bytes).toBe(before);
            return;
          }
          model.push({ id, tenant, key, bytes: alone.bytes });
          last.set(tenant, at);
          const own = model.filter((one) => one.tenant === tenant);
          if (own.length > perTenant) model.splice(model.indexOf(own[0] as (typeof model)[number]), 1);
          const total = (): number => model.reduce((sum, { bytes }) => sum + bytes, 0);
          while (total() > mostBytes) {
            const others = [...new Set(model.map((one) => one.tenant))].filter((name) => name !== tenant);
            const [oldest] = others.sort((a, b) => (last.get(a) ?? 0) - (last.get(b) ?? 0));
            const gone = oldest ?? tenant;
            if (oldest === undefined)
              model.splice(
                model.findIndex((one) => one.tenant === gone),
                1,
              );
            else model = model.filter((one) => one.tenant !== gone);
          }
          expect(ring.bytes).toBe(total());
        });
        const newest = model.toReversed();
        expect(ids(ring, {}, "newest", 1_000)).toEqual(newest.map(({ id }) => id));
        for (const { id, tenant, key } of model) {
          expect(ring.find(id, { tenantId: tenant, keyId: key })?.requestId).toBe(id);
          expect(ring.find(id, { tenantId: tenant, keyId: "key_9" })).toBeUndefined();
        }
      }),
      { numRuns: 200 },
    );
  });
});
