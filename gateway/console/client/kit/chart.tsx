/** Charts over time, drawn by uPlot; the same numbers stand below as a table, for whoever reads instead of looks. */
import { useSignalEffect } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import { ErrorNote } from "./parts.tsx";
import { isSystemDark, theme } from "./theme.ts";

export type ChartColor = "found" | "loaded" | "computed" | "accent" | "soft";

export interface ChartSeries {
  readonly label: string;
  readonly color: ChartColor;
  /** One for each time; null: nothing is known of it. */
  readonly values: readonly (number | null)[];
  /** A line of dashes, so that it is told from others without its colour. */
  readonly isDashed?: boolean;
}

export interface ChartProps {
  readonly title: string;
  /** Unix times in seconds, the earliest first. */
  readonly times: readonly number[];
  readonly series: readonly ChartSeries[];
  readonly format: (value: number | null) => string;
  readonly formatTime: (unixS: number) => string;
  /** Columns on top of each other, the first series at the bottom; lines unless said. */
  readonly isStacked?: boolean;
  /** In pixels. */
  readonly height?: number;
}

export function Chart(props: ChartProps) {
  const { title, times, series, format, formatTime, isStacked = false, height = 180 } = props;
  const box = useRef<HTMLDivElement>(null);
  const [failed, setFailed] = useState(false);
  const [colors, setColors] = useState(0);
  useSignalEffect(() => {
    // The colours of another theme are read anew.
    theme.value;
    isSystemDark.value;
    setColors((known) => known + 1);
  });
  const drawn = useMemo(() => JSON.stringify([times, series, isStacked, height]), [times, series, isStacked, height]);
  useEffect(() => {
    const { current } = box;
    if (current === null) return;
    let chart: uPlot | undefined;
    let isGone = false;
    const observer = new ResizeObserver(() => chart?.setSize({ width: current.clientWidth, height }));
    import("uplot").then(
      ({ default: Plot }) => {
        if (isGone) return;
        chart = new Plot(optionsOf(Plot, current, props), dataOf(props), current);
        observer.observe(current);
      },
      () => setFailed(true),
    );
    return () => {
      isGone = true;
      observer.disconnect();
      chart?.destroy();
    };
    // Functions of the props are new with each rendering, and what they do is not.
  }, [drawn, colors]);
  return (
    <figure class="chart">
      {failed && <ErrorNote message="The chart could not be loaded." />}
      <div
        ref={box}
        role="img"
        aria-label={`${title}: the numbers are in the table below`}
        style={{ minHeight: `${height}px` }}
      />
      <figcaption>
        {series.map(({ label, color, isDashed }) => (
          <span key={label}>
            <i class={`swatch ${color} ${isDashed ? "dashed" : ""}`} /> {label}
          </span>
        ))}
      </figcaption>
      <details>
        <summary>{title} as a table</summary>
        <table class="plain">
          <thead>
            <tr>
              <th scope="col">Time</th>
              {series.map(({ label }) => (
                <th key={label} scope="col" class="number">
                  {label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {times.map((time, at) => (
              <tr key={time}>
                <th scope="row">{formatTime(time)}</th>
                {series.map(({ label, values }) => (
                  <td key={label} class="number">
                    {format(values[at] ?? null)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}

/** Sums of a stack are drawn from the highest on, so that each column shows its own part alone. */
function dataOf({ times, series, isStacked }: ChartProps): uPlot.AlignedData {
  if (!isStacked) return [[...times], ...series.map(({ values }) => [...values])];
  const sums = times.map(() => 0);
  const stacked = series.map(({ values }) =>
    times.map((_, at) => {
      sums[at] = (sums[at] ?? 0) + (values[at] ?? 0);
      return sums[at];
    }),
  );
  return [[...times], ...stacked.toReversed()];
}

function optionsOf(Plot: typeof uPlot, box: HTMLElement, props: ChartProps): uPlot.Options {
  const { series, format, formatTime, isStacked, height = 180 } = props;
  const [text, line] = [colorOf(box, "--soft"), colorOf(box, "--line")];
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const bars = Plot.paths.bars?.({ size: [0.7, 40] });
  const drawn = series.map(({ label, color, isDashed }): uPlot.Series => {
    const stroke = colorOf(box, `--${color}`);
    if (isStacked)
      return { label, stroke, fill: stroke, width: 0, points: { show: false }, ...(bars && { paths: bars }) };
    const points = { show: false, size: 6, fill: stroke, filter: lonelyPoints };
    return { label, stroke, width: 2, points, ...(isDashed && { dash: [6, 4] }) };
  });
  return {
    ...{ width: box.clientWidth, height, legend: { show: false }, cursor: { show: false } },
    // Days stand beside each other with room for a column each.
    scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
    axes: [
      { ...axis, values: (_plot, marks) => marks.map(formatTime), space: 90 },
      { ...axis, values: (_plot, marks) => marks.map(format), size: 64 },
    ],
    series: [{}, ...(isStacked ? drawn.toReversed() : drawn)],
  };
}

/** Values without a neighbour, through which no line goes: they are drawn as points. */
function lonelyPoints({ data }: uPlot, seriesAt: number): number[] {
  const values = data[seriesAt] ?? [];
  const isThere = (at: number): boolean => values[at] !== null && values[at] !== undefined;
  return Array.from(values, (_, at) => at).filter((at) => isThere(at) && !isThere(at - 1) && !isThere(at + 1));
}

/** The colour that a variable of the style sheet has here, as a canvas takes it. */
function colorOf(box: HTMLElement, variable: string): string {
  box.style.color = `var(${variable})`;
  const { color } = getComputedStyle(box);
  box.style.color = "";
  return color;
}
