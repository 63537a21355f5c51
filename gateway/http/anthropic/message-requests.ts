/**
 * The body of POST /v1/messages/batches, read while it comes: each of its requests becomes a line of the batch's file as
 * soon as it is whole. In memory it would be many times its 32 MiB.
 */
import { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { batchLimits } from "../../batches/limits.ts";
import { messageLine } from "../../batches/lines.ts";
import { limits } from "../../config.ts";
import { corpusLimits } from "../../corpus/base/limits.ts";
import { type BodyContext, readTextPieces } from "../transport/body.ts";
import { optional } from "../transport/fields.ts";
import { JsonCost } from "../transport/json-cost.ts";
import { refuseBadStrings } from "../transport/json-strings.ts";
import { checked } from "../transport/schema-check.ts";
import { JsonListReader } from "./json-list.ts";

const request = z.strictObject({
  custom_id: z.string().regex(/^[A-Za-z0-9_-]{1,64}$/, "must be 1 to 64 letters, digits, hyphens and underscores"),
  // Each is read when it is run: one that is wrong is an error of its own.
  params: z.looseObject({ stream: optional(z.literal(false, "is not supported in a batch")) }),
});
/** What the routes' description says; the body is never checked whole. */
export const createSchema = z.strictObject({ requests: z.array(request).min(1).max(batchLimits.maxLines) });

export class MessageRequests {
  readonly #list = new JsonListReader("requests");
  readonly #cost: JsonCost;
  readonly #indexOfId = new Map<string, number>();

  constructor() {
    const { jsonDepth: depth, jsonCommas: commas, jsonFields: fields, batchJsonNodes: nodes } = limits;
    this.#cost = new JsonCost({ depth, commas, fields, nodes });
  }

  /** Requests so far. */
  get count(): number {
    return this.#indexOfId.size;
  }

  /**
   * @param take takes the lines as they come
   * @throws ApiError as `readTextPieces` does, 400 with `param`, and what `take` throws
   */
  async read(context: BodyContext, take: (lines: Uint8Array) => Promise<void>): Promise<void> {
    const { maxUploadBytes: maxBytes } = corpusLimits;
    await readTextPieces(context, { maxBytes, kept: false }, async (piece) => {
      const lines = this.#linesOf(piece);
      if (lines.byteLength > 0) await take(lines);
      // Memory that a piece has left is collected before the next ones fill as much again.
      await yieldToOthers();
    });
    const rest = checked(z.strictObject({ requests: z.array(z.unknown()) }), this.#list.end());
    if (rest.requests.length > 0) {
      throw new ApiError("invalid_value", { param: "requests", message: "'requests' was given more than once." });
    }
    if (this.count > 0) return;
    throw new ApiError("invalid_value", { param: "requests", message: "'requests': has no entry." });
  }

  #linesOf(text: string): Uint8Array {
    this.#cost.look(text);
    return Buffer.from(
      this.#list
        .read(text)
        .map((element) => this.#lineOf(element))
        .join(""),
    );
  }

  #lineOf(element: string): string {
    const index = this.count;
    if (index === batchLimits.maxLines) {
      const message = `'requests': must have at most ${batchLimits.maxLines} entries.`;
      throw new ApiError("invalid_value", { param: "requests", message });
    }
    const value = parsed(element);
    refuseBadStrings(value, ["requests", index]);
    const { custom_id: customId, params } = checked(request, value, new Set(), ["requests", index]);
    const earlier = this.#indexOfId.get(customId);
    if (earlier !== undefined) {
      const message = `'requests[${index}].custom_id': is that of requests[${earlier}] already.`;
      throw new ApiError("invalid_value", { param: `requests[${index}].custom_id`, message });
    }
    this.#indexOfId.set(customId, index);
    return messageLine(customId, params);
  }
}

function parsed(element: string): unknown {
  try {
    return JSON.parse(element);
  } catch {
    throw new ApiError("invalid_json");
  }
}
