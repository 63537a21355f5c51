/** The command line's clients. When a server refuses, or none answers, the error is one sentence. */
import { STATUS_CODES } from "node:http";
import type { ErrorBody } from "../../client/answers.ts";
import { type CallErrors, HttpClient as Client, type HttpClientOptions } from "../../client/http-client.ts";
import { CommandError } from "./command.ts";

/** An answer that is not 2xx, with the server's own words. */
export class HttpError extends CommandError {
  readonly status: number;
  readonly code: string;

  constructor(status: number, { code, type, message }: ErrorBody) {
    const known = code ?? type ?? STATUS_CODES[status] ?? "error";
    super(`the server answered ${status} (${known}): ${message}`);
    this.status = status;
    this.code = known;
  }
}

export const commandErrors: CallErrors = {
  refused: (status, body) => new HttpError(status, body),
  unreachable: (origin, cause) =>
    new CommandError(`no server answers at ${origin}; start one with "spangate serve"`, { cause }),
};

export class HttpClient extends Client {
  /** @throws CommandError when the URL is none */
  constructor(options: HttpClientOptions) {
    super(checked(options), commandErrors);
  }
}

export function checked(options: HttpClientOptions): HttpClientOptions {
  if (!URL.canParse(options.url)) throw new CommandError(`"${options.url}" is no URL`);
  return options;
}
