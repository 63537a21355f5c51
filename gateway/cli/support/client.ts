/** The command line's only way to the server: HTTP with an API key, errors as one sentence. */

import { readSse, type SseEvent } from "../../client/sse.ts";
import { CommandError } from "./command.ts";

/** An answer that is not 2xx, with the server's own words. */
export class HttpError extends CommandError {
  readonly status: number;
  readonly code: string;

  constructor(status: number, code: string, message: string) {
    super(`the server answered ${status} (${code}): ${message}`);
    this.status = status;
    this.code = code;
  }
}

export interface HttpClientOptions {
  /** Origin, such as http://127.0.0.1:8080. */
  readonly url: string;
  readonly apiKey: string;
}

export class HttpClient {
  readonly #origin: string;
  readonly #headers: Readonly<Record<string, string>>;

  /** @throws CommandError when the URL is none. */
  constructor({ url, apiKey }: HttpClientOptions) {
    if (!URL.canParse(url)) throw new CommandError(`"${url}" is no URL`);
    this.#origin = url.replace(/\/+$/, "");
    this.#headers = apiKey === "" ? {} : { authorization: `Bearer ${apiKey}` };
  }

  /** Sends JSON (or nothing), reads JSON. @throws HttpError, CommandError when there is no server. */
  async json<Answer>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
    const response = await this.#send(method, path, body, signal);
    return (await response.json()) as Answer;
  }

  /** Multipart upload. */
  async upload<Answer>(path: string, form: FormData): Promise<Answer> {
    const response = await this.#send("POST", path, form);
    return (await response.json()) as Answer;
  }

  /** Server-sent events of an answer, until the server ends it. */
  async *events(method: string, path: string, body?: unknown, signal?: AbortSignal): AsyncGenerator<SseEvent> {
    const response = await this.#send(method, path, body, signal);
    if (response.body === null) throw new CommandError(`the server sent no stream for ${method} ${path}`);
    yield* readSse(response.body);
  }

  async #send(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
    const isForm = body instanceof FormData;
    const init: RequestInit = { method, headers: { ...this.#headers } };
    if (isForm) init.body = body;
    else if (body !== undefined) {
      init.body = JSON.stringify(body);
      init.headers = { ...this.#headers, "content-type": "application/json" };
    }
    if (signal) init.signal = signal;
    const response = await fetch(this.#origin + path, init).catch((error: unknown) => {
      if (signal?.aborted) throw error;
      throw new CommandError(`no server answers at ${this.#origin}; start one with "spangate serve"`, { cause: error });
    });
    if (!response.ok) throw await httpError(response);
    return response;
  }
}

async function httpError(response: Response): Promise<HttpError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: { code?: string; type?: string; message: string } };
    return new HttpError(response.status, error.code ?? error.type ?? "error", error.message);
  } catch {
    return new HttpError(response.status, response.statusText, text.slice(0, 200));
  }
}
