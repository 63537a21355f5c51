/** HTTP with an API key over fetch: the one way in which clients and the command line talk to a server. */
import type { ErrorBody } from "./answers.ts";
import { readSse, type SseEvent } from "./sse.ts";

export interface HttpClientOptions {
  /** Origin, such as http://127.0.0.1:8080. */
  readonly url: string;
  /** "": requests carry no key. */
  readonly apiKey: string;
  /** Longest time of a call, streams included, in ms; 0 (the default): as long as the server takes. */
  readonly timeoutMs?: number;
}

export interface CallOptions {
  readonly signal?: AbortSignal;
  /** Instead of the client's. */
  readonly timeoutMs?: number;
}

/** What is thrown when a call fails. */
export interface CallErrors {
  /** The server's answer is not 2xx, or ended early. */
  refused(status: number, body: ErrorBody): Error;
  /** No server answers. Default: what fetch throws. */
  unreachable?(origin: string, cause: unknown): Error;
}

export interface Call {
  readonly method: string;
  readonly path: string;
  readonly body?: string | FormData | undefined;
  /** Absent for a form, which has its own. */
  readonly contentType?: string | undefined;
  readonly options?: CallOptions | undefined;
}

export class HttpClient {
  readonly #origin: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #timeoutMs: number;
  readonly #errors: CallErrors;

  /** @throws TypeError when the URL is none */
  constructor({ url, apiKey, timeoutMs = 0 }: HttpClientOptions, errors: CallErrors) {
    this.#origin = new URL(url).href.replace(/\/+$/, "");
    this.#headers = apiKey === "" ? {} : { authorization: `Bearer ${apiKey}` };
    this.#timeoutMs = timeoutMs;
    this.#errors = errors;
  }

  /** Sends JSON (or nothing), reads JSON. */
  async json<Answer>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
    return (await (await this.send(jsonCall(method, path, body, signal))).json()) as Answer;
  }

  /** Sends a form, as uploads are, reads JSON. */
  async upload<Answer>(path: string, form: FormData): Promise<Answer> {
    return (await (await this.send({ method: "POST", path, body: form })).json()) as Answer;
  }

  /** Server-sent events of an answer, until the server ends it. */
  async *events(method: string, path: string, body?: unknown, signal?: AbortSignal): AsyncGenerator<SseEvent> {
    yield* readSse(this.bodyOf(await this.send(jsonCall(method, path, body, signal))));
  }

  /** @returns an answer that is 2xx. @throws what the client's errors make of any other */
  async send({ method, path, body, contentType, options = {} }: Call): Promise<Response> {
    const { signal, timeoutMs = this.#timeoutMs } = options;
    const signals = [signal ?? [], timeoutMs > 0 ? AbortSignal.timeout(timeoutMs) : []].flat();
    const headers = contentType === undefined ? this.#headers : { ...this.#headers, "content-type": contentType };
    const init: RequestInit = { method, headers, signal: AbortSignal.any(signals) };
    if (body !== undefined) init.body = body;
    const response = await fetch(this.#origin + path, init).catch((error: unknown) => {
      if (signals.some(({ aborted }) => aborted)) throw error;
      throw this.#errors.unreachable?.(this.#origin, error) ?? error;
    });
    if (!response.ok) throw this.#errors.refused(response.status, await errorOf(response));
    return response;
  }

  bodyOf(response: Response): ReadableStream<Uint8Array> {
    if (response.body === null) throw this.endedEarly(response);
    return response.body;
  }

  endedEarly({ status }: Response): Error {
    return this.#errors.refused(status, { code: "stream_ended", message: "The answer ended before it was complete." });
  }
}

function jsonCall(method: string, path: string, body: unknown, signal: AbortSignal | undefined): Call {
  const options = signal === undefined ? {} : { signal };
  if (body === undefined) return { method, path, options };
  return { method, path, body: JSON.stringify(body), contentType: "application/json", options };
}

async function errorOf(response: Response): Promise<ErrorBody> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { readonly error?: ErrorBody };
    if (error !== undefined) return error;
  } catch {
    // Not the server's JSON: something in front of it answered, such as a proxy.
  }
  return { message: text.slice(0, 200) || response.statusText };
}
