/**
 * Turns a completion's tokens into what the caller sees: thinking, text and, where the request has tools, tool calls.
 * Stop strings and calls are looked for in the answer alone, not in the thinking before it.
 */
import type { TokenLogprob } from "../../worker/contract/messages.ts";
import { withSignsShown } from "../text/call-syntax.ts";
import { Detokenizer, StopStrings, type TokenBytes } from "../text/detokenizer.ts";
import {
  type ReasonedText,
  type ReasoningReader,
  type ReasoningReading,
  reasoningReader,
} from "../text/reasoning-reader.ts";
import { type AnswerPart, CallReader, type CallReaderOptions } from "../tools/call-reader.ts";
import type { AnswerEvent } from "./events.ts";

export interface ReadTokens {
  readonly events: readonly AnswerEvent[];
  /** The stop string that ended the answer. */
  readonly stoppedBy: string | undefined;
}

/** Reads the tokens of one run. */
export interface TokenReader {
  /** How many tokens of those so far are thinking, its marks included. */
  readonly reasoningTokens: number;
  push(tokenIds: readonly number[], logprobs: readonly TokenLogprob[] | undefined): ReadTokens;
  /** Call when the run has ended. @returns the events that were held back until then */
  end(): readonly AnswerEvent[];
}

/** How the tokens of an answer are read. */
export interface AnswerReading {
  /** Strings that end the answer. They are not part of it. */
  readonly stops: readonly string[];
  /** How tool calls are recognized in the text; absent: the request has no tools. */
  readonly calls?: CallReaderOptions | undefined;
  /** How thinking is recognized; absent: there is none. */
  readonly reasoning?: ReasoningReading | undefined;
  /** The answer goes on from a text that the prompt ends with. */
  readonly goesOn?: boolean | undefined;
}

export class AnswerReader implements TokenReader {
  readonly #tokenBytes: TokenBytes;
  readonly #detokenizer: Detokenizer;
  readonly #reasoning: ReasoningReader | undefined;
  readonly #stops: StopStrings;
  readonly #calls: CallReader | undefined;
  /** Tokens of which it is not known yet whether they are thinking or a part of the answer. */
  #waitingTokens = 0;
  #waiting: TokenLogprob[] = [];
  #reasoningTokens = 0;

  constructor(tokenBytes: TokenBytes, { stops, calls, reasoning, goesOn }: AnswerReading) {
    const showsSigns = calls !== undefined || reasoning !== undefined;
    this.#tokenBytes = tokenBytes;
    this.#detokenizer = new Detokenizer(tokenBytes, [], { showsSigns, ...(goesOn === undefined ? {} : { goesOn }) });
    this.#reasoning = reasoning && reasoningReader(reasoning);
    this.#stops = new StopStrings(stops);
    this.#calls = calls && new CallReader(calls);
  }

  get reasoningTokens(): number {
    return this.#reasoningTokens;
  }

  push(tokenIds: readonly number[], logprobs: readonly TokenLogprob[] | undefined): ReadTokens {
    const told: TokenLogprob[] = [];
    let text = "";
    let thinking = "";
    for (const [index, tokenId] of tokenIds.entries()) {
      if (this.#stops.stoppedBy !== undefined) break;
      const wasInAnswer = this.#reasoning?.inAnswer ?? true;
      const decoded = this.#detokenizer.push([tokenId]).text;
      const read = this.#split(decoded);
      thinking += read.thinking;
      text += this.#stops.push(read.answer).text;
      this.#waitingTokens += 1;
      this.#waiting.push(...(logprobs?.slice(index, index + 1) ?? []));
      if (wasInAnswer || read.answer !== "") told.push(...this.#takeWaiting());
      // A token that ends within a character is part of whatever the character is.
      else if (decoded !== "") this.#dropThinking();
    }
    const events = this.#eventsOf(text, told);
    const shown = thinking === "" ? events : [{ type: "thinking" as const, text: thinking }, ...events];
    return { events: shown, stoppedBy: this.#stops.stoppedBy };
  }

  end(): readonly AnswerEvent[] {
    const last = this.#split(this.#detokenizer.end().text);
    const rest = this.#reasoning?.end() ?? { thinking: "", answer: "" };
    const thinking = last.thinking + this.#shown(rest.thinking);
    const answer = last.answer + this.#answerText(rest.answer);
    if (answer === "") this.#dropThinking();
    const events = this.#eventsOf(this.#stops.end(answer).text, this.#takeWaiting());
    const calls = (this.#calls?.end() ?? []).map((part) => eventOf(part, undefined));
    return [...(thinking === "" ? [] : [{ type: "thinking" as const, text: thinking }]), ...events, ...calls];
  }

  /** The waiting tokens are a part of the answer. */
  #takeWaiting(): readonly TokenLogprob[] {
    this.#waitingTokens = 0;
    return this.#waiting.splice(0);
  }

  /** The waiting tokens are thinking if there was any. Log-probabilities of thinking are not told. */
  #dropThinking(): void {
    if (this.#reasoning?.hasThought !== true) return;
    this.#reasoningTokens += this.#waitingTokens;
    this.#waitingTokens = 0;
    this.#waiting.length = 0;
  }

  #split(text: string): ReasonedText {
    if (this.#reasoning === undefined) return { thinking: "", answer: text };
    const { thinking, answer } = this.#reasoning.push(text);
    return { thinking: this.#shown(thinking), answer: this.#answerText(answer) };
  }

  /** Where calls are read, signs stay until then. */
  #answerText(text: string): string {
    return this.#calls === undefined && this.#reasoning !== undefined ? this.#shown(text) : text;
  }

  #shown(text: string): string {
    return withSignsShown(text, this.#tokenBytes.signTokens);
  }

  #eventsOf(text: string, told: readonly TokenLogprob[]): readonly AnswerEvent[] {
    const parts = this.#read(text);
    // Log-probabilities are told even when their tokens show no text, with an empty text then.
    const untold = told.length === 0 || parts[0]?.type === "text" ? [] : [{ type: "text", text: "" } as const];
    return [...untold, ...parts].map((part, index) => eventOf(part, index === 0 ? told : undefined));
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
