/** The command line's clients. When a server refuses, or none answers, the error is one sentence. */
import { STATUS_CODES } from "node:http";
import { commandLine } from "../../../places/places.ts";
import type { ErrorBody } from "../../client/answers.ts";
import { type CallErrors, HttpClient as Client, type HttpClientOptions } from "../../client/http-client.ts";
import { CommandError } from "./command.ts";

/** An answer that is not 2xx, with the server's own words. */
export class HttpError extends CommandError {
  readonly status: number;
  readonly code: string;

  /** @param keyFrom where the key is from that the server does not know, and how another is given */
  constructor(status: number, { code, type, message }: ErrorBody, keyFrom?: string) {
    const known = code ?? type ?? STATUS_CODES[status] ?? "error";
    const whose = status === 401 && keyFrom !== undefined ? ` (the key is ${keyFrom})` : "";
    super(`the server answered ${status} (${known}): ${message}${whose}`);
    this.status = status;
    this.code = known;
  }
}

/** Whom a command speaks to, with which key, and where that key is from. */
export interface ServerAccess extends HttpClientOptions {
  readonly keyFrom?: string;
}

export const commandErrors = ({ keyFrom }: ServerAccess): CallErrors => ({
  refused: (status, body) => new HttpError(status, body, keyFrom),
  unreachable: (origin, cause) =>
    new CommandError(`no server answers at ${origin}; ${remedyWithoutServer(origin)}`, { cause }),
});

const ownHosts: ReadonlySet<string> = new Set(["127.0.0.1", "localhost", "[::1]"]);

/** What to do when no server answers: one of this machine can be started, another's URL may be mistyped. */
export function remedyWithoutServer(url: string): string {
  if (ownHosts.has(new URL(url).hostname))
    return `start one with "${commandLine} serve --dev", or name another with --url`;
  return "is --url (or SPANGATE_URL) right?";
}

export class HttpClient extends Client {
  /** @throws CommandError when the URL is none of a server */
  constructor(access: ServerAccess) {
    super({ ...access, url: checkedUrl(access.url) }, commandErrors(access));
  }
}

export function checkedUrl(url: string): string {
  if (/^https?:$/.test(URL.parse(url)?.protocol ?? "")) return url;
  throw new CommandError(`"${url}" is no URL of a server, such as http://127.0.0.1:8080`);
}
