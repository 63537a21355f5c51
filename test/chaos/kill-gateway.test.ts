import { expect, test } from "bun:test";
import { killGateways } from "./kill-gateway.ts";

test("kill -9 of the gateway in ingestion: nothing acknowledged is lost, and backups are whole", async () => {
  const report = await killGateways({ times: 6, say: () => undefined });
  expect(report.faults).toEqual([]);
  expect(report.uploaded).toBeGreaterThan(6);
  expect(report.backups + report.backupsKilled).toBe(2);
  expect(report.killsAtStart).toBe(1);
}, 120_000);
