/** A server's worker as /admin/v1/workers shows it. */
import { CommandError } from "../../../gateway/cli/command.ts";
import type { WorkerStats } from "../../../worker/contract/messages.ts";
import { blockCountForTokens } from "../../../worker/contract/units.ts";
import { startTestServer, type TestServer } from "../../support/server.ts";

interface WorkersAnswer {
  readonly data: readonly {
    readonly block_tokens: number | null;
    readonly kv_bytes_per_block: number | null;
    readonly stats: WorkerStats | null;
  }[];
}

async function worker(server: TestServer) {
  const { data } = await server.admin.json<WorkersAnswer>("GET", "/admin/v1/workers");
  const [first] = data;
  if (first === undefined) throw new CommandError("the server tells of no worker");
  return first;
}

/** Counters once they stand still: the worker tells them every second or so. */
export async function workerCounters(server: TestServer): Promise<WorkerStats> {
  let previous = (await worker(server)).stats;
  for (let round = 0; round < 30; round++) {
    await Bun.sleep(2_500);
    const { stats } = await worker(server);
    if (stats !== null && stats.runningRequests === 0 && stats.computedTokens === previous?.computedTokens)
      return stats;
    previous = stats;
  }
  throw new CommandError("the worker's counters do not come to rest");
}

/** The default model, and SPANGATE_KV_BYTES for a pool of so many of its tokens. */
export async function poolOf(tokens: number): Promise<{ readonly model: string; readonly kvBytes: number }> {
  await using server = await startTestServer();
  const { block_tokens: blockTokens, kv_bytes_per_block: bytesPerBlock } = await worker(server);
  if (blockTokens === null || bytesPerBlock === null) throw new CommandError("the server does not tell its block size");
  return { model: server.model, kvBytes: blockCountForTokens(tokens, blockTokens) * bytesPerBlock };
}
