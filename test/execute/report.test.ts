/** Usage as the caller is told it: of the prompt that was read, whatever else the plan held. */
import { expect, test } from "bun:test";
import { asShown, TreeReport } from "../../gateway/execute/report.ts";
import type { EndEvent } from "../../gateway/generate/events.ts";

function endOf(promptTokens: number, cachedTokens: number, blend?: { copiedTokens: number; recomputedTokens: number }) {
  const usage = { promptTokens, completionTokens: 5, cachedTokens, cacheWriteTokens: 3 };
  const timings = { queueMs: 0, prefillMs: 0, ttftMs: 0 };
  const times = { queueMs: 0, firstTokenMs: 0, totalMs: 0 };
  const report = { type: "finished", reason: "stop", usage, timings, times, spans: [], workerId: "worker-0" } as const;
  const end: EndEvent = {
    type: "end",
    reason: "stop",
    completionTokens: 5,
    reasoningTokens: 0,
    report: blend ? { ...report, blend } : report,
  };
  return end;
}

const shown = (end: EndEvent, promptTokens: number) => asShown(end, promptTokens).report.usage;

test("a plan that holds what the prompt shows is told as it is", () => {
  expect(shown(endOf(90, 62), 90)).toEqual(endOf(90, 62).report.usage);
});

test("sources of copies are no part of the prompt; copies that stay are found, those computed again are not", () => {
  const end = endOf(152, 62, { copiedTokens: 62, recomputedTokens: 10 });
  expect(shown(end, 90)).toMatchObject({ promptTokens: 90, cachedTokens: 52 });
});

test("an input that is not shown counts only where it had to be computed", () => {
  expect(shown(endOf(140, 130), 100)).toMatchObject({ promptTokens: 100, cachedTokens: 90 });
  expect(shown(endOf(140, 0), 100)).toMatchObject({ promptTokens: 100, cachedTokens: 0 });
});

test("an output that is shown twice is found twice", () => {
  expect(shown(endOf(80, 60), 110)).toMatchObject({ promptTokens: 110, cachedTokens: 90 });
});

test("a run that ends after all was counted is told of, and no other", () => {
  const late: EndEvent[] = [];
  const report = new TreeReport((end) => void late.push(end));
  const [first = 0, second = 0] = report.reserve(2);
  const generate = { path: "$", place: "$", index: 0 };
  report.outerEnded(first, { ...generate, end: endOf(90, 62) });
  const { ends, usage } = report.count();
  expect(ends).toHaveLength(1);
  expect(usage).toEqual({ promptTokens: 90, completionTokens: 5, cachedTokens: 62, cacheWriteTokens: 3 });
  expect(late).toEqual([]);
  report.outerEnded(second, { ...generate, end: endOf(40, 0) });
  expect(late.map(({ report: { usage: told } }) => told.promptTokens)).toEqual([40]);
});
