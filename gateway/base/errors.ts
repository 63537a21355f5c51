/**
 * Every error a client can meet: code -> status, type, whether trying again may help, and public text. The
 * table is total: a code without a status does not compile. Clients never see an exception's own message.
 */
export type ErrorType =
  | "invalid_request_error"
  | "authentication_error"
  | "permission_error"
  | "not_found_error"
  | "conflict_error"
  | "rate_limit_error"
  | "overloaded_error"
  | "server_error";

interface ErrorEntry {
  readonly status: 400 | 401 | 403 | 404 | 405 | 408 | 409 | 413 | 415 | 429 | 500 | 503 | 504 | 507;
  readonly type: ErrorType;
  readonly retryable: boolean;
  readonly text: string;
}

type Status = ErrorEntry["status"];
/** The same request would be refused again. */
const final = (status: Status, type: ErrorType, text: string): ErrorEntry => ({ status, type, retryable: false, text });
/** Trying again later may help. */
const passing = (status: Status, type: ErrorType, text: string): ErrorEntry => ({
  status,
  type,
  retryable: true,
  text,
});
const invalid = (text: string): ErrorEntry => final(400, "invalid_request_error", text);
const notFound = (text: string): ErrorEntry => final(404, "not_found_error", text);

const errorTable = {
  invalid_request: invalid("The request is not valid."),
  invalid_json: invalid("The request body is not valid JSON."),
  invalid_value: invalid("A field of the request has a value that is not allowed."),
  missing_field: invalid("A required field of the request is missing."),
  unknown_field: invalid("The request has a field that this server does not know."),
  unsupported_field: invalid("The request uses a field that this server does not support."),
  context_length_exceeded: invalid("The prompt is longer than the model's context."),
  chat_template_error: invalid("The model's chat template refuses these messages."),
  schema_too_ambiguous: invalid("The schema, or the tools, can be read in too many ways at once to be followed."),
  nesting_too_deep: invalid("The request body is nested too deeply."),

  missing_api_key: final(
    401,
    "authentication_error",
    "No API key given. Send it as 'Authorization: Bearer <key>' or as 'x-api-key'.",
  ),
  invalid_api_key: final(401, "authentication_error", "The API key is not valid."),
  api_key_expired: final(401, "authentication_error", "The API key has expired."),
  session_ended: final(401, "authentication_error", "The console's session has ended: sign in again."),
  not_from_console: final(
    403,
    "permission_error",
    "The console's cookie counts for requests of the console alone, at this server's own address. Other clients send the API key.",
  ),
  console_address: final(
    403,
    "permission_error",
    "The console signs in at a loopback address (127.0.0.1 or localhost, through an SSH tunnel if need be), or over TLS at the address that SPANGATE_PUBLIC_URL names.",
  ),
  insufficient_scope: final(403, "permission_error", "The API key lacks the scope this route takes."),
  origin_not_allowed: final(
    403,
    "permission_error",
    "Pages of this origin may not call this route. SPANGATE_CORS_ORIGINS names those that may.",
  ),
  no_tenant: final(
    403,
    "permission_error",
    "This route acts for a tenant, and the API key belongs to none: it administers the platform. Make a tenant (POST /admin/v1/tenants, or 'spangate tenant create NAME') and a key for it (POST /admin/v1/tenants/{id}/keys, or 'spangate key create --tenant ID'), and send that key.",
  ),

  not_found: notFound("No such object."),
  route_not_found: notFound("No such route."),
  model_not_found: notFound("No such model."),
  method_not_allowed: final(405, "invalid_request_error", "This route does not take this method."),
  request_timeout: passing(408, "invalid_request_error", "The request body did not arrive in time."),
  conflict: final(409, "conflict_error", "The object is in another state."),
  body_too_large: final(413, "invalid_request_error", "The request body is too large."),
  unsupported_media_type: final(415, "invalid_request_error", "The content type is not supported."),

  rate_limited: passing(429, "rate_limit_error", "Too many requests."),
  concurrency_limited: passing(429, "rate_limit_error", "The tenant has too many requests running at the same time."),
  quota_exceeded: final(429, "rate_limit_error", "The tenant's quota is used up."),

  internal: passing(500, "server_error", "The server had an error."),
  overloaded: passing(503, "overloaded_error", "The server is overloaded."),
  not_ready: passing(503, "overloaded_error", "No worker is ready yet."),
  worker_lost: passing(503, "server_error", "The worker that ran this request was lost."),
  server_shutdown: passing(503, "server_error", "The server is shutting down."),
  deadline_exceeded: passing(504, "server_error", "The request took longer than its deadline."),
  storage_full: passing(507, "server_error", "The server's storage is full."),
} satisfies Record<string, ErrorEntry>;

export type ErrorCode = keyof typeof errorTable;

/** The table's entry for a code. */
export const errorEntry = (code: ErrorCode): ErrorEntry => errorTable[code];

export const errorCodes = Object.keys(errorTable) as readonly ErrorCode[];

export interface ErrorDetail {
  /**
   * Public text that replaces the table's. It is written for the client and holds no secrets and nothing about other
   * tenants.
   */
  readonly message?: string;
  /** Field of the request that is wrong, as a path: `messages[0].content`. */
  readonly param?: string;
  /** Seconds for `Retry-After`; retryable errors without it get 1. */
  readonly retryAfterS?: number;
  /** The internal cause, for the log and never for the client. */
  readonly cause?: unknown;
}

/** An error meant for the client. Anything else that is thrown becomes `internal`. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly code: ErrorCode;
  readonly param: string | undefined;
  readonly retryAfterS: number | undefined;

  constructor(code: ErrorCode, detail: ErrorDetail = {}) {
    super(detail.message ?? errorTable[code].text, { cause: detail.cause });
    this.code = code;
    this.param = detail.param;
    this.retryAfterS = detail.retryAfterS ?? (errorTable[code].retryable ? 1 : undefined);
  }

  get status(): ErrorEntry["status"] {
    return errorTable[this.code].status;
  }
}

/** The shape of every error answer and of the last event of a failed stream. */
export interface ErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: ErrorType;
    readonly param: string | null;
    readonly code: ErrorCode;
  };
}

export function errorBody(error: ApiError): ErrorBody {
  const { type } = errorTable[error.code];
  return { error: { message: error.message, type, param: error.param ?? null, code: error.code } };
}

/**
 * Turns anything thrown into an error for the client: an ApiError stays as it is, everything else becomes `internal`
 * and keeps its cause.
 */
export function toApiError(thrown: unknown): ApiError {
  return thrown instanceof ApiError ? thrown : new ApiError("internal", { cause: thrown });
}

/** What a failure says of itself, whatever was thrown. */
export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : "unknown failure");
