/**
 * Opens the records of what tenants did (stored responses, usage, counters, audit events) and the routes that show
 * them.
 */
import type { Hono } from "hono";
import type { Db } from "../../db/open.ts";
import { version } from "../../package.json";
import type { Log } from "../base/log.ts";
import { limits } from "../config.ts";
import { addUsageRoutes } from "../http/admin/usage.ts";
import { addAuditRoutes } from "../http/middleware/audit.ts";
import type { AppEnv } from "../http/transport/context.ts";
import { SpanExporter } from "../telemetry/exporter.ts";
import { Metrics } from "../telemetry/metrics.ts";
import { traceSettings } from "../telemetry/settings.ts";
import { Tracer } from "../telemetry/tracer.ts";
import { AuditLog } from "../tenant/audit.ts";
import type { TenantStorage } from "../tenant/storage.ts";
import { StoredResponses } from "../tenant/stored-responses.ts";
import { TokenBudgets } from "../tenant/token-budgets.ts";
import { UsageLedger } from "../tenant/usage.ts";

export type Records = ReturnType<typeof openRecords>;

/**
 * Call `stop` before the database is closed, since it writes what is still in memory.
 * @param env OpenTelemetry's variables, which say where traces are sent
 * @throws Error naming the variable that is invalid
 */
export function openRecords(
  db: Db,
  storage: TenantStorage,
  log: Log,
  env: Readonly<Record<string, string | undefined>> = {},
) {
  const stored = new StoredResponses(db, {
    retention: limits.storedResponses,
    keepMs: limits.storedResponses.keepMs,
    nowMs: Date.now,
    log,
    storage,
  });
  const audit = new AuditLog(db);
  const usage = new UsageLedger(db, log);
  const budgets = new TokenBudgets(usage);
  const addRoutes = (app: Hono<AppEnv>): void => {
    addAuditRoutes(app, { audit });
    addUsageRoutes(app, { usage });
  };
  const metrics = new Metrics(usage);
  const tracer = openTracer(env, log);
  const stop = async (): Promise<void> => {
    await stored.stop();
    usage.stop();
    await tracer?.stop();
  };
  return { stored, audit, usage, budgets, metrics, tracer, addRoutes, stop };
}

function openTracer(env: Readonly<Record<string, string | undefined>>, log: Log): Tracer | undefined {
  const settings = traceSettings(env);
  if (settings === undefined) return undefined;
  const { ratio, ...target } = settings;
  return new Tracer(new SpanExporter({ ...target, serviceVersion: version, log }), ratio);
}
