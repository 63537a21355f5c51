/**
 * Reads and checks a body. First it takes a place and a part of the memory for bodies; JSON is then checked for its
 * cost while it arrives, parsed, and checked against its schema.
 */
import type { Context } from "hono";
import type { z } from "zod";
import { ApiError } from "../../base/errors.ts";
import { freeBytes } from "../../base/free-bytes.ts";
import { yieldToOthers } from "../../base/pace.ts";
import { limits } from "../../config.ts";
import type { AppEnv } from "./context.ts";
import { JsonCost } from "./json-cost.ts";
import { refuseBadStrings } from "./json-strings.ts";
import type { RequestBudget } from "./request-budget.ts";
import { checked, tolerantly } from "./schema-check.ts";

export interface ReadJsonOptions {
  readonly maxBytes?: number;
  /** Fields that callers of other servers may send and that are not supported here: told apart from unknown ones. */
  readonly unsupported?: ReadonlySet<string>;
}

/** @throws ApiError 413, 415, 429, 503, 400 with `param` naming the field */
export async function readJson<Schema extends z.ZodType>(
  context: Context<AppEnv>,
  schema: Schema,
  { maxBytes = limits.bodyBytes, unsupported }: ReadJsonOptions = {},
): Promise<z.infer<Schema>> {
  requireJson(context);
  const { jsonDepth: depth, jsonCommas: commas, jsonFields: fields, jsonNodes: nodes } = limits;
  const cost = new JsonCost({ depth, commas, fields, nodes });
  const parsed = await useText(context, maxBytes, parseJson, (piece) => cost.look(piece));
  const body = withoutUnset(parsed, unsupported);
  if (context.get("strict") === true || strictPaths.test(context.req.path)) return checked(schema, body, unsupported);
  const { value, ignored } = await tolerantly(schema, body, unsupported);
  if (ignored.length > 0) context.set("ignored", ignored);
  return value;
}

/** Who manages a server wants to hear of each slip. */
const strictPaths = /^\/admin\//;

/** @throws ApiError unsupported_media_type */
export function requireJson(context: Context<AppEnv>): void {
  const contentType = context.req.header("content-type") ?? "";
  if (/^application\/([a-z0-9.+-]+\+)?json\s*(;|$)/i.test(contentType)) return;
  throw new ApiError("unsupported_media_type", { message: "Send the body as application/json." });
}

/** Parsing a long text, looking at its strings, and checking it against a schema each have a turn of their own. */
async function parseJson(text: string): Promise<unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new ApiError("invalid_json");
  }
  await yieldIfLong(text.length);
  refuseBadStrings(parsed);
  await yieldIfLong(text.length);
  return parsed;
}

/** Clients send null for "not set", also where nothing can be set here. */
function withoutUnset(parsed: unknown, unsupported: ReadonlySet<string> = new Set()): unknown {
  if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) return parsed;
  const isUnset = ([name, value]: readonly [string, unknown]): boolean => value === null && unsupported.has(name);
  const entries = Object.entries(parsed);
  return entries.some(isUnset) ? Object.fromEntries(entries.filter((entry) => !isUnset(entry))) : parsed;
}

/** The part of a request's context that reading uses. */
export interface BodyContext {
  readonly env?: AppEnv["Bindings"] | undefined;
  readonly req: { readonly raw: Request };
  /** Absent in tests that only read. */
  readonly get?: (name: "budget") => RequestBudget | undefined;
}

export interface ReadOptions {
  readonly maxBytes: number;
  /** What the body may take, beside the time that its bytes take at `limits.bodyBytesPerMs`. */
  readonly readMs?: number;
  /** The pieces stay in memory after `onPiece`, and count as such: the usual case. */
  readonly kept?: boolean;
}

/**
 * Reads the body piece by piece, as it comes and no faster than `onPiece` takes it. Its place and its part of the memory
 * for bodies are taken before its first byte; they are given back when the request ends, or by `budget.releaseBody`.
 * Resolves when it is the turn of the request to go on.
 * @returns its bytes
 * @throws ApiError body_too_large as soon as there are more than `maxBytes`, request_timeout, concurrency_limited,
 * overloaded, invalid_request
 */
export async function readPieces(
  context: BodyContext,
  { maxBytes, readMs = limits.bodyReadMs, kept = true }: ReadOptions,
  onPiece: (piece: BodyPiece) => void | Promise<void>,
): Promise<number> {
  const request = context.req.raw;
  const tooLarge = () => new ApiError("body_too_large", { message: `The body may have at most ${maxBytes} bytes.` });
  const announcedBytes = Number(request.headers.get("content-length") ?? "0");
  if (announcedBytes > maxBytes) throw tooLarge();
  const isShort = announcedBytes > 0 && announcedBytes <= shortBodyBytes;
  const budget = context.get?.("budget");
  if (!isShort && request.body === null) {
    await budget?.turn();
    return 0;
  }
  budget?.openBody(kept ? announcedBytes : 0);
  // The socket's time-out is off from here on: the body's own time limit counts, and then the request's deadline.
  context.env?.keepOpen?.();
  const startMs = performance.now();
  let late = false;
  const lateness = Promise.withResolvers<never>();
  lateness.promise.catch(() => undefined);
  const pieces = isShort || request.body === null ? wholeBody(request, lateness.promise) : request.body.getReader();
  let byteCount = 0;
  const cancel = (): void => void pieces.cancel().catch(() => undefined);
  const check = (): void => {
    const leftMs = startMs + readMs + byteCount / limits.bodyBytesPerMs - performance.now();
    late = leftMs <= 0;
    if (!late) {
      timer = setTimeout(check, leftMs);
      return;
    }
    cancel();
    lateness.reject(new ApiError("request_timeout"));
  };
  let timer = setTimeout(check, readMs);
  try {
    for (;;) {
      const { done, value } = await pieces.read();
      if (late) throw new ApiError("request_timeout");
      if (done) break;
      byteCount += value.byteLength;
      if (byteCount > maxBytes) throw tooLarge();
      if (kept) budget?.takeBody(value.byteLength);
      // Whoever never takes a piece is as late as a client that never sends one.
      await Promise.race([onPiece(value), lateness.promise]);
    }
    // The time limit of the body is over with it, and what its handler does next has a turn.
    clearTimeout(timer);
    await budget?.turn();
    return byteCount;
  } catch (error) {
    cancel();
    budget?.releaseBody();
    if (error instanceof ApiError) throw error;
    throw new ApiError("invalid_request", { message: "The body could not be read.", cause: error });
  } finally {
    clearTimeout(timer);
  }
}

/** A body that announces no more has mostly come with the head of its request: it is asked for as a whole, in half the time. */
const shortBodyBytes = 16_384;

/** A short body as its reader would give it, in one piece. @param lateness ends the wait for it */
function wholeBody(
  request: Request,
  lateness: Promise<never>,
): Pick<ReadableStreamDefaultReader<BodyPiece>, "read" | "cancel"> {
  let left: Promise<ArrayBuffer> | undefined = request.arrayBuffer();
  return {
    read: async () => {
      if (left === undefined) return { done: true, value: undefined };
      const value = new Uint8Array(await Promise.race([left, lateness]));
      left = undefined;
      return { done: false, value };
    },
    // What nobody waits for any more is dropped as it comes.
    cancel: async () => undefined,
  };
}

/** Bytes of the body, whole; they count until the request ends. @throws ApiError as `readPieces` does */
export async function readBody(context: BodyContext, maxBytes: number, readMs?: number): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  await readPieces(context, { maxBytes, ...(readMs === undefined ? {} : { readMs }) }, (piece) => {
    pieces.push(piece);
  });
  return pieces.length === 1 && pieces[0] !== undefined ? pieces[0] : new Uint8Array(Buffer.concat(pieces));
}

/** Bytes of a body that are decoded in one turn of the event loop: two milliseconds' work where few are ASCII. */
const bytesPerTurn = 256 * 1024;

/** After a step of work on all of a long body, others have their turn. Short bodies never wait behind others' long work. */
export const yieldIfLong = async (length: number): Promise<void> => {
  if (length > bytesPerTurn) await yieldToOthers();
};

/**
 * Reads the body as `readPieces` does, as text. What arrived while others had their turn comes as one piece; of that too
 * no more than `bytesPerTurn` are decoded at once.
 * @returns its bytes
 * @throws ApiError as `readPieces` does; invalid_json when it is not UTF-8
 */
export async function readTextPieces(
  context: BodyContext,
  options: ReadOptions,
  onText: (text: string) => void | Promise<void>,
): Promise<number> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let unyielded = 0;
  const byteCount = await readPieces(context, options, async (piece) => {
    for (let at = 0; at < piece.byteLength; at += bytesPerTurn) {
      const part = piece.subarray(at, at + bytesPerTurn);
      await onText(decoded(decoder, part));
      unyielded += part.byteLength;
      if (unyielded < bytesPerTurn) continue;
      unyielded = 0;
      await yieldToOthers();
    }
    // Else the pieces of a large body would take as much memory as its text again.
    freeBytes(piece);
  });
  await onText(decoded(decoder, undefined));
  return byteCount;
}

/**
 * Gives the body's text to `use`, in the pieces in which it came. When `use` has ended, the text no longer counts as held
 * in memory.
 * @param look at each piece as it comes
 * @throws ApiError as `readTextPieces` does
 */
export async function useTextPieces<Result>(
  context: BodyContext,
  maxBytes: number,
  use: (pieces: string[]) => Result | Promise<Result>,
  look: (piece: string) => void = () => undefined,
): Promise<Result> {
  const pieces: string[] = [];
  const budget = context.get?.("budget");
  try {
    const byteCount = await readTextPieces(context, { maxBytes }, (piece) => {
      look(piece);
      pieces.push(piece);
    });
    budget?.takeParsed(byteCount);
    return await use(pieces);
  } finally {
    budget?.releaseBody();
  }
}

/** `useTextPieces`, with the text whole. */
export async function useText<Result>(
  context: BodyContext,
  maxBytes: number,
  use: (text: string) => Result | Promise<Result>,
  look?: (piece: string) => void,
): Promise<Result> {
  const useWhole = async (pieces: string[]): Promise<Result> => {
    const text = pieces.join("");
    // The pieces would otherwise be kept beside the text for as long as it is used.
    pieces.length = 0;
    await yieldIfLong(text.length);
    return await use(text);
  };
  return await useTextPieces(context, maxBytes, useWhole, look);
}

type BodyPiece = Uint8Array<ArrayBuffer>;

/** @param piece absent at the end of the body */
function decoded(decoder: TextDecoder, piece: BodyPiece | undefined): string {
  try {
    return decoder.decode(piece, { stream: piece !== undefined });
  } catch {
    throw new ApiError("invalid_json", { message: "The request body is not UTF-8." });
  }
}
