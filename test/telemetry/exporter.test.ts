/** What a batch looks like on the wire, and what becomes of one that cannot be sent. */
import { describe, expect, test } from "bun:test";
import { type FinishedSpan, SpanExporter } from "../../gateway/telemetry/exporter.ts";

describe("the exporter", () => {
  const span = (name: string): FinishedSpan => ({
    traceId: "a".repeat(32),
    spanId: "b".repeat(16),
    parentSpanId: undefined,
    name,
    kind: "server",
    startMs: 1_700_000_000_000.25,
    endMs: 1_700_000_000_001,
    attributes: { text: "t", count: 2, share: 0.5, yes: true, absent: undefined },
    failed: true,
  });
  interface Sent {
    readonly url: string;
    readonly body: { resourceSpans: { resource: object; scopeSpans: { spans: { name: string }[] }[] }[] };
  }
  const opened = (answers: readonly (number | Error)[] = [], options = {}) => {
    const sent: Sent[] = [];
    const lines: (readonly [string, unknown])[] = [];
    const exporter = new SpanExporter({
      url: "http://c/v1/traces",
      headers: { "api-key": "k" },
      serviceName: "s",
      resource: { zone: "z" },
      serviceVersion: "1",
      log: (_level, message, fields) => void lines.push([message, fields]),
      flushMs: 60_000,
      send: async (url, init) => {
        const answer = answers[sent.length] ?? 200;
        sent.push({ url, body: JSON.parse(String(init.body)) });
        if (answer instanceof Error) throw answer;
        return { ok: answer < 300, status: answer };
      },
      ...options,
    });
    const names = () => sent.map(({ body }) => body.resourceSpans[0]?.scopeSpans[0]?.spans.map(({ name }) => name));
    return { exporter, sent, lines, names };
  };

  test("posts OTLP's JSON: times in nanoseconds as texts, numbers by their kind", async () => {
    const { exporter, sent } = opened();
    exporter.add(span("GET /x"));
    await exporter.stop();
    expect(sent).toHaveLength(1);
    const [resourceSpans] = sent.flatMap(({ body }) => body.resourceSpans);
    expect(resourceSpans?.resource).toEqual({
      attributes: [
        { key: "zone", value: { stringValue: "z" } },
        { key: "service.name", value: { stringValue: "s" } },
        { key: "service.version", value: { stringValue: "1" } },
      ],
    });
    expect(resourceSpans?.scopeSpans[0]?.spans as readonly object[]).toEqual([
      {
        traceId: "a".repeat(32),
        spanId: "b".repeat(16),
        name: "GET /x",
        kind: 2,
        startTimeUnixNano: "1700000000000250000",
        endTimeUnixNano: "1700000000001000000",
        attributes: [
          { key: "text", value: { stringValue: "t" } },
          { key: "count", value: { intValue: "2" } },
          { key: "share", value: { doubleValue: 0.5 } },
          { key: "yes", value: { boolValue: true } },
        ],
        status: { code: 2 },
      },
    ]);
  });

  test("sends in batches, one at a time; what a collector cannot take now is sent again, what it refuses is dropped", async () => {
    const { exporter, names, lines } = opened([200, 503, new TypeError("canary"), 400], { maxBatch: 2, maxQueue: 3 });
    for (const name of ["1", "2", "3", "4"]) exporter.add(span(name));
    await exporter.flush();
    expect(lines).toEqual([["traces could not be sent", { reason: "status 503", dropped: 0 }]]);
    await exporter.flush();
    expect(lines[1]).toEqual(["traces could not be sent", { reason: "TypeError", dropped: 0 }]);
    exporter.add(span("5"));
    await exporter.flush();
    expect(lines[2]).toEqual(["traces could not be sent", { reason: "status 400", dropped: 2 }]);
    await exporter.stop();
    expect(names()).toEqual([["1", "2"], ["3", "4"], ["3", "4"], ["3", "4"], ["5"]]);
    expect(lines).toHaveLength(3);
  });

  test("a collector that cannot take more is not asked again for each span", async () => {
    const { exporter, sent, names } = opened([503], { maxBatch: 1, maxQueue: 9 });
    exporter.add(span("1"));
    await exporter.flush();
    for (const name of ["2", "3"]) exporter.add(span(name));
    expect(sent).toHaveLength(1);
    await exporter.flush();
    exporter.add(span("4"));
    await exporter.stop();
    expect(names()).toEqual([["1"], ["1"], ["2"], ["3"], ["4"]]);
  });

  test("keeps so many and no more, also of what is to be sent again", async () => {
    const late = Promise.withResolvers<Pick<Response, "ok" | "status">>();
    const { exporter, lines } = opened([], { maxBatch: 2, maxQueue: 3, send: () => late.promise });
    for (const name of ["1", "2"]) exporter.add(span(name));
    for (const name of ["3", "4"]) exporter.add(span(name));
    late.resolve({ ok: false, status: 429 });
    await exporter.flush();
    expect(lines).toEqual([["traces could not be sent", { reason: "status 429", dropped: 1 }]]);
    const full = opened([], { maxBatch: 9, maxQueue: 2 });
    for (const name of ["1", "2", "3"]) full.exporter.add(span(name));
    await full.exporter.stop();
    expect(full.names()).toEqual([["1", "2"]]);
  });
});
