/**
 * Opens the records of what tenants did (stored responses, usage, counters, audit events) and the routes that show
 * them.
 */
import type { Hono } from "hono";
import type { TenantId } from "../../db/ids.ts";
import type { Db } from "../../db/open.ts";
import { version } from "../../package.json";
import type { Log } from "../base/log.ts";
import { limits } from "../config.ts";
import { addUsageRoutes } from "../http/admin/usage.ts";
import { addAuditRoutes } from "../http/middleware/audit.ts";
import type { AppEnv } from "../http/transport/context.ts";
import type { EndedTrace } from "../telemetry/ended-trace.ts";
import { SpanExporter } from "../telemetry/exporter.ts";
import { Metrics } from "../telemetry/metrics.ts";
import { traceSettings } from "../telemetry/settings.ts";
import { TraceRing } from "../telemetry/trace-ring.ts";
import { TraceStats } from "../telemetry/trace-stats.ts";
import { type TraceOf, Tracer, type TracerSinks } from "../telemetry/tracer.ts";
import { AuditLog } from "../tenant/audit.ts";
import type { TenantStorage } from "../tenant/storage.ts";
import { StoredResponses } from "../tenant/stored-responses.ts";
import { TokenBudgets } from "../tenant/token-budgets.ts";
import { UsageLedger } from "../tenant/usage.ts";

export type Records = ReturnType<typeof openRecords>;

/**
 * Call `stop` before the database is closed, since it writes what is still in memory.
 * @param env OpenTelemetry's variables, which say where traces are sent
 * @param traceBytes memory for the traces that are kept here; 0: none are
 * @throws Error naming the variable that is invalid
 */
export function openRecords(
  db: Db,
  storage: TenantStorage,
  log: Log,
  env: Readonly<Record<string, string | undefined>> = {},
  traceBytes = 0,
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
  const { keep, ...kept } = openTraces(traceBytes);
  const tracer = openTracer(env, log, keep);
  const forget = (tenantId: TenantId): void => {
    // First what still runs: it would be kept when it ends.
    tracer?.forget(tenantId);
    kept.ring.forget(tenantId);
    kept.stats.forget(tenantId);
  };
  const traces = { ...kept, forget };
  const traceOf: TraceOf = (workId) => tracer?.of(workId);
  const stop = async (): Promise<void> => {
    await stored.stop();
    usage.stop();
    await tracer?.stop();
  };
  return { stored, audit, usage, budgets, metrics, traces, tracer, traceOf, addRoutes, stop };
}

/** The last requests and what they took; both stay empty where there is no memory for them. */
function openTraces(mostBytes: number) {
  const ring = new TraceRing({ tracesPerTenant: limits.tracesPerTenant, mostBytes });
  const stats = new TraceStats();
  const keep = (trace: EndedTrace): void => {
    ring.add(trace);
    stats.add(trace.head);
  };
  return { ring, stats, keep: mostBytes === 0 ? undefined : keep };
}

function openTracer(
  env: Readonly<Record<string, string | undefined>>,
  log: Log,
  keep: TracerSinks["keep"],
): Tracer | undefined {
  const settings = traceSettings(env);
  if (settings === undefined) return keep && new Tracer({ keep });
  const { ratio, ...target } = settings;
  return new Tracer({ exporter: new SpanExporter({ ...target, serviceVersion: version, log }), keep }, ratio);
}
