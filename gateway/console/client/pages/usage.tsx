/** Tokens by day: how many, how many of them were found and not computed, and for whom. */
import { useState } from "preact/hooks";
import { csvText, saveFile } from "../administration/csv.ts";
import { tenantInView } from "../administration/tenant.tsx";
import { useTenantNames } from "../administration/tenant-names.ts";
import { get } from "../kit/api.ts";
import { Chart, type ChartSeries } from "../kit/chart.tsx";
import { Form, TextField, textOf } from "../kit/form.tsx";
import { count, dayText, percent, shortCount } from "../kit/format.ts";
import { Name } from "../kit/name.tsx";
import { Figures, Loaded, Page as PageFrame, Panel } from "../kit/parts.tsx";
import { useResource } from "../kit/resource.ts";
import { goTo, linkTo, route } from "../kit/router.ts";
import { type Column, Table } from "../kit/table.tsx";

interface Counts {
  readonly requests: number;
  readonly prompt_tokens: number;
  readonly cached_tokens: number;
  readonly completion_tokens: number;
  readonly embedding_tokens: number;
  readonly computed_tokens: number;
}

interface UsageDay extends Counts {
  readonly id: string;
  readonly day: string;
  readonly tenant_id: string;
}

interface Found {
  readonly rows: readonly UsageDay[];
  /** There are more rows than were asked for. */
  readonly isCut: boolean;
}

/** Pages of 100 rows: a year of 27 tenants. */
const mostPages = 100;

async function load(tenantId: string | undefined, range: Range, signal: AbortSignal): Promise<Found> {
  const rows: UsageDay[] = [];
  for (let page = 0; page < mostPages; page++) {
    const query = { tenant_id: tenantId, from: range.from, to: range.to, limit: 100, after: rows.at(-1)?.id };
    const answer = await get<{ readonly data: readonly UsageDay[]; readonly has_more: boolean }>(
      "/admin/v1/usage",
      query,
      signal,
    );
    rows.push(...answer.data);
    if (!answer.has_more) return { rows, isCut: false };
  }
  return { rows, isCut: true };
}

interface Range {
  readonly from: string;
  readonly to: string;
}

const dayMs = 86_400_000;
const isoDay = (unixMs: number): string => new Date(unixMs).toISOString().slice(0, 10);

export function Page() {
  const tenantId = tenantInView();
  const [range, setRange] = useState<Range>(() => ({ from: isoDay(Date.now() - 29 * dayMs), to: isoDay(Date.now()) }));
  const usage = useResource((signal) => load(tenantId, range, signal), [tenantId, range.from, range.to]);
  const save = ({ rows }: Found): void => saveFile(`usage-${range.from}-${range.to}.csv`, csvOf(rows));
  return (
    <PageFrame
      title="Usage"
      about="Tokens by day (UTC). What was found is KV that was there already: it was not computed again."
      actions={
        <button type="button" aria-disabled={usage.data === undefined} onClick={() => usage.data && save(usage.data)}>
          Save as CSV
        </button>
      }
    >
      <Filter range={range} onRange={setRange} />
      <Loaded resource={usage}>
        {(found) => <Shown found={found} range={range} isOfAll={tenantId === undefined} />}
      </Loaded>
    </PageFrame>
  );
}

function Filter({ range, onRange }: { readonly range: Range; readonly onRange: (range: Range) => void }) {
  const [tenantId] = route.value.rest;
  return (
    <Form
      submit="Show"
      isInline
      actions={
        tenantId !== undefined && (
          <button type="button" onClick={() => goTo(linkTo("usage"))}>
            Of all tenants
          </button>
        )
      }
      onSubmit={async (values) => onRange({ from: textOf(values, "from"), to: textOf(values, "to") })}
    >
      <TextField name="from" label="From" type="date" value={range.from} />
      <TextField name="to" label="To" type="date" value={range.to} />
    </Form>
  );
}

const columnsOf = (nameOf: (tenantId: string) => string): readonly Column<UsageDay>[] => [
  { title: "Day", width: 1.2, cell: ({ day }) => dayText(day) },
  {
    title: "Tenant",
    width: 2.2,
    cell: ({ tenant_id }) => (
      <a href={linkTo("usage", [tenant_id])}>
        <Name text={nameOf(tenant_id)} />
      </a>
    ),
  },
  { title: "Requests", isNumber: true, cell: ({ requests }) => count(requests) },
  { title: "Prompt", isNumber: true, cell: (row) => count(row.prompt_tokens) },
  { title: "Found", isNumber: true, cell: (row) => count(row.cached_tokens) },
  { title: "Answers", isNumber: true, cell: (row) => count(row.completion_tokens) },
  { title: "Embeddings", isNumber: true, width: 1.1, cell: (row) => count(row.embedding_tokens) },
  { title: "Computed", isNumber: true, cell: (row) => count(row.computed_tokens) },
];

interface ShownProps {
  readonly found: Found;
  readonly range: Range;
  readonly isOfAll: boolean;
}

function Shown({ found: { rows, isCut }, range, isOfAll }: ShownProps) {
  const nameOf = useTenantNames();
  const total = (field: keyof Counts): number => rows.reduce((sum, row) => sum + row[field], 0);
  const [prompt, cached] = [total("prompt_tokens"), total("cached_tokens")];
  const { times, series } = seriesOf(rows, range);
  return (
    <>
      <Figures
        figures={[
          { label: "Requests", value: count(total("requests")) },
          { label: "Prompt tokens", value: shortCount(prompt) },
          {
            label: "Found",
            value: prompt === 0 ? percent(undefined) : percent(cached / prompt),
            note: `${shortCount(cached)} saved`,
          },
          { label: "Answer tokens", value: shortCount(total("completion_tokens")) },
          { label: "Computed", value: shortCount(total("computed_tokens")), note: "of budgets" },
        ]}
      />
      {rows.length > 0 && (
        <Panel title={isOfAll ? "All tenants, by day" : "By day"}>
          <Chart
            title="Tokens by day"
            times={times}
            series={series}
            isStacked
            format={shortCount}
            formatTime={(unixS) => dayText(isoDay(unixS * 1_000))}
          />
        </Panel>
      )}
      {isCut && <p class="soft">There are more rows than these. Choose fewer days.</p>}
      <Table
        title="Usage by day and tenant"
        columns={columnsOf(nameOf)}
        rows={rows}
        keyOf={({ id }) => id}
        empty="Nothing was asked on these days."
      />
    </>
  );
}

/** A sum for each day of the range, those without a request too. */
function seriesOf(rows: readonly UsageDay[], { from, to }: Range) {
  const byDay = Map.groupBy(rows, ({ day }) => day);
  const first = Date.parse(from);
  const most = 366 * 10;
  const length = Math.min(most, Math.max(0, Math.round((Date.parse(to) - first) / dayMs) + 1)) || 0;
  const days = Array.from({ length }, (_, at) => isoDay(first + at * dayMs));
  const sumOf = (of: (row: UsageDay) => number): number[] =>
    days.map((day) => (byDay.get(day) ?? []).reduce((sum, row) => sum + of(row), 0));
  const series: readonly ChartSeries[] = [
    { label: "prompt tokens found", color: "found", values: sumOf((row) => row.cached_tokens) },
    {
      label: "prompt tokens computed",
      color: "computed",
      values: sumOf((row) => row.prompt_tokens - row.cached_tokens),
    },
    { label: "answer tokens", color: "loaded", values: sumOf((row) => row.completion_tokens) },
  ];
  return { times: days.map((day) => Date.parse(day) / 1_000), series };
}

const csvFields = [
  ...(["day", "tenant_id", "requests", "prompt_tokens", "cached_tokens"] as const),
  ...(["completion_tokens", "embedding_tokens", "computed_tokens"] as const),
];

const csvOf = (rows: readonly UsageDay[]): string =>
  csvText([csvFields, ...rows.map((row) => csvFields.map((field) => row[field]))]);
