/** The socket: Bun's server over the app. */
import { restWhile } from "../base/pace.ts";
import { type Config, limits } from "../config.ts";
import type { AppEnv } from "./transport/context.ts";

type Fetch = (request: Request, env: AppEnv["Bindings"]) => Response | Promise<Response>;

/**
 * How long a socket may be silent. Bun counts neither a body's bytes nor a stream's as a sign of life, so while those
 * are on their way its own time-out is off, and whoever reads or writes them has one.
 */
export interface SocketTimes {
  /** Before a request, between two requests, and after a stream. */
  readonly idleS: number;
  /** While a whole answer goes out. */
  readonly answerS: number;
}

const usualTimes: SocketTimes = { idleS: limits.socketIdleS, answerS: limits.answerSendS };

/**
 * @param onFailure called before the error is thrown
 * @throws Error in one sentence for the operator
 */
export function listen(
  config: Pick<Config, "host" | "port">,
  fetch: Fetch,
  onFailure: () => void,
  times: SocketTimes = usualTimes,
) {
  try {
    const server = Bun.serve({
      hostname: config.host,
      port: config.port,
      idleTimeout: times.idleS,
      maxRequestBodySize: limits.serverBodyBytes,
      fetch: (request, server) =>
        answer(request, fetch, times, {
          setIdleS: (seconds) => server.timeout(request, seconds),
          address: () => server.requestIP(request)?.address ?? "",
        }),
      error: () => new Response(null, { status: 500 }),
    });
    restWhile(() => server.pendingRequests > 0);
    return server;
  } catch (cause) {
    onFailure();
    const code = cause instanceof Error && "code" in cause ? cause.code : undefined;
    const where = `${config.host}:${config.port}`;
    if (code === "EADDRINUSE") {
      throw new Error(`${where} is in use; set SPANGATE_PORT (--port) to another port (0 takes any free one)`, {
        cause,
      });
    }
    throw new Error(
      `cannot listen on ${where} (${code ?? "unknown"}); set SPANGATE_HOST (--host) and SPANGATE_PORT (--port)`,
      { cause },
    );
  }
}

interface Socket {
  /** 0: it may be silent for ever. */
  setIdleS(seconds: number): void;
  address(): string;
}

async function answer(
  request: Request,
  fetch: Fetch,
  { idleS, answerS }: SocketTimes,
  { setIdleS, address }: Socket,
): Promise<Response> {
  let isStream = false;
  const response = await fetch(request, {
    address,
    keepOpen: () => setIdleS(0),
    holdStream: () => {
      isStream = true;
      setIdleS(0);
      return () => setIdleS(idleS);
    },
  });
  if (!isStream) setIdleS(answerS);
  return response;
}
