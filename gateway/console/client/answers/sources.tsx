/** Where the KV of an answer's fragments was from: a bar for each, by length and pattern, with the word beside it. */
import { count, counted, percent } from "../kit/format.ts";
import { Name } from "../kit/name.tsx";

export type Source = "computed" | "device" | "host" | "disk" | "s3";

export interface SpanReport {
  readonly id: string;
  readonly tokens: number;
  readonly source: Source;
  readonly cached_tokens: number;
}

/** How a source is drawn: what was in the pool, what was brought there, what was computed. */
export type SourceKind = "found" | "loaded" | "computed";
export const kindOf = (source: Source): SourceKind =>
  source === "computed" ? "computed" : source === "device" ? "found" : "loaded";

const places: Readonly<Record<Source, string>> = {
  computed: "computed",
  device: "found in the pool",
  host: "loaded from memory",
  disk: "loaded from files",
  s3: "loaded from the bucket",
};

interface SourcesProps {
  readonly spans: readonly SpanReport[];
  /** What a span is called; undefined: its id. */
  readonly nameOf?: (id: string) => string | undefined;
  /** Worker that answered. */
  readonly worker?: string;
}

/** A page does not grow without bound with what is searched. */
const mostBars = 64;

export function SourceBars({ spans, nameOf, worker = "" }: SourcesProps) {
  if (spans.length === 0) return <p class="soft">This prompt had no fragments.</p>;
  const longest = Math.max(...spans.map(({ tokens }) => tokens), 1);
  const all = spans.reduce((sum, { tokens }) => sum + tokens, 0);
  const cached = spans.reduce((sum, { cached_tokens: known }) => sum + known, 0);
  return (
    <>
      <p>
        {counted(spans.length, "fragment")}, {counted(all, "token")}, {percent(all === 0 ? 0 : cached / all)} not
        computed again
        {worker !== "" && ` (${worker})`}
      </p>
      <ul class="source-bars">
        {spans.slice(0, mostBars).map((span) => (
          <li key={span.id}>
            <Name text={nameOf?.(span.id) ?? span.id} />
            <span class={`source-bar ${kindOf(span.source)}`} style={{ width: `${(span.tokens / longest) * 100}%` }} />
            <span class="soft">
              {counted(span.tokens, "token")}, {places[span.source]}
            </span>
          </li>
        ))}
      </ul>
      {spans.length > mostBars && <p class="soft">and {count(spans.length - mostBars)} more</p>}
      <SourceLegend />
    </>
  );
}

export const SourceLegend = () => (
  <p class="source-legend soft">
    {(["found", "loaded", "computed"] as const).map((kind) => (
      <span key={kind}>
        <span class={`source-bar ${kind}`} /> {kind}
      </span>
    ))}
  </p>
);
