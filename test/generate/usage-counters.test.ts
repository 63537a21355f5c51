/** Times that vLLM's metrics name are those of the whole server: a wait here is in them, an end without a token is not. */
import { expect, test } from "bun:test";
import type { RunTimes } from "../../gateway/dispatch/request/run-clock.ts";
import { countChoice } from "../../gateway/generate/usage-counters.ts";
import { Metrics } from "../../gateway/telemetry/metrics.ts";

function rendered(times: RunTimes, completionTokens: number): string {
  const metrics = new Metrics();
  const usage = { promptTokens: 7, completionTokens, cachedTokens: 0, cacheWriteTokens: 0 };
  const timings = { queueMs: 1, prefillMs: 500, ttftMs: 501 };
  const report = { type: "finished", reason: "length", usage, timings, times, spans: [], workerId: "w" } as const;
  countChoice(metrics, "tenant_a", { reason: "length", completionTokens, report }, true);
  return metrics.render();
}

const sums = (text: string): Record<string, number> =>
  Object.fromEntries(
    [...text.matchAll(/^vllm:(\w+)_seconds_sum (\S+)$/gm)].map(([, name = "", value]) => [name, Number(value)]),
  );

test("a run's times are counted from its submission", () => {
  expect(sums(rendered({ queueMs: 2_000, firstTokenMs: 3_000, totalMs: 5_000 }, 5))).toEqual({
    e2e_request_latency: 5,
    time_to_first_token: 3,
    request_queue_time: 2,
    request_prefill_time: 0.5,
    request_decode_time: 2,
    request_time_per_output_token: 0.5,
  });
});

test("one token has no time between tokens, and none has no time to the first", () => {
  const one = sums(rendered({ queueMs: 0, firstTokenMs: 3_000, totalMs: 3_000 }, 1));
  expect([one.time_to_first_token, "request_time_per_output_token" in one]).toEqual([3, false]);
  expect(sums(rendered({ queueMs: 4_000, firstTokenMs: undefined, totalMs: 4_000 }, 0))).toEqual({
    e2e_request_latency: 4,
  });
});
