/** The workers: what they run, how full their KV pools are, and why one is not there. */
import { bytes, count, nothing } from "../kit/format.ts";
import { Badge, Figures, Loaded, Page as PageFrame, type Tone } from "../kit/parts.tsx";
import { useGet } from "../kit/resource.ts";
import { type Column, Table } from "../kit/table.tsx";

interface Worker {
  readonly id: string;
  readonly device: string;
  readonly state: string;
  readonly pid: number | null;
  readonly restarts: number;
  readonly failure: string | null;
  readonly in_flight_requests: number;
  readonly pending_tokens: number;
  readonly model: string | null;
  readonly backend: string | null;
  readonly block_count: number | null;
  readonly kv_bytes_per_block: number | null;
  readonly stats: {
    readonly usedBlocks: number;
    readonly cachedBlocks: number;
    readonly waitingRequests: number;
    readonly preemptions: number;
    readonly hitTokens: number;
    readonly queriedTokens: number;
  } | null;
}

const tones: Readonly<Record<string, Tone>> = { ready: "good", failed: "bad", lost: "bad" };

/** Blocks that cannot be given to others now, and those that hold KV which is still found, of all there are. */
function Pool({ stats, block_count: all }: Worker) {
  if (stats === null || all === null || all === 0) return <>{nothing}</>;
  const [used, held] = [stats.usedBlocks / all, stats.cachedBlocks / all];
  const text = `${count(stats.usedBlocks)} in use, ${count(stats.cachedBlocks)} kept, of ${count(all)} blocks`;
  return (
    <span class="pool-meter" title={text}>
      <meter min={0} max={1} value={Math.max(used, held)} aria-label={`KV pool: ${text}`} />{" "}
      {count(Math.max(stats.usedBlocks, stats.cachedBlocks))} of {count(all)}
    </span>
  );
}

const columns: readonly Column<Worker>[] = [
  { title: "Worker", width: 1.2, cell: ({ id }) => <code>{id}</code> },
  { title: "Device", cell: ({ device, backend }) => <span title={backend ?? ""}>{device}</span> },
  {
    title: "State",
    width: 1.4,
    cell: ({ state, failure }) => (
      <>
        <Badge tone={tones[state] ?? "warn"}>{state}</Badge> {failure}
      </>
    ),
  },
  { title: "Requests", isNumber: true, cell: (worker) => count(worker.in_flight_requests) },
  { title: "Tokens to come", isNumber: true, width: 1.6, cell: (worker) => count(worker.pending_tokens) },
  { title: "KV pool (blocks)", width: 2.4, cell: (worker) => <Pool {...worker} /> },
  { title: "Restarts", isNumber: true, cell: ({ restarts }) => count(restarts) },
  { title: "Preemptions", isNumber: true, width: 1.3, cell: ({ stats }) => count(stats?.preemptions) },
];

const refreshMs = 2_000;

export function Page() {
  const workers = useGet<{ readonly data: readonly Worker[] }>("/admin/v1/workers", undefined, { everyMs: refreshMs });
  return (
    <PageFrame title="Workers" about="A process for each device. What they hold and run, anew every two seconds.">
      <Loaded resource={workers}>
        {({ data }) => (
          <>
            <Figures figures={figuresOf(data)} />
            <Table title="Workers" columns={columns} rows={data} keyOf={({ id }) => id} empty="There is no worker." />
          </>
        )}
      </Loaded>
    </PageFrame>
  );
}

function figuresOf(workers: readonly Worker[]) {
  const sum = (of: (worker: Worker) => number | undefined): number =>
    workers.reduce((all, worker) => all + (of(worker) ?? 0), 0);
  const [hit, asked] = [sum(({ stats }) => stats?.hitTokens), sum(({ stats }) => stats?.queriedTokens)];
  const perBlock = (worker: Worker): number => worker.kv_bytes_per_block ?? 0;
  return [
    { label: "Model", value: workers.find(({ model }) => model !== null)?.model ?? nothing },
    { label: "Ready", value: `${workers.filter(({ state }) => state === "ready").length} of ${workers.length}` },
    { label: "Running", value: count(sum((worker) => worker.in_flight_requests)) },
    {
      label: "Prompt tokens found",
      value: asked === 0 ? nothing : `${((hit / asked) * 100).toFixed(1)} %`,
      note: `of ${count(asked)}`,
    },
    {
      label: "KV kept",
      value: bytes(sum((worker) => (worker.stats?.cachedBlocks ?? 0) * perBlock(worker))),
      note: `of ${bytes(sum((worker) => (worker.block_count ?? 0) * perBlock(worker)))}`,
    },
  ];
}
