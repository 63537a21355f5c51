/** Traces: where they go, whose trace goes on, and which spans a run becomes. */
import { describe, expect, test } from "bun:test";
import type { FinishedSpan } from "../../gateway/telemetry/exporter.ts";
import { traceSettings } from "../../gateway/telemetry/settings.ts";
import { tracedDispatcher } from "../../gateway/telemetry/traced-dispatcher.ts";
import { currentTrace, Tracer, traced } from "../../gateway/telemetry/tracer.ts";
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
    await tracer.request(`00-${traceId}-${parent}-01`, async () => undefined);
    expect(spans[0]).toMatchObject({ traceId, parentSpanId: parent });
    await tracer.request(`00-${traceId}-${parent}-00`, async (trace) => expect(trace).toBeUndefined());
    await tracer.request(`cc-${traceId}-${parent}-01-later`, async () => undefined);
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
    await tracer.request(header, async () => undefined);
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
      await tracer.request(undefined, async () => undefined);
      expect(spans).toHaveLength(count);
    }
  });

  test("has the parts of its request, and ends with the last of them", async () => {
    const { tracer, spans } = tracing();
    const late = Promise.withResolvers<void>();
    let part: Promise<unknown> = Promise.resolve();
    await tracer.request(undefined, async (trace) => {
      await traced(
        "one",
        () => 7,
        (seven) => ({ seven }),
      );
      await traced("two", () => Promise.reject(new Error("canary"))).catch(() => undefined);
      part = traced("late", () => late.promise);
      trace?.describe({ ...facts, method: "POST", route: "/x" });
    });
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
    expect(currentTrace()).toBeUndefined();
    expect(await traced("x", () => 3)).toBe(3);
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
    const submit = () => tracedDispatcher(dispatcher).submit(request("r", { params: greedy(2) }));
    return { tracer, spans, process, submit };
  }
  const names = (spans: readonly FinishedSpan[]) => spans.map(({ name }) => name);

  test("has its queue, prefill, first token and decode, one after the other", async () => {
    const { tracer, spans, process, submit } = started();
    await tracer.request(undefined, async () => {
      const events = submit();
      process.core.tick();
      process.core.tick();
      for await (const _ of events);
    });
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
    await left.tracer.request(undefined, async () => {
      const events = left.submit();
      left.process.core.tick();
      await events.next();
      await events.return?.();
    });
    expect(names(left.spans).slice(-2)).toEqual(["decode", "request"]);
    const failed = started();
    await failed.tracer.request(undefined, async () => {
      const events = failed.submit();
      failed.process.core.tick();
      await events.next();
      failed.process.die();
      await expect(events.next()).rejects.toThrow();
    });
    expect(failed.spans.map(({ name, failed: bad }) => [name, bad])).toEqual([
      ["run", true],
      ["request", false],
    ]);
    const both = started();
    await both.tracer.request(undefined, async () => {
      const events = both.submit();
      both.process.core.tick();
      await events.next();
      both.process.die();
      await events.return?.();
    });
    expect(names(both.spans)).toEqual(["run", "request"]);
  });
});
