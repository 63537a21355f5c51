/** Turns a completion's tokens into what the caller sees: text and, where the request has tools, tool calls. */
import type { TokenLogprob } from "../../worker/contract/messages.ts";
import { Detokenizer, type TokenBytes } from "../text/detokenizer.ts";
import { type AnswerPart, CallReader, type CallReaderOptions } from "../tools/call-reader.ts";
import type { AnswerEvent } from "./events.ts";

export interface ReadTokens {
  readonly events: readonly AnswerEvent[];
  /** The stop string that ended the answer. */
  readonly stoppedBy: string | undefined;
}

/** Reads the tokens of one run. */
export interface TokenReader {
  push(tokenIds: readonly number[], logprobs: readonly TokenLogprob[] | undefined): ReadTokens;
  /** Call when the run has ended. @returns the events that were held back until then */
  end(): readonly AnswerEvent[];
}

export class AnswerReader implements TokenReader {
  readonly #detokenizer: Detokenizer;
  readonly #calls: CallReader | undefined;

  /** @param goesOn the answer goes on from a text that the prompt ends with */
  constructor(tokenBytes: TokenBytes, stops: readonly string[], calls: CallReaderOptions | undefined, goesOn = false) {
    this.#detokenizer = new Detokenizer(tokenBytes, stops, { showsSigns: calls !== undefined, goesOn });
    this.#calls = calls === undefined ? undefined : new CallReader(calls);
  }

  push(tokenIds: readonly number[], logprobs: readonly TokenLogprob[] | undefined): ReadTokens {
    const { text, stoppedBy } = this.#detokenizer.push(tokenIds);
    const parts = this.#read(text);
    // Log-probabilities belong to tokens. They are reported even when their tokens show no text, with an empty text
    // then.
    const untold = logprobs !== undefined && parts[0]?.type !== "text" ? [{ type: "text", text: "" } as const] : [];
    const events = [...untold, ...parts].map((part, index) => eventOf(part, index === 0 ? logprobs : undefined));
    return { events, stoppedBy };
  }

  end(): readonly AnswerEvent[] {
    const { text } = this.#detokenizer.end();
    return [...this.#read(text), ...(this.#calls?.end() ?? [])].map((part) => eventOf(part, undefined));
  }

  #read(text: string): readonly AnswerPart[] {
    if (this.#calls !== undefined) return this.#calls.push(text);
    return text === "" ? [] : [{ type: "text", text }];
  }
}

function eventOf(part: AnswerPart, logprobs: readonly TokenLogprob[] | undefined): AnswerEvent {
  if (part.type === "text") return { ...part, logprobs: logprobs ?? [] };
  if (part.type === "arguments") return part;
  return { ...part, id: crypto.randomUUID().replaceAll("-", "").slice(0, 24) };
}
