/**
 * Sends one line of a batch as a request to the server's own routes, so that every rule for callers holds for it too.
 */
import type { Id } from "../../db/ids.ts";
import type { BatchCaller, Principal } from "../tenant/principal.ts";
import { type BatchLine, messagesEndpoint } from "./lines.ts";
import { messageResult, unrunMessageResult } from "./message-results.ts";

/** Calls the server's HTTP app from inside the process. */
export type SendRequest = (request: Request, caller: BatchCaller) => Promise<Response>;

export interface LineResult {
  readonly isError: boolean;
  /** The line of JSON that goes into the output file or the error file. */
  readonly body: string;
  readonly inputTokens: number;
  readonly cachedTokens: number;
  readonly outputTokens: number;
}

export interface LineJob {
  readonly line: BatchLine;
  readonly endpoint: string;
  readonly principal: Principal;
  readonly resultId: Id<"batchRequest">;
  readonly signal: AbortSignal;
}

/** How a request ended. */
export interface Answered {
  /** The line's result. It is dropped if the line is tried again. */
  readonly result: LineResult;
  /** "refused": the server, or a limit of the caller, accepts no request now. "failed": the server had an error. */
  readonly kind: "refused" | "failed" | "answered";
  /** Milliseconds that the server asks to wait before the next try; 0 when it names no time. */
  readonly askedMs: number;
}

/** @returns undefined when the request was aborted */
export async function sendLine(send: SendRequest, job: LineJob): Promise<Answered | undefined> {
  const { line, endpoint, principal, signal } = job;
  if (signal.aborted) return undefined;
  const headers = { "content-type": "application/json" };
  const request = new Request(`http://batch${endpoint}`, { method: "POST", headers, body: line.body, signal });
  const requestId = `req_${crypto.randomUUID().replaceAll("-", "")}`;
  const response = await send(request, { principal, requestId });
  // One that was aborted is answered with nothing, which is no JSON.
  const text = await response.text();
  if (signal.aborted) return undefined;
  const answer: unknown = JSON.parse(text);
  // Waiting does not help here: only the tenant can free storage.
  const isOverQuota = (answer as { error?: { code?: unknown } } | null)?.error?.code === "quota_exceeded";
  const isRefused = (response.status === 429 && !isOverQuota) || response.status === 503;
  const kind = isRefused ? "refused" : response.status >= 500 ? "failed" : "answered";
  const askedMs = Number(response.headers.get("retry-after") ?? 0) * 1000;
  return { result: resultOf(job, response, answer), kind, askedMs: Number.isFinite(askedMs) ? askedMs : 0 };
}

/** The result of a line that was not run. */
export function unrunResult(
  { line, endpoint, resultId }: Pick<LineJob, "line" | "endpoint" | "resultId">,
  code: string,
  message: string,
): LineResult {
  const body =
    endpoint === messagesEndpoint
      ? unrunMessageResult(line, { code, message })
      : JSON.stringify({ id: resultId, custom_id: line.customId, response: null, error: { code, message } });
  return { isError: true, body, inputTokens: 0, cachedTokens: 0, outputTokens: 0 };
}

function resultOf({ line, endpoint, resultId }: LineJob, response: Response, answer: unknown): LineResult {
  const isError = !response.ok;
  if (endpoint === messagesEndpoint) {
    return { isError, body: messageResult(line, response.ok, answer), ...usageOf(answer) };
  }
  const requestId = response.headers.get("x-request-id");
  const body = JSON.stringify({
    id: resultId,
    custom_id: line.customId,
    response: { status_code: response.status, request_id: requestId, body: answer },
    error: null,
  });
  return { isError, body, ...usageOf(answer) };
}

interface Usage {
  readonly prompt_tokens?: number;
  readonly completion_tokens?: number;
  readonly prompt_tokens_details?: { readonly cached_tokens?: number };
  readonly input_tokens?: number;
  readonly output_tokens?: number;
  readonly input_tokens_details?: { readonly cached_tokens?: number };
  readonly cache_read_input_tokens?: number;
  readonly cache_creation_input_tokens?: number;
}

/**
 * The Responses API names these fields differently, and so does the Messages API, whose `input_tokens` leaves out
 * tokens that were found in the cache or written to it.
 */
function usageOf(answer: unknown): Pick<LineResult, "inputTokens" | "cachedTokens" | "outputTokens"> {
  const { usage = {} } = answer as { readonly usage?: Usage };
  const { cache_read_input_tokens: read = 0, cache_creation_input_tokens: written = 0 } = usage;
  return {
    inputTokens: (usage.prompt_tokens ?? usage.input_tokens ?? 0) + read + written,
    cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? usage.input_tokens_details?.cached_tokens ?? read,
    outputTokens: usage.completion_tokens ?? usage.output_tokens ?? 0,
  };
}
