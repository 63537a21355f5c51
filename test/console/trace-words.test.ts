/** What the console says of a request, and of times in which nothing was asked. */
import { expect, test } from "bun:test";
import { filled } from "../../gateway/console/client/traces/stats.ts";
import { foundPart, longestStage, type TraceHead, whereTimeWent } from "../../gateway/console/client/traces/trace.ts";

const head = (stage_ms: TraceHead["stage_ms"], more: Partial<TraceHead> = {}): TraceHead => ({
  ...{ id: "req_1", tenant_id: "tenant_a", key_id: "key_a", route: "POST /x", status: 200, failed: false },
  ...{ started_at: 0, duration_ms: 800, ttft_ms: 700, queue_ms: 3, runs: 1 },
  ...{ prompt_tokens: 1_000, cached_tokens: 400, completion_tokens: 50, stage_ms },
  ...more,
});

test("the longest stage is named, with what it had to do", () => {
  expect(whereTimeWent(head({ queue: 100, prefill: 600, decode: 90 }))).toBe(
    "600 ms of 800 ms (75 %) went into prefill: computing the prompt. 600 of 1,000 prompt tokens had to be computed.",
  );
  expect(whereTimeWent(head({ prefill: 100, decode: 500 }))).toContain("50 tokens, 10 ms each.");
  expect(whereTimeWent(head({ queue: 700, prefill: 90 }))).toContain("busy with other requests");
  expect(whereTimeWent(head({ retrieval: 700 }))).toContain("searching the corpus.");
  expect(whereTimeWent(head({}))).toBe("Nothing of it was measured.");
  // No part is more than all: runs beside each other take longer together than the request did.
  expect(whereTimeWent(head({ decode: 3_200 }, { runs: 4, completion_tokens: 4 }))).toBe(
    "4 runs beside each other took 3.2 s together for decode: generating the answer.",
  );
  expect(longestStage(head({ queue: 1, decode: 2 }))).toEqual(["decode", 2]);
  expect([foundPart(head({})), foundPart(head({}, { prompt_tokens: 0 }))]).toEqual([0.4, undefined]);
});

test("windows without requests stand between those that have some, and are empty", () => {
  const window = (at: number) => {
    const sums = { requests: 1, failed: 0, prompt_tokens: 1, cached_tokens: 1, completion_tokens: 1 };
    return { at, ...sums, ttft_ms: null, queue_ms: null };
  };
  const data = [window(600), window(660), window(840)];
  const all = filled({ data, resolution: "minute" });
  expect(all).toHaveLength(120);
  expect(all.slice(-5).map(({ at }) => at)).toEqual([600, 660, 720, 780, 840]);
  expect(all.slice(-6).map((each) => "requests" in each)).toEqual([false, true, true, false, false, true]);
  expect(filled({ data: [], resolution: "quarter_hour" })).toEqual([]);
});
