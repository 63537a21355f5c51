/** Where the server is and who is asking: flags first, then the environment, then what `serve --dev` left. */
import type { HttpClientOptions } from "../../client/http-client.ts";
import { type DevAccess, readDevAccess } from "../../settings/dev-access.ts";
import { HttpClient } from "./client.ts";
import { type CommandInput, UsageError } from "./command.ts";

const defaultUrl = "http://127.0.0.1:8080";

/** @param role "platform" prefers SPANGATE_ADMIN_KEY, the key that the server's first start was given. */
export function connect(input: CommandInput, role: "tenant" | "platform" = "tenant"): HttpClient {
  return new HttpClient(serverOf(input, role));
}

/** @throws UsageError without an API key */
export function serverOf(input: CommandInput, role: "tenant" | "platform" = "tenant"): HttpClientOptions {
  const { SPANGATE_ADMIN_KEY: adminKey, SPANGATE_API_KEY: tenantKey } = process.env;
  const apiKey = input.text("api-key") || (role === "platform" && adminKey) || tenantKey;
  const url = input.text("url") || process.env.SPANGATE_URL;
  if (apiKey) return { url: url ?? devAccess()?.url ?? defaultUrl, apiKey };
  const dev = devAccess();
  // The keys are for that server alone.
  if (dev !== undefined && (url === undefined || url === dev.url)) {
    const { url: devUrl, apiKey: tenants, adminKey: platforms = tenants } = dev;
    return { url: devUrl, apiKey: role === "platform" ? platforms : tenants };
  }
  const variable = role === "platform" ? "SPANGATE_ADMIN_KEY" : "SPANGATE_API_KEY";
  throw new UsageError(`no API key: pass --api-key, set ${variable}, or start the server with "spangate serve --dev"`);
}

export const urlOf = (input: CommandInput): string =>
  (input.text("url") || process.env.SPANGATE_URL || devAccess()?.url) ?? defaultUrl;

const devAccess = (): DevAccess | undefined => readDevAccess(process.env.SPANGATE_DATA || ".spangate");

/** The one positional argument that a command wants. @throws UsageError naming it. */
export function onlyPositional(input: CommandInput, name: string): string {
  const [value, extra] = input.positionals;
  if (value === undefined) throw new UsageError(`${name} is missing`);
  if (extra !== undefined) throw new UsageError(`unexpected argument "${extra}"`);
  return value;
}

export function requiredText(input: CommandInput, flag: string): string {
  const value = input.text(flag);
  if (!value) throw new UsageError(`--${flag} is missing`);
  return value;
}
