/** Errors as Anthropic's clients read them, on the routes that speak their API. */
import { type ApiError, errorBody } from "../../base/errors.ts";

export const speaksAnthropic = (path: string): boolean => path === "/v1/messages" || path.startsWith("/v1/messages/");

/** Error types that Anthropic's API calls by another word. */
const typesByStatus: Readonly<Partial<Record<ApiError["status"], string>>> = {
  408: "timeout_error",
  413: "request_too_large",
  500: "api_error",
  504: "timeout_error",
  507: "api_error",
};

/** Their client's tool runner asks for a conversation that the server holds, and goes on without one when told so. */
const noThreads = { error_code: "thread_unsupported_request", param: "thread", unsupported: ["thread"] };

/** `details` says what `code` and `param` say elsewhere; the message names the field too. */
export function anthropicErrorBody(error: ApiError, requestId: string) {
  const { message, type, code, param } = errorBody(error).error;
  const itsType = typesByStatus[error.status] ?? (type === "server_error" ? "api_error" : type);
  const details = code === "unsupported_field" && param === "thread" ? noThreads : { error_code: code, param };
  return { type: "error", error: { type: itsType, message, details }, request_id: requestId };
}
