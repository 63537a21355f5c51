/** Statistics as `GET /admin/v1/stats` gives them, as lines over time. */
export type Resolution = "minute" | "quarter_hour";

interface Quantiles {
  readonly p50: number;
  readonly p99: number;
}

export interface StatsSums {
  readonly requests: number;
  readonly failed: number;
  readonly prompt_tokens: number;
  readonly cached_tokens: number;
  readonly completion_tokens: number;
  readonly ttft_ms: Quantiles | null;
  readonly queue_ms: Quantiles | null;
}

export interface StatsWindow extends StatsSums {
  /** When it begins, Unix time in seconds. */
  readonly at: number;
}

export interface Stats {
  readonly resolution: Resolution;
  readonly covers: "all" | "recent";
  readonly data: readonly StatsWindow[];
  readonly total: StatsSums;
  readonly now: { readonly running_requests: number; readonly waiting_requests: number } | null;
}

const windowS: Readonly<Record<Resolution, number>> = { minute: 60, quarter_hour: 900 };

/**
 * The windows with those in between that had no request, which the answer leaves out: a line over them would say that
 * something was measured there.
 */
export function filled({
  data,
  resolution,
}: Pick<Stats, "data" | "resolution">): readonly (StatsWindow | { at: number })[] {
  const step = windowS[resolution];
  const [first, last] = [data[0], data.at(-1)];
  if (first === undefined || last === undefined) return [];
  const byTime = new Map(data.map((window) => [window.at, window]));
  const count = Math.round((last.at - first.at) / step) + 1;
  return Array.from({ length: count }, (_, index) => {
    const at = first.at + index * step;
    return byTime.get(at) ?? { at };
  });
}
