/** The lines of a batch's file: each is one request to the batch's endpoint. */
import type { BatchFault } from "../../db/schema.ts";
import { Pace } from "../corpus/pace.ts";
import { readJsonText } from "../query/json-text.ts";
import { batchLimits } from "./limits.ts";

export const batchEndpoints = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"] as const;
/** Of batches that are made by Anthropic's API. */
export const messagesEndpoint = "/v1/messages";

export interface BatchLine {
  /** Counted from 1. */
  readonly number: number;
  readonly customId: string;
  /** JSON. */
  readonly body: string;
}

/** Lines of a file that has been checked, one at a time; blank ones are skipped. */
export function* readLines(text: string): Generator<BatchLine> {
  for (const [number, line] of linesOf(text)) {
    const { custom_id: customId, body } = JSON.parse(line) as { custom_id: string; body: object };
    yield { number, customId, body: JSON.stringify(body) };
  }
}

/** @returns what is wrong with the file, or the number of its lines */
export async function checkLines(
  text: string,
  endpoint: string,
): Promise<{ readonly faults: readonly BatchFault[]; readonly total: number }> {
  const faults: BatchFault[] = [];
  const lineOfId = new Map<string, number>();
  const pace = new Pace();
  let total = 0;
  for (const [number, line] of linesOf(text)) {
    await pace.breathe();
    total += 1;
    if (total > batchLimits.maxLines) {
      const message = `The file has more than ${batchLimits.maxLines} lines.`;
      faults.push({ code: "too_many_lines", message, line: number, param: null });
      break;
    }
    const fault = faultOf(line, endpoint, lineOfId, number);
    if (fault !== undefined) faults.push({ ...fault, line: number });
    if (faults.length >= batchLimits.maxFaults) break;
  }
  if (total === 0) faults.push({ code: "empty_file", message: "The file has no line.", line: null, param: null });
  return { faults, total };
}

type LineFault = Pick<BatchFault, "code" | "message" | "param">;

const fields = ["custom_id", "method", "url", "body"];

function faultOf(line: string, endpoint: string, lineOfId: Map<string, number>, number: number): LineFault | undefined {
  const fault = (code: string, message: string, param: string | null = null): LineFault => ({ code, message, param });
  const request = parsed(line);
  if (!isObject(request)) return fault("invalid_json_line", "The line is not a JSON object, or is too large for one.");
  const unknown = Object.keys(request)
    .find((name) => !fields.includes(name))
    ?.slice(0, 64);
  if (unknown !== undefined) return fault("unknown_field", `'${unknown}' is not known.`, unknown);
  const { custom_id: customId, method, url, body } = request;
  if (typeof customId !== "string" || customId === "" || customId.length > batchLimits.maxCustomIdChars) {
    const rule = `must be a string of 1 to ${batchLimits.maxCustomIdChars} characters`;
    return fault("invalid_custom_id", `'custom_id' ${rule}.`, "custom_id");
  }
  const earlier = lineOfId.get(customId);
  if (earlier !== undefined) {
    return fault("duplicate_custom_id", `'custom_id' is that of line ${earlier} already.`, "custom_id");
  }
  lineOfId.set(customId, number);
  if (method !== "POST") return fault("invalid_method", "'method' must be POST.", "method");
  if (url !== endpoint) return fault("mismatched_endpoint", `'url' must be the batch's endpoint, ${endpoint}.`, "url");
  if (!isObject(body)) return fault("invalid_body", "'body' must be an object.", "body");
  const isStream = body.stream !== undefined && body.stream !== null && body.stream !== false;
  if (isStream) return fault("invalid_body", "'body.stream' is not supported in a batch.", "body.stream");
  return undefined;
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

function parsed(line: string): unknown {
  try {
    return readJsonText(line);
  } catch {
    return undefined;
  }
}

/** One at a time: a file of line breaks makes no list of millions. */
function* linesOf(text: string): Generator<readonly [number: number, line: string]> {
  let start = 0;
  for (let number = 1; start < text.length; number++) {
    const found = text.indexOf("\n", start);
    const end = found < 0 ? text.length : found;
    const line = text.slice(start, end);
    if (line.trim() !== "") yield [number, line];
    start = end + 1;
  }
}
