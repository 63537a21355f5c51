/**
 * A line of the log for each request that has ended, a stream's when the stream has: who asked for what, how it was
 * answered, how long it took and how many tokens it used. It holds no content, and the route's pattern in place of the
 * path, which holds ids that callers choose.
 */
import type { Log } from "../../base/log.ts";
import type { Step } from "./steps.ts";

/** Requests that only ask how the server is would fill the log and the traces with themselves. */
export const isWork = (path: string): boolean => /^\/(v1|admin|mcp|tokenize|detokenize)\b/.test(path);

export function logRequests(log: Log, knownMethod: (method: string) => string): Step {
  return (context) => {
    const startMs = performance.now();
    return () => {
      const { req, res } = context;
      const callerRequestId = req
        .header("x-request-id")
        ?.replace(/[^\x21-\x7e]/g, "")
        .slice(0, 64);
      const fields = {
        requestId: context.get("requestId"),
        callerRequestId,
        method: knownMethod(req.method),
        route: req.routePath,
        tenant: context.get("principal")?.tenantId,
        status: res.status,
      };
      const write = (tokens: number | undefined): void =>
        log(isWork(req.path) ? "info" : "debug", "request", {
          ...fields,
          ms: Math.round(performance.now() - startMs),
          tokens,
        });
      const held = context.get("held");
      if (held === undefined) write(undefined);
      else held.whenEnded(write);
    };
  };
}
