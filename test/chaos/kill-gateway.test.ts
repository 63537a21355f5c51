import { expect, test } from "bun:test";
import { effort } from "../support/effort.ts";
import { killGateways } from "./kill-gateway.ts";

/** Every fifth kill comes while the server starts; every third of the others while a backup is made. */
const times = effort(5, 100);

test(
  "kill -9 of the gateway in ingestion: nothing acknowledged is lost, and backups are whole",
  async () => {
    const report = await killGateways({ times, say: () => undefined });
    expect(report.faults).toEqual([]);
    // Each life but those that end while the server starts.
    expect(report.uploaded).toBeGreaterThanOrEqual(times - report.killsAtStart);
    expect(report.backups + report.backupsKilled).toBe(Math.floor(times / 3) - Math.floor(times / 15));
    expect(report.killsAtStart).toBe(Math.floor(times / 5));
  },
  effort(120_000, 3_600_000),
);
