/** Traces: where they go, whose trace goes on, and which spans a run becomes. */
import { describe, expect, test } from "bun:test";
import type { EndedTrace } from "../../gateway/telemetry/ended-trace.ts";
import type { FinishedSpan } from "../../gateway/telemetry/exporter.ts";
import { traceSettings } from "../../gateway/telemetry/settings.ts";
import { tracedDispatcher } from "../../gateway/telemetry/traced-dispatcher.ts";
import { Tracer, traced } from "../../gateway/telemetry/tracer.ts";
import { fakeLinks } from "../dispatch/fake-link.ts";
import { greedy, makeRig, request } from "../dispatch/rig.ts";

describe("settings", () => {
  const endpoint = { OTEL_EXPORTER_OTLP_ENDPOINT: "http://collector:4318" };

  test("nothing is traced without an endpoint, or when it is switched off", () => {
    expect(traceSettings({})).toBeUndefined();
    expect(traceSettings({ OTEL_EXPORTER_OTLP_ENDPOINT: "" })).toBeUndefined();
    expect(traceSettings({ ...endpoint, OTEL_SDK_DISABLED: "true" })).toBeUndefined();
    expect(traceSettings({ ...endpoint, OTEL_TRACES_EXPORTER: "none" })).toBeUndefined();
  });

  test("are the standard ones", () => {
    expect(traceSettings(endpoint)).toEqual({
      url: "http://collector:4318/v1/traces",
      headers: {},
      serviceName: "spangate",
      resource: {},
      timeoutMs: 10_000,
      ratio: 1,
    });
    const own = {
      ...endpoint,
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "https://other/path",
      OTEL_EXPORTER_OTLP_HEADERS: "api-key=a%20b, x=1=2",
      OTEL_SERVICE_NAME: "rag",
      OTEL_RESOURCE_ATTRIBUTES: "deployment.environment.name=prod, service.name=other,zone=a%2Cb",
      OTEL_EXPORTER_OTLP_TIMEOUT: "2500",
      OTEL_TRACES_SAMPLER: "parentbased_traceidratio",
      OTEL_TRACES_SAMPLER_ARG: "0.25",
    };
    expect(traceSettings(own)).toEqual({
      url: "https://other/path",
      headers: { "api-key": "a b", x: "1=2" },
      serviceName: "rag",
      resource: { "deployment.environment.name": "prod", zone: "a,b" },
      timeoutMs: 2_500,
      ratio: 0.25,
    });
    expect(traceSettings({ ...own, OTEL_SERVICE_NAME: "" })?.serviceName).toBe("other");
    expect(traceSettings({ ...own, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: "1" })?.timeoutMs).toBe(1);
    expect(traceSettings({ ...endpoint, OTEL_TRACES_SAMPLER: "parentbased_always_off" })?.ratio).toBe(0);
  });

  const wrong: readonly (readonly [string, string])[] = [
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"],
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector"],
    ["OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"],
    ["OTEL_EXPORTER_OTLP_HEADERS", "a b=c"],
    ["OTEL_EXPORTER_OTLP_HEADERS", "a=%zz"],
    ["OTEL_RESOURCE_ATTRIBUTES", "prod"],
    ["OTEL_RESOURCE_ATTRIBUTES", "a=%zz"],
    ["OTEL_EXPORTER_OTLP_TIMEOUT", "0"],
    ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1e9"],
    ["OTEL_TRACES_SAMPLER", "always"],
  ];
  test.each(wrong)("%s=%s is refused by name", (name, value) => {
    expect(() => traceSettings({ ...endpoint, [name]: value })).toThrow(name);
  });
  test("a ratio out of range is refused by name", () => {
    const sampler = { ...endpoint, OTEL_TRACES_SAMPLER: "parentbased_traceidratio" };
    for (const ratio of ["2", "-1", "x"]) {
      expect(() => traceSettings({ ...sampler, OTEL_TRACES_SAMPLER_ARG: ratio })).toThrow("OTEL_TRACES_SAMPLER_ARG");
    }
  });
});

function tracing(ratio = 1, random = () => 0.5) {
  const spans: FinishedSpan[] = [];
  const tracer = new Tracer(
    { exporter: { add: (span) => void spans.push(span), stop: async () => undefined } },
    ratio,
    random,
  );
  return { tracer, spans };
}

const facts = { requestId: "req_1", tenantId: "tenant_a", keyId: "key_1", method: "GET", route: "/y", status: 200 };

describe("a trace", () => {
  const traceId = "0af7651916cd43dd8448eb211c80319c";
  const parent = "b7ad6b7169203331";

  test("goes on from the caller's, whose decision holds", async () => {
    const { tracer, spans } = tracing(0);
    tracer.begin("req_1", `00-${traceId}-${parent}-01`)?.leave();
    expect(spans[0]).toMatchObject({ traceId, parentSpanId: parent });
    expect(tracer.begin("req_2", `00-${traceId}-${parent}-00`)).toBeUndefined();
    tracer.begin("req_3", `cc-${traceId}-${parent}-01-later`)?.leave();
    expect(spans).toHaveLength(2);
  });

  test.each([
    undefined,
    "",
    `00-${traceId}-${parent}`,
    `00-${"0".repeat(32)}-${parent}-01`,
    `00-${traceId}-${"0".repeat(16)}-01`,
    `ff-${traceId}-${parent}-01`,
    `00-${traceId}-${parent}-01-more`,
    `00-${traceId.toUpperCase()}-${parent}-01`,
    "canary".repeat(1000),
  ])("begins anew without a valid header: %p", async (header) => {
    const { tracer, spans } = tracing();
    tracer.begin("req_1", header)?.leave();
    expect(spans[0]?.parentSpanId).toBeUndefined();
    expect(spans[0]?.traceId).toMatch(/^[0-9a-f]{32}$/);
    expect(spans[0]?.traceId).not.toBe(traceId);
  });

  test("is drawn by the ratio where the caller has not decided", async () => {
    for (const [ratio, drawn, count] of [
      [0.3, 0.2, 1],
      [0.3, 0.4, 0],
      [0, 0, 0],
    ] as const) {
      const { tracer, spans } = tracing(ratio, () => drawn);
      tracer.begin("req_1", undefined)?.leave();
      expect(spans).toHaveLength(count);
    }
  });

  test("has the parts of its request, and ends with the last of them", async () => {
    const { tracer, spans } = tracing();
    const late = Promise.withResolvers<void>();
    const trace = tracer.begin("req_1", undefined);
    await traced(
      trace,
      "one",
      () => 7,
      (seven) => ({ seven }),
    );
    await expect(
      (async () => await traced(trace, "two", () => Promise.reject(new Error("canary"))))(),
    ).rejects.toThrow();
    const part = traced(trace, "late", () => late.promise);
    trace?.describe({ ...facts, method: "POST", route: "/x" });
    trace?.leave();
    expect(spans.map(({ name, failed }) => [name, failed])).toEqual([
      ["one", false],
      ["two", true],
    ]);
    late.resolve();
    await part;
    const root = spans.at(-1);
    expect(spans.map(({ name }) => name)).toEqual(["one", "two", "late", "POST /x"]);
    for (const span of spans.slice(0, 3))
      expect([span.traceId, span.parentSpanId]).toEqual([root?.traceId ?? "", root?.spanId]);
    expect(root?.endMs).toBeGreaterThanOrEqual(spans[2]?.endMs ?? Number.POSITIVE_INFINITY);
    expect(spans[0]?.attributes).toEqual({ seven: 7 });
    expect(JSON.stringify(spans)).not.toContain("canary");
  });

  test("costs nothing where there is none", async () => {
    expect(traced(undefined, "x", () => 3)).toBe(3);
  });

  test("is found by the ids of its request's work until it ends, and takes no part after that", () => {
    const { tracer } = tracing();
    const trace = tracer.begin("req_1", undefined);
    trace?.enter();
    trace?.leave();
    expect([tracer.of("req_1"), tracer.of("req_1.3"), tracer.of("req_12")]).toEqual([trace, trace, undefined]);
    trace?.leave();
    expect(tracer.of("req_1.3")).toBeUndefined();
  });

  test("stays open for a stream, whose reader's time is not its own", async () => {
    const { tracer, spans } = tracing();
    const trace = tracer.begin("req_1", undefined);
    trace?.enter();
    trace?.leave();
    const leftMs = performance.now();
    while (performance.now() < leftMs + 5) await Bun.sleep(1);
    expect(tracer.of("req_1")).toBe(trace);
    trace?.release();
    expect([spans.length, tracer.of("req_1")]).toEqual([1, undefined]);
    expect((spans[0]?.endMs ?? 0) - (spans[0]?.startMs ?? 0)).toBeLessThan(5);
  });
});

describe("what is kept", () => {
  function keeping() {
    const kept: EndedTrace[] = [];
    return { kept, tracer: new Tracer({ keep: (trace) => void kept.push(trace) }) };
  }

  test("is requests that had a part, and nothing of those that only read", () => {
    const { kept, tracer } = keeping();
    for (const [requestId, parts] of [
      ["req_1", 0],
      ["req_2", 1],
    ] as const) {
      const trace = tracer.begin(requestId, undefined);
      for (let at = 0; at < parts; at++) trace?.span("lowering", 1, 2);
      trace?.describe({ ...facts, requestId });
      trace?.leave();
    }
    expect(kept.map(({ head }) => head.requestId)).toEqual(["req_2"]);
  });

  test("is nothing of a tenant that was deleted while its request ran", () => {
    const { kept, tracer } = keeping();
    const open = ["tenant_a", "tenant_b"].map((tenantId) => {
      const trace = tracer.begin(`req_${tenantId}`, undefined);
      trace?.span("lowering", 1, 2);
      return { trace, tenantId };
    });
    tracer.forget("tenant_a");
    for (const { trace, tenantId } of open) {
      trace?.describe({ ...facts, tenantId });
      trace?.leave();
    }
    expect(kept.map(({ head }) => head.tenantId)).toEqual(["tenant_b"]);
  });
});

describe("a run", () => {
  function started() {
    const { tracer, spans } = tracing();
    const links = fakeLinks();
    const { supervisor, dispatcher } = makeRig(links.openLink, ["cpu"]);
    supervisor.start(dispatcher);
    const [process] = links.processes;
    if (process === undefined) throw new Error("no process");
    process.ready();
    const trace = tracer.begin("r", undefined);
    const traced = tracedDispatcher(dispatcher, (workId) => tracer.of(workId));
    const submit = () => traced.submit(request("r.0", { params: greedy(2) }));
    return { trace, spans, process, submit };
  }
  const names = (spans: readonly FinishedSpan[]) => spans.map(({ name }) => name);

  test("has its queue, prefill, first token and decode, one after the other", async () => {
    const { trace, spans, process, submit } = started();
    const events = submit();
    process.core.tick();
    process.core.tick();
    for await (const _ of events);
    trace?.leave();
    expect(names(spans)).toEqual(["queue", "prefill", "first_token", "decode", "request"]);
    for (const [index, span] of spans.slice(0, 4).entries()) {
      expect(span.endMs).toBeGreaterThanOrEqual(span.startMs);
      if (index > 0) expect(span.startMs).toBeCloseTo(spans[index - 1]?.endMs ?? 0, 2);
    }
    expect(spans[1]?.attributes).toMatchObject({ "gen_ai.usage.input_tokens": 3, "spangate.worker": "worker-0" });
    expect(spans[3]?.attributes).toMatchObject({ "gen_ai.usage.output_tokens": 2 });
  });

  test("that nobody reads to its end, or that fails, ends its trace all the same", async () => {
    const left = started();
    const leftEvents = left.submit();
    left.process.core.tick();
    await leftEvents.next();
    await leftEvents.return?.();
    left.trace?.leave();
    expect(names(left.spans).slice(-2)).toEqual(["decode", "request"]);
    const failed = started();
    const failedEvents = failed.submit();
    failed.process.core.tick();
    await failedEvents.next();
    failed.process.die();
    await expect(failedEvents.next()).rejects.toThrow();
    failed.trace?.leave();
    expect(failed.spans.map(({ name, failed: bad }) => [name, bad])).toEqual([
      ["run", true],
      ["request", false],
    ]);
    const both = started();
    const bothEvents = both.submit();
    both.process.core.tick();
    await bothEvents.next();
    both.process.die();
    await bothEvents.return?.();
    both.trace?.leave();
    expect(names(both.spans)).toEqual(["run", "request"]);
  });
});
