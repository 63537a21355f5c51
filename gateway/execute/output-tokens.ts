/** Runs one inner generate on a worker and returns its tokens, cut before a stop string. */

import { ApiError } from "../base/errors.ts";
import type { Dispatcher } from "../dispatch/dispatcher.ts";
import type { ReadTokens, TokenReader } from "../generate/answer-reader.ts";
import { type RunInput, runRead } from "../generate/completion.ts";
import type { EndEvent } from "../generate/events.ts";
import { Detokenizer, type TokenBytes, textOfTokens } from "../text/detokenizer.ts";

export interface OutputRequest extends RunInput {
  readonly stops: readonly string[];
}

export interface OutputTokens {
  readonly tokenIds: Int32Array;
  readonly end: EndEvent;
}

/** @throws ApiError as Dispatcher.submit does; the signal's reason when it aborts */
export async function outputTokens(
  dispatcher: Pick<Dispatcher, "submit">,
  tokenBytes: TokenBytes,
  { stops, ...request }: OutputRequest,
): Promise<OutputTokens> {
  let reader = new OutputReader(tokenBytes, stops);
  const open = (): OutputReader => {
    reader = new OutputReader(tokenBytes, stops);
    return reader;
  };
  for await (const end of runRead(dispatcher, request, open)) {
    if (end.type !== "end") continue;
    request.signal.throwIfAborted();
    if (end.reason === "abort") throw new ApiError("internal", { cause: new Error("a worker gave up") });
    return { tokenIds: reader.tokenIds(), end };
  }
  throw new ApiError("internal", { cause: new Error("a generate ended without a report") });
}

/** Collects the tokens. It also decodes them to text where there are stop strings to look for. */
class OutputReader implements TokenReader {
  readonly #tokenBytes: TokenBytes;
  readonly #detokenizer: Detokenizer | undefined;
  readonly #tokenIds: number[] = [];
  readonly reasoningTokens = 0;
  #text = "";
  #stopped = false;

  constructor(tokenBytes: TokenBytes, stops: readonly string[]) {
    this.#tokenBytes = tokenBytes;
    this.#detokenizer = stops.length === 0 ? undefined : new Detokenizer(tokenBytes, stops);
  }

  push(tokenIds: readonly number[]): ReadTokens {
    this.#tokenIds.push(...tokenIds);
    const { text = "", stoppedBy } = this.#detokenizer?.push(tokenIds) ?? {};
    this.#text += text;
    this.#stopped = stoppedBy !== undefined;
    return { events: [], stoppedBy };
  }

  end(): readonly [] {
    return [];
  }

  /** The tokens before a stop string. A token that spells a part of the stop string is left out whole. */
  tokenIds(): Int32Array {
    let count = this.#tokenIds.length;
    while (this.#stopped && count > 0 && !this.#text.startsWith(this.#textOf(count))) count -= 1;
    return Int32Array.from(this.#tokenIds.slice(0, count));
  }

  /** The text of the first `count` tokens. */
  #textOf(count: number): string {
    return textOfTokens(this.#tokenBytes, this.#tokenIds.slice(0, count));
  }
}
