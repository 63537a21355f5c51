/**
 * What one request may take of the server, counted from the first byte of its body on. Middleware makes one for each
 * request (`context.get("budget")`), and code that works for the request takes from the budget before it works. Tokens
 * are not part of it: the rate limiter's `Admission` counts those.
 */

import { ApiError } from "../../base/errors.ts";
import type { Turns } from "../../base/turns.ts";
import { limits } from "../../config.ts";
import type { BodyMemory, HeldBody } from "./body-memory.ts";

export class RequestBudget {
  readonly #memory: BodyMemory;
  readonly #owner: string;
  readonly #turns: Turns | undefined;
  #body: HeldBody | undefined;
  #parsedBytes = 0;
  #rows = 0;

  /**
   * @param owner id of the tenant, or of a key without one, whose part of the memory for bodies and whose turns are used
   * @param turns absent: the request never waits for a turn
   */
  constructor(memory: BodyMemory, owner: string, turns?: Turns) {
    this.#memory = memory;
    this.#owner = owner;
    this.#turns = turns;
  }

  /**
   * Waits for a turn on the event loop, before what a request does at once: the work of a whole short request, or what
   * follows its body.
   * @param owner whose turn it is, where nobody is known to call
   * @returns undefined: it is now
   */
  turn(owner = this.#owner): Promise<void> | undefined {
    return this.#turns?.take(owner);
  }

  /**
   * Takes a place for the body, before any of it is read.
   * @param announcedBytes the content-length, at most what will be kept in memory; 0 when unknown
   * @throws ApiError concurrency_limited, overloaded
   */
  openBody(announcedBytes: number): void {
    this.#body ??= this.#memory.open(this.#owner, announcedBytes);
  }

  /** So many bytes of the body have come, and stay in memory. @throws ApiError concurrency_limited, overloaded */
  takeBody(bytes: number): void {
    this.openBody(0);
    this.#body?.take(bytes);
  }

  /** Gives back the body's place and its bytes; safe to call twice. */
  releaseBody(): void {
    this.#body?.release();
    this.#body = undefined;
  }

  /** Bytes of JSON that are parsed: of the body, and of what it refers to. @throws ApiError invalid_request */
  takeParsed(bytes: number): void {
    this.#parsedBytes += bytes;
    if (this.#parsedBytes > limits.requestParsedBytes) throw exceeded(limits.requestParsedBytes, "bytes of JSON");
  }

  /** Rows of the database that are read or written. @throws ApiError invalid_request */
  takeRows(count: number): void {
    this.#rows += count;
    if (this.#rows > limits.requestRows) throw exceeded(limits.requestRows, "objects");
  }
}

const exceeded = (limit: number, what: string): ApiError =>
  new ApiError("invalid_request", { message: `One request may work on at most ${limit} ${what}.` });
