/** What is kept of what tenants did: stored responses, usage, counters and changes, and routes that show them. */
import type { Hono } from "hono";
import type { Db } from "../db/open.ts";
import { limits } from "./config.ts";
import { addAuditRoutes } from "./http/audit.ts";
import type { AppEnv } from "./http/auth.ts";
import { addUsageRoutes } from "./http/usage.ts";
import type { Log } from "./log.ts";
import { Metrics } from "./metrics.ts";
import { StoredResponses } from "./stored-responses.ts";
import { AuditLog } from "./tenant/audit.ts";
import { UsageLedger } from "./tenant/usage.ts";

export type Records = ReturnType<typeof openRecords>;

/** `stop` before the database is closed: it writes what is left. */
export function openRecords(db: Db, log: Log) {
  const stored = new StoredResponses(db, {
    perTenant: limits.storedResponses,
    keepMs: limits.storedResponseMs,
    nowMs: Date.now,
  });
  const audit = new AuditLog(db);
  const usage = new UsageLedger(db, log);
  const addRoutes = (app: Hono<AppEnv>): void => {
    addAuditRoutes(app, { audit });
    addUsageRoutes(app, { usage });
  };
  const metrics = new Metrics(usage);
  return { stored, audit, usage, metrics, addRoutes, stop: () => usage.stop() };
}
