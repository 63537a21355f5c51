/** Calls of this server's API, as any client makes them; the session's cookie says the key. */
import { readSse, type SseEvent } from "../../../client/sse.ts";
import { sessionEnded } from "./session-ended.ts";

/** An answer that is an error, in the one shape that the API has for them. */
export class ApiFailure extends Error {
  override readonly name = "ApiFailure";
  /** HTTP status; 0: no answer came. */
  readonly status: number;
  readonly code: string;
  /** The field of the request that is wrong, as in `messages[0].content`. */
  readonly param: string | undefined;
  /** For whoever looks into the server's log. */
  readonly requestId: string | undefined;

  constructor(status: number, error: { message?: string; code?: string; param?: string | null }, requestId?: string) {
    super(error.message ?? "The server did not say what went wrong.");
    this.status = status;
    this.code = error.code ?? "unknown";
    this.param = error.param ?? undefined;
    this.requestId = requestId;
  }
}

export type Query = Readonly<Record<string, string | number | undefined>>;

export interface CallOptions {
  readonly query?: Query | undefined;
  /** Sent as JSON; a FormData is sent as it is, and a string as YAML. */
  readonly body?: unknown;
  readonly signal?: AbortSignal | undefined;
}

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** @returns the answer's JSON. @throws ApiFailure; AbortError when the signal says so */
export async function call<Answer>(method: Method, path: string, options: CallOptions = {}): Promise<Answer> {
  const response = await request(method, path, options);
  return (await response.json()) as Answer;
}

export const get = <Answer>(path: string, query?: Query, signal?: AbortSignal): Promise<Answer> =>
  call<Answer>("GET", path, { query, signal });

/** The events of an answer that streams. @throws ApiFailure */
export async function* stream(method: Method, path: string, options: CallOptions = {}): AsyncGenerator<SseEvent> {
  const response = await request(method, path, options);
  if (response.body !== null) yield* readSse(response.body);
}

/** The answer itself, for what is neither JSON nor a stream of events. @throws ApiFailure */
export async function request(method: Method, path: string, { query, body, signal }: CallOptions): Promise<Response> {
  const headers = new Headers({ "x-spangate-console": "1" });
  let payload: BodyInit | undefined;
  if (body instanceof FormData) payload = body;
  else if (typeof body === "string") {
    headers.set("content-type", "application/yaml");
    payload = body;
  } else if (body !== undefined) {
    headers.set("content-type", "application/json");
    payload = JSON.stringify(body);
  }
  const response = await fetch(path + queryText(query), {
    ...{ method, headers, credentials: "same-origin", cache: "no-store" },
    ...(payload !== undefined && { body: payload }),
    ...(signal !== undefined && { signal }),
  }).catch((error: unknown) => {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiFailure(0, { message: "The server does not answer.", code: "no_answer" });
  });
  if (response.ok) return response;
  const failure = await failureOf(response);
  // Signing in is refused with 401 too; there the message belongs beside the field.
  if (failure.status === 401 && !(method === "POST" && path === "/admin/v1/session")) sessionEnded(failure.message);
  throw failure;
}

function queryText(query: Query | undefined): string {
  const given = Object.entries(query ?? {}).filter(
    (entry): entry is [string, string | number] => entry[1] !== undefined,
  );
  return given.length === 0 ? "" : `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

async function failureOf(response: Response): Promise<ApiFailure> {
  const body: unknown = await response.json().catch(() => undefined);
  const error = typeof body === "object" && body !== null && "error" in body ? body.error : undefined;
  return new ApiFailure(response.status, error ?? {}, response.headers.get("x-request-id") ?? undefined);
}

/** What a failure says to whoever looks at the page. */
export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

export const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";
