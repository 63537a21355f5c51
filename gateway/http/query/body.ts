/** Reads a span query from a request: as JSON, also under text/plain as spnl sends it, or as YAML. */
import type { Context } from "hono";
import { ApiError } from "../../base/errors.ts";
import { limits } from "../../config.ts";
import { QueryError } from "../../query/errors.ts";
import type { Query } from "../../query/ir.ts";
import { parseQueryText } from "../../query/parse.ts";
import { useText } from "../transport/body.ts";
import type { AppEnv } from "../transport/context.ts";

/** A map: an object has more names than are written here. */
const formats: ReadonlyMap<string, "json" | "yaml"> = new Map([
  ["application/json", "json"],
  ["text/plain", "json"],
  ["application/yaml", "yaml"],
  ["application/x-yaml", "yaml"],
  ["text/yaml", "yaml"],
]);

export const queryBodyTypes = [...formats.keys()];

/** @throws ApiError 413, 415, 400 with the path in the query as `param` */
export async function readQueryBody(context: Context<AppEnv>): Promise<Query> {
  const [mediaType = ""] = (context.req.header("content-type") ?? "").split(";");
  const format = formats.get(mediaType.trim().toLowerCase());
  if (format === undefined) {
    const message = `Send the query as one of ${queryBodyTypes.join(", ")}.`;
    throw new ApiError("unsupported_media_type", { message });
  }
  return await useText(context, limits.queryBodyBytes, (text) => parse(text, format));
}

function parse(text: string, format: "json" | "yaml"): Query {
  try {
    return parseQueryText(text, format);
  } catch (error) {
    if (!(error instanceof QueryError)) throw error;
    throw new ApiError(error.code, { message: error.message, param: error.path, cause: error });
  }
}
