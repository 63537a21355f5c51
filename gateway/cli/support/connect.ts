/** Where the server is and who is asking: flags first, then the environment, then what `serve --dev` left. */

import { commandLine } from "../../../places/places.ts";
import { type DevAccess, readDevAccess } from "../../settings/dev-access.ts";
import { checkedUrl, HttpClient, type ServerAccess } from "./client.ts";
import { type CommandInput, UsageError } from "./command.ts";

const defaultUrl = "http://127.0.0.1:8080";

/** @param role "platform" prefers SPANGATE_ADMIN_KEY, the key that the server's first start was given. */
export function connect(input: CommandInput, role: "tenant" | "platform" = "tenant"): HttpClient {
  return new HttpClient(serverOf(input, role));
}

/** @throws UsageError without an API key */
export function serverOf(input: CommandInput, role: "tenant" | "platform" = "tenant"): ServerAccess {
  const url = namedUrl(input);
  const given = givenKey(input, role);
  if (given !== undefined) return { url: url ?? devAccess()?.url ?? defaultUrl, ...given };
  const dev = devAccess();
  // The keys are for that server alone.
  if (dev !== undefined && (url === undefined || url === dev.url)) {
    const { url: devUrl, apiKey: tenants, adminKey: platforms = tenants } = dev;
    const keyFrom = `that of "serve --dev" in ${dataFolder()}; --api-key gives another`;
    return { url: devUrl, apiKey: role === "platform" ? platforms : tenants, keyFrom };
  }
  const variable = role === "platform" ? "SPANGATE_ADMIN_KEY" : "SPANGATE_API_KEY";
  const start = `start the server with "${commandLine} serve --dev"`;
  throw new UsageError(`no API key: pass --api-key, set ${variable}, or ${start}`);
}

/** The key that a flag or a variable gives. */
function givenKey(input: CommandInput, role: "tenant" | "platform"): { apiKey: string; keyFrom: string } | undefined {
  const flag = input.text("api-key");
  if (flag) return { apiKey: flag, keyFrom: "that of --api-key" };
  const variables = role === "platform" ? (["SPANGATE_ADMIN_KEY", "SPANGATE_API_KEY"] as const) : ["SPANGATE_API_KEY"];
  const variable = variables.find((name) => process.env[name]);
  const apiKey = variable === undefined ? undefined : process.env[variable];
  return apiKey ? { apiKey, keyFrom: `that of ${variable}; --api-key gives another` } : undefined;
}

const namedUrl = (input: CommandInput): string | undefined =>
  input.text("url") || process.env.SPANGATE_URL || undefined;

/** Whether somebody said where the server is. */
export const isServerNamed = (input: CommandInput): boolean => namedUrl(input) !== undefined;

/** @throws CommandError when it is none of a server */
export const urlOf = (input: CommandInput): string => checkedUrl(namedUrl(input) ?? devAccess()?.url ?? defaultUrl);

const dataFolder = (): string => process.env.SPANGATE_DATA || ".spangate";
const devAccess = (): DevAccess | undefined => readDevAccess(dataFolder());

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
