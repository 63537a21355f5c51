/** What a server tells its operator: its workers, whose KV they hold, its metrics. */
import type { WorkerStats } from "../../worker/contract/messages.ts";
import type { TestServer } from "./server.ts";
import { until } from "./until.ts";

export interface WorkerRow {
  readonly id: string;
  readonly device: string;
  readonly pid: number | null;
  readonly state: string;
  readonly restarts: number;
  readonly in_flight_requests: number;
  readonly keyed_blocks: number;
  /** These four are null before the worker was ready once. */
  readonly backend: string | null;
  readonly block_tokens: number | null;
  readonly block_count: number | null;
  readonly kv_bytes_per_block: number | null;
  readonly stats: WorkerStats | null;
}

export interface CachePart {
  readonly worker: string;
  readonly blocks: number;
  readonly fragment_blocks: number;
  readonly tokens: number;
  readonly bytes: number;
}

export interface TenantCache extends Omit<CachePart, "worker"> {
  readonly tenant_id: string;
  readonly pinned_blocks: number;
  readonly workers: readonly CachePart[];
}

export async function workersOf({ admin }: Pick<TestServer, "admin">): Promise<readonly WorkerRow[]> {
  return (await admin.json<{ data: WorkerRow[] }>("GET", "/admin/v1/workers")).data;
}

type PoolField = "block_tokens" | "block_count" | "kv_bytes_per_block";
export type ReadyWorker = Omit<WorkerRow, PoolField> & Readonly<Record<PoolField, number>>;

/** @throws Error when there is none, or it was never ready */
export async function firstWorkerOf(server: Pick<TestServer, "admin">): Promise<ReadyWorker> {
  const [worker] = await workersOf(server);
  if (worker === undefined) throw new Error("the server has no worker");
  const { block_tokens, block_count, kv_bytes_per_block } = worker;
  if (block_tokens === null || block_count === null || kv_bytes_per_block === null) {
    throw new Error(`${worker.id} was never ready`);
  }
  return { ...worker, block_tokens, block_count, kv_bytes_per_block };
}

/** Sends SIGKILL to the first worker with a process, or to the one of this id. @returns the process's pid */
export async function killWorker(server: Pick<TestServer, "admin">, id?: string): Promise<number> {
  const worker = (await workersOf(server)).find((row) => row.pid !== null && (id === undefined || row.id === id));
  if (worker?.pid == null) throw new Error("no such worker runs");
  process.kill(worker.pid, "SIGKILL");
  return worker.pid;
}

/** Waits until so many workers are ready. */
export async function allReady(server: Pick<TestServer, "admin">, count: number, limitMs = 60_000): Promise<void> {
  const isReady = async (): Promise<boolean> =>
    (await workersOf(server)).filter(({ state }) => state === "ready").length === count;
  await until(isReady, `${count} workers are ready`, limitMs);
}

/** What the workers hold of each tenant's KV. */
export async function cachesOf({ admin }: Pick<TestServer, "admin">): Promise<readonly TenantCache[]> {
  return (await admin.json<{ data: TenantCache[] }>("GET", "/admin/v1/cache")).data;
}

export async function cacheOf(server: Pick<TestServer, "admin">, tenantId: string): Promise<TenantCache | undefined> {
  return (await cachesOf(server)).find(({ tenant_id: id }) => id === tenantId);
}

/** Requests that are placed on workers; NaN when the metrics do not tell. */
export async function runningRequests(server: Pick<TestServer, "url" | "adminKey">): Promise<number> {
  const sample = /^spangate_requests_in_flight(?:\{[^}]*\})? (\d+)/m.exec(await metricsText(server));
  return Number(sample?.[1] ?? Number.NaN);
}

/** Prometheus' text format. */
export async function metricsText({ url, adminKey }: Pick<TestServer, "url" | "adminKey">): Promise<string> {
  const answer = await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${adminKey}` } });
  return await answer.text();
}
