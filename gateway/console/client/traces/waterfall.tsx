/**
 * The way of one request in time: a table of its stages, whose last column draws each as a bar from when it began to
 * when it ended. What the bars show stands beside them in numbers.
 */
import { duration } from "../kit/format.ts";
import { type Stage, stageMeaning, stageName, type Trace } from "./trace.ts";

/** Units of the drawing's width. */
const width = 1_000;
/** A stage that took next to nothing is still seen. */
const leastBar = 3;

export function Waterfall({ trace }: { readonly trace: Pick<Trace, "stages" | "duration_ms" | "left_out" | "runs"> }) {
  const { stages, duration_ms: all, left_out: leftOut, runs } = trace;
  if (stages.length === 0) return <p class="soft">Nothing of this request was measured.</p>;
  const ordered = stages.toSorted((a, b) => a.start_ms - b.start_ms);
  return (
    <section
      class="waterfall"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by keyboard.
      tabIndex={0}
      aria-label="Stages"
    >
      <table>
        <caption class="unseen-text">Stages of the request, in the order in which they began</caption>
        <thead>
          <tr>
            <th scope="col">Stage</th>
            <th scope="col" class="number">
              Began
            </th>
            <th scope="col" class="number">
              Took
            </th>
            <th scope="col" class="bars">
              <span class="unseen-text">As a bar</span>
              <span class="scale" aria-hidden="true">
                <span>0</span>
                <span>{duration(all / 2)}</span>
                <span>{duration(all)}</span>
              </span>
            </th>
          </tr>
        </thead>
        <tbody>
          {ordered.map((stage, index) => (
            <StageRow key={index} stage={stage} all={all} isOneRun={runs <= 1} />
          ))}
        </tbody>
      </table>
      {leftOut.stages > 0 && <p class="soft">and {leftOut.stages} more stages, which were not kept</p>}
    </section>
  );
}

interface StageRowProps {
  readonly stage: Stage;
  readonly all: number;
  readonly isOneRun: boolean;
}

function StageRow({ stage, all, isOneRun }: StageRowProps) {
  const { name, start_ms, duration_ms, run, failed } = stage;
  const scale = (ms: number): number => (all <= 0 ? 0 : (Math.min(ms, all) / all) * width);
  const from = Math.max(0, Math.min(scale(start_ms), width - leastBar));
  const length = Math.max(leastBar, Math.min(scale(duration_ms), width - from));
  return (
    <tr>
      <th scope="row" title={stageMeaning(name)}>
        {stageName(name)}
        {!isOneRun && run !== null && <span class="soft"> run {run + 1}</span>}
        {failed && <span class="failed"> failed</span>}
      </th>
      <td class="number">{duration(start_ms)}</td>
      <td class="number">{duration(duration_ms)}</td>
      <td class="bars">
        <svg viewBox={`0 0 ${width} 14`} preserveAspectRatio="none" aria-hidden="true">
          <rect class={`stage ${name} ${failed ? "failed" : ""}`} x={from} y="1" width={length} height="12" />
        </svg>
      </td>
    </tr>
  );
}
