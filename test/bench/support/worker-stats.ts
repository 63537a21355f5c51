/** What a server's worker counts, and the size of its pool. */
import { CommandError } from "../../../gateway/cli/support/command.ts";
import type { WorkerStats } from "../../../worker/contract/messages.ts";
import { blockCountForTokens } from "../../../worker/contract/units.ts";
import { firstWorkerOf } from "../../support/operator.ts";
import { startTestServer, type TestServer, type TestServerOptions } from "../../support/server.ts";

/** Counters once they stand still: the worker tells them every second or so. */
export async function workerCounters(server: TestServer): Promise<WorkerStats> {
  let previous = (await firstWorkerOf(server)).stats;
  for (let round = 0; round < 30; round++) {
    await Bun.sleep(2_500);
    const { stats } = await firstWorkerOf(server);
    if (stats !== null && stats.runningRequests === 0 && stats.computedTokens === previous?.computedTokens)
      return stats;
    previous = stats;
  }
  throw new CommandError("the worker's counters do not come to rest");
}

/** The model of such a server, and SPANGATE_KV_BYTES for a pool of so many of its tokens. */
export async function poolOf(
  tokens: number,
  options: Pick<TestServerOptions, "env" | "model"> = {},
): Promise<{ readonly model: string; readonly kvBytes: number }> {
  await using server = await startTestServer(options);
  const { block_tokens: blockTokens, kv_bytes_per_block: bytesPerBlock } = await firstWorkerOf(server);
  return { model: server.model, kvBytes: blockCountForTokens(tokens, blockTokens) * bytesPerBlock };
}
