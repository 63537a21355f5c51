/** What a trace sums up of its runs. */
import { expect, test } from "bun:test";
import type { FinishedEvent } from "../../gateway/dispatch/request/request.ts";
import { TraceParts } from "../../gateway/telemetry/ended-trace.ts";

const facts = { requestId: "req_1", tenantId: "t", keyId: "k", method: "POST", route: "/v1", status: 200 };
const end = {
  ...{ type: "finished", reason: "length", workerId: "worker-0", spans: [] },
  usage: { promptTokens: 100, cachedTokens: 10, cacheWriteTokens: 0, completionTokens: 3 },
  timings: { queueMs: 0, prefillMs: 0, ttftMs: 0 },
} as unknown as FinishedEvent;

test("runs of one plan share its prompt, in whatever order they end; each plan counts once", () => {
  const parts = new TraceParts(0);
  const plans = [{}, {}, {}];
  for (const which of [0, 1, 0, 2, 1, 2, 0]) parts.ran(parts.beginRun(), plans[which] ?? {}, end, undefined);
  const { head } = parts.ended(1, facts);
  expect(head).toMatchObject({ runs: 7, promptTokens: 300, cachedTokens: 30, completionTokens: 21 });
});
