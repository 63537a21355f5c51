/** How it goes: times to first tokens, what is found and computed, and the slowest requests with the way of each. */
import { useState } from "preact/hooks";
import { count, duration, percent, shortCount, time } from "../kit/format.ts";
import { Badge, Figures, Loaded, Page as PageFrame, Panel } from "../kit/parts.tsx";
import { useGet } from "../kit/resource.ts";
import { linkTo, route } from "../kit/router.ts";
import { may, roles } from "../kit/session.ts";
import { type Column, Table } from "../kit/table.tsx";
import type { Resolution, Stats } from "../traces/stats.ts";
import { StatsCharts } from "../traces/stats-charts.tsx";
import { foundPart, longestStage, stageName, type TraceHead } from "../traces/trace.ts";
import { TraceView } from "../traces/trace-view.tsx";

/** How often the page asks again, while somebody sees it. */
const everyMs = 5_000;

export function Page() {
  const [id] = route.value.rest;
  return id === undefined ? <Overview /> : <OneTrace id={id} />;
}

function OneTrace({ id }: { readonly id: string }) {
  return (
    <PageFrame
      title="Request"
      about="What one request spent its time on."
      actions={
        <a class="button" href={linkTo("overview")}>
          All requests
        </a>
      }
    >
      <TraceView id={id} key={id} />
    </PageFrame>
  );
}

function Overview() {
  const [resolution, setResolution] = useState<Resolution>("minute");
  const stats = useGet<Stats>("/admin/v1/stats", { resolution }, { everyMs });
  return (
    <PageFrame
      title="Overview"
      about={aboutOf(stats.data)}
      actions={
        <label class="corpus-choice">
          Time{" "}
          <select value={resolution} onChange={({ currentTarget: { value } }) => setResolution(value as Resolution)}>
            <option value="minute">the last two hours</option>
            <option value="quarter_hour">the last day</option>
          </select>
        </label>
      }
    >
      <Loaded resource={stats}>{(loaded) => <StatsParts stats={loaded} />}</Loaded>
      <Requests />
    </PageFrame>
  );
}

function aboutOf(stats: Stats | undefined): string {
  if (roles.value.includes("operator")) return "Requests of all tenants. Their texts are nowhere kept.";
  return stats?.covers === "recent" ? "The last requests of this key." : "Requests of your tenant.";
}

function StatsParts({ stats }: { readonly stats: Stats }) {
  const { total, now } = stats;
  const found = total.prompt_tokens === 0 ? null : total.cached_tokens / total.prompt_tokens;
  const queue =
    now === null
      ? {
          label: "Wait for a worker",
          value: duration(total.queue_ms?.p50),
          note: `p99 ${duration(total.queue_ms?.p99)}`,
        }
      : { label: "Waiting now", value: count(now.waiting_requests), note: `${count(now.running_requests)} running` };
  return (
    <>
      <Figures
        figures={[
          {
            label: "First token",
            value: duration(total.ttft_ms?.p50),
            note: `p99 ${duration(total.ttft_ms?.p99)}`,
          },
          { label: "Prompt found", value: percent(found), note: "of all prompt tokens" },
          { label: "Saved", value: shortCount(total.cached_tokens), note: "tokens not computed again" },
          queue,
          {
            label: "Requests",
            value: count(total.requests),
            note: total.failed === 0 ? "none failed" : `${count(total.failed)} failed`,
          },
        ]}
      />
      <StatsCharts stats={stats} />
    </>
  );
}

type Order = "slowest" | "newest";

function Requests() {
  const [order, setOrder] = useState<Order>("slowest");
  const traces = useGet<{ readonly data: readonly TraceHead[] }>("/admin/v1/traces", { order, limit: 50 }, { everyMs });
  return (
    <Panel
      title={order === "slowest" ? "Slowest requests" : "Latest requests"}
      actions={
        <button type="button" onClick={() => setOrder(order === "slowest" ? "newest" : "slowest")}>
          {order === "slowest" ? "Show the latest" : "Show the slowest"}
        </button>
      }
    >
      <Loaded resource={traces}>
        {({ data }) => (
          <Table
            title={order === "slowest" ? "Slowest requests" : "Latest requests"}
            columns={roles.value.includes("operator") ? [...columns, tenantColumn] : columns}
            rows={data}
            keyOf={({ id }) => id}
            empty={<NothingRan />}
          />
        )}
      </Loaded>
    </Panel>
  );
}

/** What somebody does who sees this for the first time. */
const NothingRan = () => (
  <>
    Nothing has run yet.{" "}
    {may("inference") && (
      <>
        <a href={linkTo("ask")}>Ask something</a>, and see here what the time went into.
      </>
    )}
    {may("platform:admin") && (
      <>
        <a href={linkTo("tenants")}>Make a tenant</a> and a key for it: what is asked with the key appears here.
      </>
    )}
  </>
);

const columns: readonly Column<TraceHead>[] = [
  {
    title: "When",
    width: 1.9,
    cell: ({ id, started_at }) => <a href={linkTo("overview", [id])}>{time(started_at)}</a>,
  },
  { title: "Took", isNumber: true, cell: ({ duration_ms }) => duration(duration_ms) },
  { title: "First token", isNumber: true, cell: ({ ttft_ms }) => duration(ttft_ms) },
  {
    title: "Longest in",
    width: 1.3,
    cell: (trace) => {
      const longest = longestStage(trace);
      return longest === undefined ? "" : `${stageName(longest[0])}, ${duration(longest[1])}`;
    },
  },
  { title: "Found", isNumber: true, width: 0.7, cell: (trace) => percent(foundPart(trace)) },
  {
    title: "Answer",
    width: 0.8,
    cell: ({ failed, status }) => <Badge tone={failed ? "bad" : "good"}>{failed ? `failed, ${status}` : status}</Badge>,
  },
  { title: "Route", width: 1.8, cell: ({ route: path }) => <code>{path}</code> },
];
const tenantColumn: Column<TraceHead> = {
  title: "Tenant",
  width: 1.6,
  cell: ({ tenant_id }) => <code>{tenant_id}</code>,
};
