/** What the requests of `bench stalls` did to others, as lines, a table and bars. */
import { atLeast, atMost, type BenchReport } from "../../bench.ts";
import { figure, median, quantile } from "../stats.ts";
import type { Waits } from "./meter.ts";

const [waitBoundMs, largeWaitBoundMs, largeBodies] = [50, 100, 5];
const [chatBound, growthBoundMib] = [3, 64];
/** MiB of its growth that a process may still hold 10 s later, which it keeps for the next request of the kind. */
export const keptBoundMib = 16;

/** What one request did. */
export interface StallResult {
  readonly route: string;
  readonly name: string;
  readonly bodyBytes: number;
  readonly status: number;
  /** What the server says of a request that it refuses; how the ingestion of a file ended. */
  readonly refusal: string;
  readonly answerMs: number;
  /** What the other tenant saw: its longest wait for the models, and how long its chats took. */
  readonly waitMs: number;
  readonly chatMs: number;
  readonly longestChatMs: number;
  readonly failures: readonly string[];
  readonly growthMib: number;
  /** Held beyond what was held before, 10 s later at most. */
  readonly keptMib: number;
}

export const lineOf = ({
  route,
  name,
  bodyBytes,
  status,
  refusal,
  answerMs,
  waitMs,
  chatMs,
  longestChatMs,
  growthMib,
  keptMib,
}: StallResult): string =>
  [
    `${route}, ${name}: ${status || "given up"} after ${figure(answerMs)} ms, ${figure(bodyBytes / 1_000)} KB;`,
    `others waited ${figure(waitMs)} ms, chat ${figure(chatMs)} (longest ${figure(longestChatMs)}); grew ${figure(growthMib)} MiB, kept ${figure(keptMib)}`,
    refusal,
  ].join(" ");

/** Of each case, the worst of its rounds in each figure. */
export function worstOf(results: readonly StallResult[]): readonly StallResult[] {
  return [...Map.groupBy(results, ({ route, name }) => `${route} ${name}`).values()].map((rounds) => {
    const most = (field: "waitMs" | "chatMs" | "longestChatMs" | "growthMib" | "keptMib" | "answerMs") =>
      Math.max(...rounds.map((each) => each[field]));
    const [first] = rounds;
    if (first === undefined) throw new Error("a group has a member");
    return {
      ...first,
      status: Math.max(...rounds.map(({ status }) => status)),
      answerMs: most("answerMs"),
      waitMs: most("waitMs"),
      chatMs: most("chatMs"),
      longestChatMs: most("longestChatMs"),
      growthMib: most("growthMib"),
      keptMib: most("keptMib"),
      failures: rounds.flatMap(({ failures }) => failures),
    };
  });
}

/** What the other tenant saw before the first request and after the last one, when nothing else was asked. */
export interface Alone {
  readonly before: Waits;
  readonly after: Waits;
}

export interface StallFindings {
  readonly results: readonly StallResult[];
  readonly alone: Alone;
  readonly uncovered: readonly string[];
  readonly routeCount: number;
  readonly rounds: number;
}

export function reportOf(model: string, { results, alone, uncovered, routeCount, rounds }: StallFindings): BenchReport {
  const bySize = results.toSorted((a, b) => b.bodyBytes - a.bodyBytes);
  const longest = (list: readonly StallResult[]) => Math.max(0, ...list.map(({ waitMs }) => waitMs));
  // A server that has not yet compiled all of its code answers later than it will: the faster time counts.
  const usual = fasterOf(alone);
  const aloneChatMs = median(usual.chatMs);
  const chatRatio = ({ chatMs }: StallResult) => chatMs / aloneChatMs;
  const most = (field: "growthMib" | "keptMib") => Math.max(...results.map((each) => each[field]));
  const failures = results.flatMap((each) => each.failures.map((text) => `${each.route}, ${each.name}: ${text}`));
  const broken = results.filter(({ status }) => status >= 500 && status !== 503);
  return {
    model,
    header: [
      "route",
      "request",
      "KB",
      "answer",
      "others' wait ms",
      "chat / alone",
      "slowest chat / alone",
      "grew MiB",
      "kept MiB",
    ],
    rows: results
      .toSorted((a, b) => badness(b, aloneChatMs) - badness(a, aloneChatMs))
      .slice(0, 10)
      .map((each) => [
        each.route,
        each.name,
        figure(each.bodyBytes / 1_000),
        String(each.status || "given up"),
        figure(each.waitMs),
        figure(chatRatio(each)),
        figure(each.longestChatMs / quantile(usual.chatMs, 0.99)),
        figure(each.growthMib),
        figure(each.keptMib),
      ]),
    notes: [
      `The ten worst of ${results.length} requests to ${routeCount} routes, ${rounds} rounds, the worst of each figure. Alone the other tenant waits`,
      `${aloneText(alone.before)} before them, ${aloneText(alone.after)} after them; the faster median counts.`,
      "chat / alone: medians; slowest chat: over the p99 alone. Memory is the gateway's: at its peak, and 10 s later at most.",
      ...failures.slice(0, 10),
    ],
    bars: [
      atMost("routes without a case", uncovered.length, 0),
      atLeast("requests of the other tenant alone", usual.modelsMs.length, 100),
      atMost(
        `longest wait for the models, ms, the ${largeBodies} largest bodies`,
        longest(bySize.slice(0, largeBodies)),
        largeWaitBoundMs,
      ),
      atMost("longest wait for the models, ms, all others", longest(bySize.slice(largeBodies)), waitBoundMs),
      atMost(
        "short chat beside / alone, medians, of the worst request",
        Math.max(...results.map(chatRatio)),
        chatBound,
      ),
      atMost("growth of the process by one request, MiB", most("growthMib"), growthBoundMib),
      atMost("of it still held after 10 s, MiB", most("keptMib"), keptBoundMib),
      atMost("requests of the other tenant that failed", failures.length, 0),
      atMost("answers that are faults of the server", broken.length, 0),
    ],
    details: {
      alone: aloneFigures(usual),
      aloneBefore: aloneFigures(alone.before),
      aloneAfter: aloneFigures(alone.after),
      uncovered,
      failures: failures.slice(0, 100),
      cases: results.map(({ failures: _, ...each }) => each),
    },
  };
}

const fasterOf = ({ before, after }: Alone): Waits => (median(before.chatMs) <= median(after.chatMs) ? before : after);

const aloneFigures = ({ modelsMs, chatMs }: Waits) => ({
  modelsMs: median(modelsMs),
  chatMs: median(chatMs),
  chatP99Ms: quantile(chatMs, 0.99),
});

export const aloneText = ({ modelsMs, chatMs }: Waits): string =>
  `${figure(median(modelsMs))} ms (longest ${figure(quantile(modelsMs, 1))}) for the models and ${figure(median(chatMs))} ms (p99 ${figure(quantile(chatMs, 0.99))}) for a chat answer of 8 tokens`;

/** How far the worst of its figures is beyond its bar. */
const badness = ({ waitMs, chatMs, growthMib, keptMib }: StallResult, aloneChatMs: number): number =>
  Math.max(waitMs / waitBoundMs, chatMs / aloneChatMs / chatBound, growthMib / growthBoundMib, keptMib / keptBoundMib);
