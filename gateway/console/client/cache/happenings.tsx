/** What happens to KV, second by second. */
import { count } from "../kit/format.ts";
import { Badge, ErrorNote, Panel } from "../kit/parts.tsx";
import type { Happenings } from "./use-happenings.ts";

const clock = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });

interface HappeningListProps {
  readonly happenings: Happenings;
  /** What a tenant is called; absent: there is one alone, which need not be named. */
  readonly nameOf?: (tenantId: string) => string;
}

export function HappeningList({ happenings: { lines, isLive, error }, nameOf }: HappeningListProps) {
  return (
    <Panel title="What happens" actions={<Badge tone={isLive ? "good" : "warn"}>{isLive ? "live" : "not live"}</Badge>}>
      {error !== undefined && <ErrorNote message={error} />}
      {lines.length === 0 ? (
        <p class="soft">Blocks that are stored, evicted or pinned appear here within a second.</p>
      ) : (
        <section
          class="happenings"
          // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by keyboard.
          tabIndex={0}
          aria-label={`${count(lines.length)} events, the latest first`}
        >
          <ol>
            {lines.map(({ key, at, tenantId, place, text }) => (
              <li key={key}>
                <time>{clock.format(at * 1_000)}</time> {nameOf !== undefined && <strong>{nameOf(tenantId)}</strong>}{" "}
                {place !== "" && <span class="soft">{place}:</span>} {text}
              </li>
            ))}
          </ol>
        </section>
      )}
    </Panel>
  );
}
