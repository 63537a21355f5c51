/**
 * The console's cookie as another way to say the API key. It counts only where no other page can have made the request:
 * with a header that only script of this origin may set, sent by this origin as browsers tell it, to an address of ours.
 * The last rule is against DNS rebinding, by which a page's own host name comes to mean this machine.
 */
import type { Context } from "hono";
import { getCookie } from "hono/cookie";
import { ApiError } from "../../base/errors.ts";
import type { Sessions } from "../../tenant/sessions.ts";
import type { AppEnv } from "../transport/context.ts";

/** Every request of the console has it. Pages of other origins would have to ask first, and are refused. */
export const consoleHeader = "x-spangate-console";

export interface ConsoleDoor {
  readonly sessions: Sessions;
  /** Where browsers find this server over TLS; undefined: at loopback addresses alone. */
  readonly publicUrl: string | undefined;
}

interface Address {
  /** `https://spangate.example.com`, `http://127.0.0.1:8080`. */
  readonly origin: string;
  readonly cookieName: string;
  /** The cookie goes over TLS alone. */
  readonly secure: boolean;
}

const loopback = /^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])$/;

/** The address that a request was sent to, if the console may sign in there. */
export function consoleAddress(context: Context<AppEnv>, publicUrl: string | undefined): Address | undefined {
  const { host, hostname, port } = new URL(context.req.url);
  if (publicUrl !== undefined && host === new URL(publicUrl).host) {
    return { origin: publicUrl, cookieName: "__Host-spangate-session", secure: true };
  }
  if (!loopback.test(hostname)) return undefined;
  // Cookies are shared by all ports of a host: servers beside each other each have their own.
  return { origin: `http://${host}`, cookieName: `spangate-session-${port || "80"}`, secure: false };
}

/**
 * For requests that a session is begun by, or that it counts for.
 * @throws ApiError console_address, not_from_console
 */
export function requireConsole(context: Context<AppEnv>, publicUrl: string | undefined): Address {
  const address = consoleAddress(context, publicUrl);
  if (address === undefined) throw new ApiError("console_address");
  const site = context.req.header("sec-fetch-site");
  const isOwn = site === undefined ? context.req.header("origin") === address.origin : site === "same-origin";
  if (context.req.header(consoleHeader) !== "1" || !isOwn) throw new ApiError("not_from_console");
  return address;
}

/** What the cookie of a request stands for. undefined: it has none. @throws ApiError as `requireConsole` does, session_ended */
export function sessionOf(context: Context<AppEnv>, { sessions, publicUrl }: ConsoleDoor) {
  // Most requests are those of other clients.
  if (!context.req.header("cookie")?.includes("spangate-session")) return undefined;
  const name = consoleAddress(context, publicUrl)?.cookieName;
  const token = name === undefined ? undefined : getCookie(context, name);
  if (token === undefined) return undefined;
  requireConsole(context, publicUrl);
  const found = sessions.find(token);
  if (found === undefined) throw new ApiError("session_ended");
  return { ...found, token };
}
