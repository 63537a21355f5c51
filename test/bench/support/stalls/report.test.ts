/** What `bench stalls` holds its bars against. */
import { expect, test } from "bun:test";
import { figure } from "../stats.ts";
import type { Waits } from "./meter.ts";
import { reportOf, type StallResult } from "./report.ts";

const waits = (chatMs: number): Waits => ({ modelsMs: [1, 2], chatMs: [chatMs, chatMs, chatMs + 1], failures: [] });

const result = {
  ...{ route: "GET /v1/models", name: "the list", bodyBytes: 0, status: 200, refusal: "", answerMs: 1 },
  ...{ waitMs: 1, chatMs: 21, longestChatMs: 40, failures: [], growthMib: 0, keptMib: 0 },
} satisfies StallResult;

test.each([
  ["before", waits(7), waits(10)],
  ["after", waits(10), waits(7)],
])(
  "the chat is compared with the faster time alone, the one %s the requests, and both are told",
  (_, before, after) => {
    const findings = { results: [result], alone: { before, after }, uncovered: [], routeCount: 1, rounds: 1 };
    const { bars, notes = [], rows } = reportOf("demo", findings);
    expect(bars.find(({ name }) => name.startsWith("short chat"))?.value).toBe(3);
    expect(rows[0]?.slice(5, 7)).toEqual(["3.00", "5.01"]);
    for (const { chatMs } of [before, after]) expect(notes[1]).toContain(`and ${figure(chatMs[0] ?? 0)} ms (p99`);
  },
);
