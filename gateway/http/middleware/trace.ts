/** A trace for each request that does work. */
import type { MiddlewareHandler } from "hono";
import type { Tracer } from "../../telemetry/tracer.ts";
import type { AppEnv } from "../transport/context.ts";

/** What only asks how the server is would fill the traces with itself. */
const isWork = (path: string): boolean => /^\/(v1|admin|tokenize|detokenize)\b/.test(path);

export function traceRequests(tracer: Tracer, knownMethod: (method: string) => string): MiddlewareHandler<AppEnv> {
  return async (context, next) => {
    if (!isWork(context.req.path)) return await next();
    await tracer.request(context.req.header("traceparent"), async (trace) => {
      await next();
      const method = knownMethod(context.req.method);
      // The route's pattern, never the path, which holds ids that callers choose.
      const route = context.req.routePath;
      const { status } = context.res;
      const attributes = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "spangate.request_id": context.get("requestId"),
      };
      trace?.describe(`${method} ${route}`, attributes, status >= 500);
    });
  };
}
