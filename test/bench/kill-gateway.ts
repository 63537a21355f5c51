/** The gateway is killed in ingestion, a hundred times on one data folder: what was lost. See test/chaos. */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { killGateways } from "../chaos/kill-gateway.ts";
import { atLeast, atMost, type Bench, type BenchContext, type BenchReport } from "./bench.ts";

const defaultTimes = 100;

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const times = Number(option("times") ?? defaultTimes);
  if (!Number.isInteger(times) || times < 1) throw new CommandError("--times is a whole number, 1 or more");
  const { faults, ...counts } = await killGateways({ times, say });
  return {
    model: "demo",
    header: ["", "count"],
    rows: [
      ["kills", String(counts.kills)],
      ["of those while the server started", String(counts.killsAtStart)],
      ["uploads acknowledged", String(counts.uploaded)],
      ["attachments acknowledged", String(counts.attached)],
      ["deletions acknowledged", String(counts.deleted)],
      ["backups made beside, restored and compared", String(counts.backups)],
      ["backups killed with the server", String(counts.backupsKilled)],
    ],
    notes: faults.slice(0, 20),
    bars: [
      atLeast("kills", counts.kills, times),
      atMost("acknowledged lost, deleted come back, shown by halves, integrity checks failed", faults.length, 0),
    ],
    details: counts,
  };
}

export const killGatewayBench: Bench = {
  name: "kill-gateway",
  summary: "kill -9 of the gateway in ingestion: nothing acknowledged is lost, the database and its backups are whole",
  options: { times: `N  kills (default ${defaultTimes})` },
  run,
};
