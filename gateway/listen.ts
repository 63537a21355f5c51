/** The socket: Bun's server over the app. */
import { type Config, limits } from "./config.ts";
import type { AppEnv } from "./http/auth.ts";

/**
 * @param onFailure called before the error is thrown
 * @throws Error in one sentence for the operator
 */
export function listen(
  config: Config,
  fetch: (request: Request, env: AppEnv["Bindings"]) => Response | Promise<Response>,
  onFailure: () => void,
) {
  try {
    return Bun.serve({
      hostname: config.host,
      port: config.port,
      idleTimeout: limits.socketIdleS,
      maxRequestBodySize: limits.serverBodyBytes,
      fetch: (request, server) => fetch(request, { keepOpen: () => server.timeout(request, 0) }),
      error: () => new Response(null, { status: 500 }),
    });
  } catch (cause) {
    onFailure();
    const code = cause instanceof Error && "code" in cause ? cause.code : undefined;
    const where = `${config.host}:${config.port}`;
    if (code === "EADDRINUSE") {
      throw new Error(`${where} is in use; set SPANGATE_PORT to another port (0 takes any free one)`, { cause });
    }
    throw new Error(`cannot listen on ${where}`, { cause });
  }
}
