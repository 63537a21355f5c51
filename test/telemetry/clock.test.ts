/** Times of spans, where the machine's clock is set meanwhile. */
import { expect, setSystemTime, test } from "bun:test";
import type { FinishedSpan } from "../../gateway/telemetry/exporter.ts";
import { Tracer, traced } from "../../gateway/telemetry/tracer.ts";

test("a trace tells the time of a clock that was set since the start, and goes on by one that is not", async () => {
  const spans: FinishedSpan[] = [];
  const tracer = new Tracer({ exporter: { add: (span) => void spans.push(span), stop: async () => undefined } });
  const hourAgoMs = Date.now() - 3_600_000;
  setSystemTime(new Date(hourAgoMs));
  try {
    const trace = tracer.begin("req_1", undefined);
    await traced(trace, "one", () => 1);
    setSystemTime(new Date(hourAgoMs - 3_600_000));
    await traced(trace, "two", () => 2);
    trace?.leave();
  } finally {
    setSystemTime();
  }
  const [one, two, all] = spans;
  expect(spans).toHaveLength(3);
  for (const span of spans) {
    expect(Math.abs(span.startMs - hourAgoMs)).toBeLessThan(60_000);
    expect(span.endMs).toBeGreaterThanOrEqual(span.startMs);
  }
  expect(two?.startMs).toBeGreaterThanOrEqual(one?.endMs ?? Number.POSITIVE_INFINITY);
  expect(all?.endMs).toBeGreaterThanOrEqual(two?.endMs ?? Number.POSITIVE_INFINITY);
});
