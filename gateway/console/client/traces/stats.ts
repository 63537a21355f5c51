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

/** Seconds of a window, and how many are shown: two hours, a day. */
const shown: Readonly<Record<Resolution, readonly [windowS: number, windows: number]>> = {
  minute: [60, 120],
  quarter_hour: [900, 96],
};

/**
 * The windows up to the last that had a request, with those that had none, which the answer leaves out: a line over
 * them would say that something was measured there.
 */
export function filled({
  data,
  resolution,
}: Pick<Stats, "data" | "resolution">): readonly (StatsWindow | { at: number })[] {
  const [step, count] = shown[resolution];
  const last = data.at(-1);
  if (last === undefined) return [];
  const byTime = new Map(data.map((window) => [window.at, window]));
  return Array.from({ length: count }, (_, index) => {
    const at = last.at - (count - 1 - index) * step;
    return byTime.get(at) ?? { at };
  });
}
