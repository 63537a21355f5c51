/** Reads and checks a JSON body: size first, then nesting, then JSON, then the schema. */
import type { Context } from "hono";
import type { z } from "zod";
import { limits } from "../config.ts";
import { ApiError } from "../errors.ts";
import type { AppEnv } from "./auth.ts";
import { refuseCostlyJson } from "./json-cost.ts";
import { paramOf, schemaError } from "./schema-error.ts";

export interface ReadJsonOptions {
  readonly maxBytes?: number;
  /** Fields that callers of other servers may send and that are not supported here: told apart from unknown ones. */
  readonly unsupported?: ReadonlySet<string>;
}

/** @throws ApiError 413, 415, 400 with `param` naming the field */
export async function readJson<Schema extends z.ZodType>(
  context: Context<AppEnv>,
  schema: Schema,
  options: ReadJsonOptions = {},
): Promise<z.infer<Schema>> {
  const contentType = context.req.header("content-type") ?? "";
  if (!/^application\/([a-z0-9.+-]+\+)?json\s*(;|$)/i.test(contentType)) {
    throw new ApiError("unsupported_media_type", { message: "Send the body as application/json." });
  }
  const text = await readText(context, options.maxBytes ?? limits.bodyBytes);
  refuseCostlyJson(text, limits.jsonDepth, limits.jsonCommas, limits.jsonFields);
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new ApiError("invalid_json");
  }
  // Schemas leave this name out without a word; its letters may be escaped.
  if (text.includes("proto__") || text.includes("\\u")) refuseProto(parsed);
  const result = schema.safeParse(withoutUnset(parsed, options.unsupported));
  if (!result.success) throw schemaError(result.error, options.unsupported);
  return result.data;
}

/** Clients send null for "not set", also where nothing can be set here. */
function withoutUnset(parsed: unknown, unsupported: ReadonlySet<string> = new Set()): unknown {
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) return parsed;
  const isUnset = ([name, value]: readonly [string, unknown]): boolean => value === null && unsupported.has(name);
  const entries = Object.entries(parsed);
  return entries.some(isUnset) ? Object.fromEntries(entries.filter((entry) => !isUnset(entry))) : parsed;
}

/** No field is called `__proto__`, whoever made the object. @throws ApiError unknown_field */
function refuseProto(value: unknown): void {
  const path = protoPath(value);
  if (path === undefined) return;
  const param = paramOf(path);
  throw new ApiError("unknown_field", { message: `Unknown field '${param}'.`, param });
}

/** Made only where it is found: there may be half a million values. */
function protoPath(value: unknown): readonly PropertyKey[] | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index++) {
      const inner = protoPath(value[index]);
      if (inner !== undefined) return [index, ...inner];
    }
    return undefined;
  }
  for (const name of Object.keys(value)) {
    const inner = name === "__proto__" ? [] : protoPath((value as Readonly<Record<string, unknown>>)[name]);
    if (inner !== undefined) return [name, ...inner];
  }
  return undefined;
}

/**
 * Bytes of the body, at most `maxBytes`; reading ends as soon as there are more.
 * @param readMs what the body may take, beside the time that its bytes take at `limits.bodyBytesPerMs`
 */
export async function readBody(
  context: Pick<Context<AppEnv>, "env"> & { readonly req: { readonly raw: Request } },
  maxBytes: number,
  readMs: number = limits.bodyReadMs,
): Promise<Uint8Array> {
  const request = context.req.raw;
  const tooLarge = () => new ApiError("body_too_large", { message: `The body may have at most ${maxBytes} bytes.` });
  if (Number(request.headers.get("content-length") ?? "0") > maxBytes) throw tooLarge();
  // From here the body's own time counts, and then the request's deadline.
  context.env?.keepOpen?.();
  if (request.body === null) return new Uint8Array(0);
  const reader = request.body.getReader();
  const chunks: Uint8Array[] = [];
  let byteCount = 0;
  const cancel = (): void => void reader.cancel().catch(() => undefined);
  const startMs = performance.now();
  let late = false;
  const check = (): void => {
    const leftMs = startMs + readMs + byteCount / limits.bodyBytesPerMs - performance.now();
    late = leftMs <= 0;
    if (late) cancel();
    else timer = setTimeout(check, leftMs);
  };
  let timer = setTimeout(check, readMs);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (late) throw new ApiError("request_timeout");
      if (done) break;
      byteCount += value.byteLength;
      if (byteCount > maxBytes) throw tooLarge();
      chunks.push(value);
    }
  } catch (error) {
    cancel();
    if (error instanceof ApiError) throw error;
    throw new ApiError("invalid_request", { message: "The body could not be read.", cause: error });
  } finally {
    clearTimeout(timer);
  }
  return chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : new Uint8Array(Buffer.concat(chunks));
}

/** Text of the body, as `readBody` reads it. @throws ApiError as it does; invalid_json when it is not UTF-8 */
export async function readText(context: Context<AppEnv>, maxBytes: number): Promise<string> {
  const bytes = await readBody(context, maxBytes);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new ApiError("invalid_json", { message: "The request body is not UTF-8." });
  }
}
