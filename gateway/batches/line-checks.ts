/** Checks whether the lines of a batch's file can be run. This happens once, when the batch is made. */
import type { BatchFault } from "../../db/schema.ts";
import type { OpenFile } from "../corpus/files/content-store.ts";
import { readJsonText } from "../query/json-text.ts";
import { batchLimits } from "./limits.ts";
import { findLines, firstLine, type LineCursor, type LinePlace, linesPerSlice, textOf } from "./lines.ts";

const bytesPerSlice = 1024 * 1024;

export interface CheckedLines {
  /** What is wrong with the file. */
  readonly faults: readonly BatchFault[];
  readonly total: number;
}

/** Checks the file in slices. Each `yield` ends a slice. */
export async function* checkLines(
  file: Pick<OpenFile, "read">,
  endpoint: string,
): AsyncGenerator<undefined, CheckedLines> {
  const faults: BatchFault[] = [];
  const lineOfId = new Map<string, number>();
  let total = 0;
  let sliceBytes = 0;
  for (let cursor: LineCursor | undefined = firstLine; cursor !== undefined; ) {
    const found = await findLines(file, cursor, linesPerSlice);
    for (const place of found.places) {
      total += 1;
      if (total > batchLimits.maxLines) {
        const message = `The file has more than ${batchLimits.maxLines} lines.`;
        faults.push({ code: "too_many_lines", message, line: place.number, param: null });
        return { faults, total };
      }
      const fault = await faultAt(file, place, endpoint, lineOfId);
      if (fault === "not text") return { faults: [notUtf8], total };
      if (fault !== undefined) faults.push({ ...fault, line: place.number });
      if (faults.length >= batchLimits.maxFaults) return { faults, total };
      sliceBytes += place.byteCount;
      if (sliceBytes < bytesPerSlice) continue;
      sliceBytes = 0;
      yield;
    }
    cursor = found.next;
    yield;
  }
  if (total === 0) faults.push({ code: "empty_file", message: "The file has no line.", line: null, param: null });
  return { faults, total };
}

const notUtf8: BatchFault = {
  code: "invalid_file",
  message: "The file is not UTF-8.",
  line: null,
  param: "input_file_id",
};

async function faultAt(
  file: Pick<OpenFile, "read">,
  place: LinePlace,
  endpoint: string,
  lineOfId: Map<string, number>,
): Promise<LineFault | "not text" | undefined> {
  if (place.byteCount > batchLimits.maxLineBytes) return noObject;
  let text: string;
  try {
    text = await textOf(file, place);
  } catch (error) {
    if (error instanceof TypeError) return "not text";
    throw error;
  }
  return faultOf(text, endpoint, lineOfId, place.number);
}

type LineFault = Pick<BatchFault, "code" | "message" | "param">;

const noObject: LineFault = {
  code: "invalid_json_line",
  message: "The line is not a JSON object, or is too large for one.",
  param: null,
};

const fields = ["custom_id", "method", "url", "body"];

function faultOf(line: string, endpoint: string, lineOfId: Map<string, number>, number: number): LineFault | undefined {
  const fault = (code: string, message: string, param: string | null = null): LineFault => ({ code, message, param });
  const request = parsed(line);
  if (!isObject(request)) return noObject;
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
