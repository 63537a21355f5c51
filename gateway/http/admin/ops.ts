/** GET /health, /ready, /metrics, /admin/v1/workers: for whoever operates the server. */
import type { Hono } from "hono";
import type { Dispatcher } from "../../dispatch/dispatcher.ts";
import type { Residency } from "../../dispatch/kv/residency.ts";
import type { Registry, WorkerRecord } from "../../dispatch/workers/registry.ts";
import { type Labels, type Metrics, renderSamples } from "../../telemetry/metrics.ts";
import { readyAnswer } from "../transport/answer-schemas.ts";
import type { AppEnv } from "../transport/context.ts";
import { declare } from "../transport/route.ts";
import { type TierBytes, tierMetrics } from "./tier-metrics.ts";

export interface OpsDeps {
  readonly registry: Registry;
  readonly residency: Residency;
  readonly dispatcher: Pick<Dispatcher, "stats">;
  readonly metrics: Metrics;
  /** KV outside the pools. */
  readonly tiers: () => readonly TierBytes[];
  /** `draining` from the moment the server begins to shut down, `warming` while a start reads ahead. */
  readonly state: { readonly draining: boolean; readonly warming: boolean };
}

/** What the routes do, for /openapi.json. */
const about = {
  health: { summary: "This process answers." },
  ready: {
    summary:
      "Whether requests can be served: 503 without a ready worker, up to a second longer while a start reads ahead what was kept, and while the server drains.",
    answer: readyAnswer,
  },
  metrics: { summary: "Metrics in Prometheus' text form.", answerTypes: ["text/plain"] },
  workers: { summary: "The workers and what they do." },
};

export function addOpsRoutes(app: Hono<AppEnv>, deps: OpsDeps): void {
  const { registry, state } = deps;
  // Alive: this process answers. Whether it can serve is /ready's business.
  declare(app, "GET /health", about.health, (context) => context.json({ status: "ok" }));
  declare(app, "GET /ready", about.ready, (context) => {
    const readyCount = registry.ready().length;
    const ready = readyCount > 0 && !state.warming && !state.draining;
    const workers = registry.list().map(({ id, state }) => ({ id, state }));
    const status = state.draining ? "draining" : ready ? "ready" : "not_ready";
    return context.json({ status, workers }, ready ? 200 : 503);
  });
  declare(app, "GET /metrics", about.metrics, (context) =>
    context.body(deps.metrics.render((name) => sharedLabels(name, registry)) + workerMetrics(deps), 200, {
      "content-type": "text/plain; version=0.0.4; charset=utf-8",
    }),
  );
  declare(app, "GET /admin/v1/workers", about.workers, (context) =>
    context.json({ object: "list", data: registry.list().map((worker) => describeWorker(worker, deps.residency)) }),
  );
}

function describeWorker(worker: WorkerRecord, residency: Residency) {
  const { id, device, state, pid, restarts, failure, inFlight, pendingTokens, card, stats } = worker;
  return {
    id,
    object: "worker",
    device,
    state,
    pid: pid ?? null,
    restarts,
    failure: failure ?? null,
    in_flight_requests: inFlight,
    pending_tokens: pendingTokens,
    keyed_blocks: residency.blockCount(id),
    model: card?.id ?? null,
    model_digest: card?.digest ?? null,
    numeric_mode: card?.numericMode ?? null,
    backend: card?.backend ?? null,
    block_tokens: card?.blockTokens ?? null,
    block_count: card?.blockCount ?? null,
    kv_bytes_per_block: card?.kvBytesPerBlock ?? null,
    stats: stats ?? null,
  };
}

/** vLLM's and LMCache's series name the model that is served, and dashboards made for them ask for it. */
function sharedLabels(name: string, registry: Registry): Labels {
  const card = /^(vllm|lmcache):/.test(name) ? registry.card() : undefined;
  return card === undefined ? {} : { model_name: card.id };
}

type WorkerMetric = readonly [
  name: string,
  type: "gauge" | "counter",
  help: string,
  value: (worker: WorkerRecord) => number | undefined,
];

const waitingName = "vllm:num_requests_waiting";
const poolName = "vllm:cache_config_info";
const workerMetricTable: readonly WorkerMetric[] = [
  ["vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", (w) => w.stats?.queriedTokens],
  ["vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", (w) => w.stats?.hitTokens],
  ["vllm:kv_cache_usage_perc", "gauge", "Part of the KV blocks in use, 0 to 1.", usedPart],
  ["vllm:num_requests_running", "gauge", "Requests that run.", (w) => w.stats?.runningRequests],
  [waitingName, "gauge", "Requests that wait: for a worker, or at one.", (w) => w.stats?.waitingRequests],
  ["vllm:num_preemptions_total", "counter", "Requests put back to be computed again.", (w) => w.stats?.preemptions],
  [
    "vllm:external_prefix_cache_queries_total",
    "counter",
    "Prompt tokens that the pool lacked, looked up in other tiers.",
    (w) => (w.stats?.tiers.length ? w.stats.lackedTokens : undefined),
  ],
  [
    "vllm:external_prefix_cache_hits_total",
    "counter",
    "Those of them that were brought from there.",
    (w) => (w.stats?.tiers.length ? w.stats.broughtTokens : undefined),
  ],
  ["spangate_computed_tokens_total", "counter", "Prompt tokens computed.", (w) => w.stats?.computedTokens],
  ["spangate_evicted_blocks_total", "counter", "KV blocks evicted.", (w) => w.stats?.evictedBlocks],
  ["spangate_cached_blocks", "gauge", "KV blocks held for reuse.", (w) => w.stats?.cachedBlocks],
  ["spangate_worker_steps_total", "counter", "Steps of the engine.", (w) => w.stats?.steps],
  ["spangate_worker_ready", "gauge", "1 when the worker serves.", (w) => (w.state === "ready" ? 1 : 0)],
  ["spangate_worker_restarts_total", "counter", "Times the worker was started again.", (w) => w.restarts],
];

function workerMetrics({ registry, residency, dispatcher, tiers }: OpsDeps): string {
  const workers = registry.list();
  const { running, unplaced } = dispatcher.stats();
  const ofWorkers = workerMetricTable.map(([name, type, help, read]) => {
    const shared = sharedLabels(name, registry);
    const samples = workers.flatMap((worker) => {
      const value = read(worker);
      return value === undefined ? [] : [{ labels: { ...shared, worker: worker.id }, value }];
    });
    // Requests without a worker wait as well: the sum over the series is all that waits.
    const elsewhere = name === waitingName ? [{ labels: shared, value: unplaced }] : [];
    return renderSamples(name, type, help, [...elsewhere, ...samples]);
  });
  const pools = workers.flatMap(({ id, card }) => {
    if (card === undefined) return [];
    const pool = { worker: id, block_size: String(card.blockTokens), num_gpu_blocks: String(card.blockCount) };
    return [{ labels: { ...sharedLabels(poolName, registry), ...pool }, value: 1 }];
  });
  const one = (value: number) => [{ labels: {}, value }];
  return [
    ...ofWorkers,
    tierMetrics(workers, [...hostUses(workers, residency), ...tiers()], (name) => sharedLabels(name, registry)),
    renderSamples(poolName, "gauge", "The KV pools, in labels: tokens a block, and blocks.", pools),
    renderSamples("spangate_requests_in_flight", "gauge", "Requests placed on workers.", one(running)),
    renderSamples("spangate_requests_unplaced", "gauge", "Requests that wait for a worker.", one(unplaced)),
    ...processMetrics().map(([name, type, help, value]) => renderSamples(name, type, help, one(value))),
  ].join("");
}

/** What lies in each worker's memory of the host. */
function hostUses(workers: readonly WorkerRecord[], residency: Residency): TierBytes[] {
  return workers.flatMap(({ id: worker, card }) => {
    if (card?.hostKv === undefined) return [];
    return { tier: "host", worker, bytes: residency.blockCount(worker, "host") * card.hostKv.bytesPerBlock };
  });
}

/** Figures of the gateway's process, under the names that every Prometheus client uses. */
function processMetrics() {
  const { user, system } = process.cpuUsage();
  const startedS = performance.timeOrigin / 1_000;
  return [
    ["process_resident_memory_bytes", "gauge", "Memory of the gateway's process.", process.memoryUsage.rss()],
    ["process_cpu_seconds_total", "counter", "CPU time of the gateway's process.", (user + system) / 1e6],
    ["process_start_time_seconds", "gauge", "When the gateway's process started, Unix time.", startedS],
  ] as const;
}

function usedPart({ stats, card }: WorkerRecord): number | undefined {
  if (stats === undefined || card === undefined || card.blockCount === 0) return undefined;
  return stats.usedBlocks / card.blockCount;
}
