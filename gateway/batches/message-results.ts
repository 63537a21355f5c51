/** Writes the results of message batches: one JSON object a line, as Anthropic's clients read them. */
import type { BatchRow } from "../../db/batches.ts";
import type { BatchLine } from "./lines.ts";

/** @param answer the message, or the error that the route answered with */
export function messageResult({ customId }: Pick<BatchLine, "customId">, isOk: boolean, answer: unknown): string {
  const result = isOk ? { type: "succeeded", message: answer } : { type: "errored", error: answer };
  return JSON.stringify({ custom_id: customId, result });
}

export interface Unrun {
  readonly code: string;
  readonly message: string;
}

export function unrunMessageResult({ customId }: Pick<BatchLine, "customId">, { code, message }: Unrun): string {
  const type = code === "invalid_api_key" ? "authentication_error" : "api_error";
  const error = {
    type: "error",
    error: { type, message, details: { error_code: code, param: null } },
    request_id: null,
  };
  return JSON.stringify({ custom_id: customId, result: { type: "errored", error } });
}

/** The result of a line that had no result when its batch ended. */
export function restResult(line: Pick<BatchLine, "customId">, batch: BatchRow): string {
  const [fault] = batch.errors ?? [];
  if (fault !== undefined) return unrunMessageResult(line, fault);
  const type = batch.status === "cancelling" ? "canceled" : "expired";
  return JSON.stringify({ custom_id: line.customId, result: { type } });
}

/** When the batch ended, in Unix milliseconds; null while it has not ended. */
export function endedAtOf({ status, completedAt, cancelledAt, failedAt, expiredAt }: BatchRow): number | null {
  if (!["completed", "cancelled", "failed", "expired"].includes(status)) return null;
  return completedAt ?? cancelledAt ?? failedAt ?? expiredAt;
}
