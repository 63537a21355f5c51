/** Statistics as charts: times to the first token, and what became of prompt tokens. */
import { Chart } from "../kit/chart.tsx";
import { duration, shortCount } from "../kit/format.ts";
import { Panel } from "../kit/parts.tsx";
import { filled, type Stats, type StatsWindow } from "./stats.ts";

const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
/** A day at most is shown, so that the time of day says when. */
const clockText = (unixS: number): string => clock.format(unixS * 1_000);

export function StatsCharts({ stats }: { readonly stats: Stats }) {
  const windows = filled(stats);
  if (windows.length === 0) return <p class="soft">Nothing was asked in this time.</p>;
  const times = windows.map(({ at }) => at);
  const valuesOf = (read: (window: StatsWindow) => number | undefined): (number | null)[] =>
    windows.map((window) => ("requests" in window ? (read(window) ?? null) : null));
  return (
    <div class="columns">
      <Panel title="Time to first token">
        <Chart
          title="Time to first token"
          times={times}
          format={duration}
          formatTime={clockText}
          series={[
            { label: "half of the requests", color: "accent", values: valuesOf(({ ttft_ms }) => ttft_ms?.p50) },
            {
              ...{ label: "99 of 100", color: "computed", isDashed: true },
              values: valuesOf(({ ttft_ms }) => ttft_ms?.p99),
            },
          ]}
        />
      </Panel>
      <Panel title="Prompt tokens">
        <Chart
          title="Prompt tokens"
          times={times}
          format={shortCount}
          formatTime={clockText}
          isStacked
          series={[
            { label: "found", color: "found", values: valuesOf(({ cached_tokens }) => cached_tokens) },
            {
              ...{ label: "computed", color: "computed" },
              values: valuesOf(({ prompt_tokens, cached_tokens }) => prompt_tokens - cached_tokens),
            },
          ]}
        />
      </Panel>
    </div>
  );
}
