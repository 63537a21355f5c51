/** What an answer has to be, whatever the request was. */
import { type ErrorCode, errorCodes, errorEntry } from "../../gateway/base/errors.ts";

export interface Judged {
  readonly path: string;
  readonly status: number;
  readonly contentType: string;
  readonly requestId: string | null;
  readonly text: string;
  /** Of the processor, by all that ran meanwhile: that the machine has other things to do is no fault. */
  readonly ms: number;
}

/** Milliseconds of the processor that this process, which is the server as well, has had. */
export function processorMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1_000;
}

/** Longest message of an error, and the longest name of a field in one: an answer is no echo. */
const maxMessageChars = 1_024;
const maxParamChars = 300;
/** Generous, since requests are beside each other. */
const maxAnswerMs = 15_000;
/** A request that hangs takes for ever. */
export const maxWaitMs = 60_000;

const maxTargetChars = 8_192;

/** What is wrong with the answer; undefined when nothing is. */
export function faultOf(answer: Judged): string | undefined {
  const { path, status, contentType, requestId, text, ms } = answer;
  if (ms > maxAnswerMs) return `took ${Math.round(ms)} ms`;
  // A line that is longer than the parser takes never becomes a request.
  if (status === 431 && path.length > maxTargetChars) return undefined;
  if (requestId === null || !/^req_[0-9a-f]{32}$/.test(requestId)) return `status ${status} without a request id`;
  if (status >= 500 && !isOfOperations(answer)) return `status ${status}`;
  if (status >= 400) return errorFault(answer);
  if (contentType.startsWith("application/json")) return jsonFault(text);
  if (contentType.startsWith("text/event-stream")) return streamFault(text);
  return undefined;
}

/** /ready says 503 while it is not, which is no failure. */
const isOfOperations = ({ path }: Judged): boolean => path.startsWith("/ready");

function errorFault({ status, contentType, text, path }: Judged): string | undefined {
  if (!contentType.startsWith("application/json")) return `status ${status} with content type '${contentType}'`;
  const body = parsed(text);
  if (body === undefined) return `status ${status} whose body is no JSON`;
  if (/^\/v1\/messages(?:[/?]|$)/.test(path)) return anthropicFault(body);
  if (/^\/mcp(?:\?|$)/.test(path) && "jsonrpc" in Object(body)) return rpcFault(body);
  const { error, ...rest } = body as { error?: Record<string, unknown> };
  if (error === undefined || Object.keys(rest).length > 0) return `status ${status} of another shape`;
  if (Object.keys(error).sort().join() !== "code,message,param,type") return "an error with other fields";
  const { code, message, param, type } = error;
  if (!(errorCodes as readonly unknown[]).includes(code)) return `unknown code ${String(code)}`;
  const entry = errorEntry(code as ErrorCode);
  if (entry.status !== status || entry.type !== type)
    return `${String(code)} with status ${status}, type ${String(type)}`;
  if (param !== null && (typeof param !== "string" || param.length > maxParamChars)) return "a param of another kind";
  return messageFault(message);
}

function anthropicFault(body: unknown): string | undefined {
  const {
    type,
    error,
    request_id: requestId,
  } = body as { type?: unknown; error?: Record<string, unknown>; request_id?: unknown };
  if (type !== "error" || error === undefined || typeof error.type !== "string")
    return "an error that is not Anthropic's";
  return typeof requestId === "string" ? messageFault(error.message) : "an error without a request id";
}

/** What the protocol's own checks say of a message, beyond those of every route. */
function rpcFault(body: unknown): string | undefined {
  const { jsonrpc, error } = body as { jsonrpc?: unknown; error?: Record<string, unknown> };
  const isError = jsonrpc === "2.0" && Number.isInteger(error?.code);
  return isError ? messageFault(error?.message) : "an error that is not JSON-RPC's";
}

function messageFault(message: unknown): string | undefined {
  if (typeof message !== "string" || message.length < 5) return "an error without a message";
  if (message.length > maxMessageChars) return `a message of ${message.length} characters`;
  return /node_modules|\.ts:\d|SQLITE|\bat \w+ \(/.test(message) ? `a message from within: ${message}` : undefined;
}

const jsonFault = (text: string): string | undefined =>
  parsed(text) === undefined ? "an answer that is no JSON" : undefined;

/** A stream may end with an error, and not with ours. */
function streamFault(text: string): string | undefined {
  if (/"code":"internal"/.test(text)) return "a stream that ends with an internal error";
  return text.endsWith("\n\n") ? undefined : "a stream that ends within an event";
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}
