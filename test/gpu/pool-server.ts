/** What a server tells its operator about its workers, as the programs of this folder read it. */
import type { WorkerStats } from "../../worker/contract/messages.ts";
import type { TestServer } from "../support/server.ts";

export type PoolServer = TestServer;

export interface WorkerRow {
  readonly id: string;
  readonly device: string;
  readonly pid: number | null;
  readonly state: string;
  readonly restarts: number;
  readonly in_flight_requests: number;
  readonly keyed_blocks: number;
  readonly backend: string | null;
  readonly block_tokens: number | null;
  readonly block_count: number | null;
  readonly stats: WorkerStats | null;
}

export interface TenantCache {
  readonly tenant_id: string;
  readonly workers: readonly { readonly worker: string; readonly fragment_blocks: number }[];
}

export async function workersOf({ admin }: PoolServer): Promise<readonly WorkerRow[]> {
  return (await admin.json<{ data: WorkerRow[] }>("GET", "/admin/v1/workers")).data;
}

export async function cacheOf({ admin }: PoolServer, tenantId: string): Promise<TenantCache | undefined> {
  const { data } = await admin.json<{ data: TenantCache[] }>("GET", "/admin/v1/cache");
  return data.find(({ tenant_id: id }) => id === tenantId);
}

export async function metricsText({ url, adminKey }: PoolServer): Promise<string> {
  const answer = await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${adminKey}` } });
  return await answer.text();
}

export async function until(condition: () => Promise<boolean>, what: string, limitMs = 60_000): Promise<void> {
  const deadlineMs = performance.now() + limitMs;
  while (!(await condition())) {
    if (performance.now() > deadlineMs) throw new Error(`not within ${limitMs} ms: ${what}`);
    await Bun.sleep(20);
  }
}

export async function allReady(server: PoolServer, count: number): Promise<void> {
  const isReady = async (): Promise<boolean> =>
    (await workersOf(server)).filter(({ state }) => state === "ready").length === count;
  await until(isReady, "every worker is ready");
}
