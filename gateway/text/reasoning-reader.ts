/**
 * Cuts a model's answer into its thinking and the answer proper while it is generated. Text that may be the beginning of
 * a mark waits until it is known; white space between the parts belongs to neither.
 */
import { channelSigns, type ReasoningSyntax } from "./reasoning-syntax.ts";

export interface ReasoningReading {
  readonly syntax: ReasoningSyntax;
  /** true: the prompt has opened the thinking. */
  readonly isOpen: boolean;
}

export interface ReasonedText {
  readonly thinking: string;
  readonly answer: string;
}

/** Reads one answer; a new one is made for each. */
export interface ReasoningReader {
  /** Whether whatever comes is a part of the answer. */
  readonly inAnswer: boolean;
  /** Whether there was any thinking, be it empty. */
  readonly hasThought: boolean;
  push(text: string): ReasonedText;
  /** What was held back. */
  end(): ReasonedText;
}

export const reasoningReader = (reading: ReasoningReading): ReasoningReader =>
  reading.syntax.kind === "channels" ? new ChannelReader() : new PairReader(reading);

/** Length of the longest end of the text that is a beginning of the mark. */
export function partialChars(text: string, mark: string): number {
  let chars = Math.min(mark.length - 1, text.length);
  while (chars > 0 && !text.endsWith(mark.slice(0, chars))) chars -= 1;
  return chars;
}

/**
 * "start": the opener may come. "thinking": its text. "behind": the thinking has ended, and the answer has not begun.
 * "ended": the mark that ends the answer has come.
 */
type PairState = "start" | "thinking" | "behind" | "answer" | "ended";

class PairReader implements ReasoningReader {
  readonly #syntax: ReasoningSyntax;
  readonly #isOpen: boolean;
  #state: PairState = "start";
  #held = "";
  #thinking = "";
  #answer = "";
  #hasThought = false;
  /** Whether no text of the thinking was shown yet: white space before it is left out. */
  #thinkingBegins = true;

  constructor({ syntax, isOpen }: ReasoningReading) {
    this.#syntax = syntax;
    this.#isOpen = isOpen;
  }

  get inAnswer(): boolean {
    return this.#state === "answer" || this.#state === "ended";
  }

  get hasThought(): boolean {
    return this.#hasThought;
  }

  push(text: string): ReasonedText {
    this.#held += text;
    while (this.#step()) {
      // Each step changes the state.
    }
    return this.#take();
  }

  end(): ReasonedText {
    const rest = this.#held;
    this.#held = "";
    // An opener that is cut off is shown as what it is: the beginning of an answer, or of thinking.
    if (this.#state === "thinking" || (this.#state === "start" && this.#isOpen)) this.#thinking += rest.trimEnd();
    else if (this.#state === "answer" || this.#state === "start") this.#answer += rest;
    else if (this.#state === "behind") this.#answer += this.#withoutAnswerMark(rest.trimStart()).trimStart();
    return this.#take();
  }

  /** @returns false when it needs more text */
  #step(): boolean {
    switch (this.#state) {
      case "start":
        return this.#stepStart();
      case "thinking":
        return this.#stepThinking();
      case "behind":
        return this.#stepBehind();
      case "answer":
        return this.#stepAnswer();
      case "ended":
        this.#held = "";
        return false;
    }
  }

  /** A model may open what the prompt has opened already. */
  #stepStart(): boolean {
    const { opener } = this.#syntax;
    const text = this.#held.trimStart();
    if (text.length < opener.length && opener.startsWith(text)) return false;
    const isOpened = text.startsWith(opener);
    this.#hasThought = isOpened || this.#isOpen;
    if (isOpened) this.#held = text.slice(opener.length);
    this.#state = this.#hasThought ? "thinking" : "answer";
    return true;
  }

  #stepThinking(): boolean {
    const { closer } = this.#syntax;
    if (this.#thinkingBegins) this.#held = this.#held.trimStart();
    const at = this.#held.indexOf(closer);
    const text = this.#held.slice(0, at < 0 ? this.#held.length - partialChars(this.#held, closer) : at);
    const shown = text.trimEnd();
    this.#thinking += shown;
    if (shown !== "") this.#thinkingBegins = false;
    this.#held = at < 0 ? this.#held.slice(shown.length) : this.#held.slice(at + closer.length);
    if (at >= 0) this.#state = "behind";
    return at >= 0;
  }

  #stepBehind(): boolean {
    const mark = this.#syntax.answer?.opener ?? "";
    const text = this.#held.trimStart();
    if (text.length < mark.length && mark.startsWith(text)) return false;
    const rest = this.#withoutAnswerMark(text).trimStart();
    // White space that belongs to neither part may still come.
    if (rest === "") return false;
    this.#held = rest;
    this.#state = "answer";
    return true;
  }

  #withoutAnswerMark(text: string): string {
    const mark = this.#syntax.answer?.opener ?? "";
    return text.startsWith(mark) ? text.slice(mark.length) : text;
  }

  #stepAnswer(): boolean {
    const mark = this.#hasThought ? this.#syntax.answer?.closer : undefined;
    if (mark === undefined) {
      this.#answer += this.#held;
      this.#held = "";
      return false;
    }
    const at = this.#held.indexOf(mark);
    const text = this.#held.slice(0, at < 0 ? this.#held.length - partialChars(this.#held, mark) : at);
    const shown = text.trimEnd();
    this.#answer += shown;
    this.#held = at < 0 ? this.#held.slice(shown.length) : "";
    if (at >= 0) this.#state = "ended";
    return false;
  }

  #take(): ReasonedText {
    const taken = { thinking: this.#thinking, answer: this.#answer };
    this.#thinking = "";
    this.#answer = "";
    return taken;
  }
}

const { channel, message, start, end } = channelSigns;
const signPattern = /[\uFDD0-\uFDD7]/;
/** Longer text before a message is no header, and is shown as what it is. */
const maxHeaderChars = 512;

/**
 * OpenAI's harmony format: messages, each with a header that ends in a channel's name. `analysis` and what is sent to
 * tools are thinking; `final`, and `commentary` that is sent to nobody, are the answer.
 */
class ChannelReader implements ReasoningReader {
  #state: "header" | "body" | "between" = "header";
  #kind: "thinking" | "answer" = "answer";
  #held = "";
  readonly #texts = { thinking: "", answer: "" };
  readonly #begun = { thinking: false, answer: false };

  get inAnswer(): boolean {
    return this.#state !== "header" && this.#kind === "answer";
  }

  get hasThought(): boolean {
    return this.#begun.thinking;
  }

  push(text: string): ReasonedText {
    this.#held += text;
    while (this.#held !== "" && this.#step()) {
      // Each step takes some of what is held.
    }
    return this.#take();
  }

  end(): ReasonedText {
    // A header that is cut off is no text.
    this.#held = "";
    return this.#take();
  }

  #step(): boolean {
    if (this.#state === "header") return this.#stepHeader();
    if (this.#state === "between") return this.#stepBetween();
    const at = this.#held.search(signPattern);
    // All readers have the thinking before the answer, so none is shown behind its beginning.
    const isShown = this.#kind === "answer" || !this.#begun.answer;
    if (isShown) this.#texts[this.#kind] += at < 0 ? this.#held : this.#held.slice(0, at);
    if (at < 0) {
      this.#held = "";
      return false;
    }
    this.#state = "between";
    this.#held = this.#held.slice(at);
    return true;
  }

  /** Behind a message, up to where the next one begins. */
  #stepBetween(): boolean {
    const sign = this.#held.charAt(0);
    if (sign === start || sign === channel) this.#state = "header";
    else this.#held = this.#held.slice(1);
    return true;
  }

  #stepHeader(): boolean {
    const first = this.#held.charAt(0);
    const isHeader = first === channel || first === start || " to=".startsWith(this.#held.slice(0, 4));
    const [at, cut] = [this.#held.indexOf(message), this.#held.indexOf(end)];
    if (isHeader && cut >= 0 && (at < 0 || cut < at)) {
      // A header without a message.
      this.#held = this.#held.slice(cut + 1);
      return true;
    }
    if (isHeader && at < 0 && this.#held.length <= maxHeaderChars) return false;
    const header = isHeader && at >= 0 ? this.#held.slice(0, at) : undefined;
    const name = header?.slice(header.lastIndexOf(channel) + 1).trimStart() ?? "";
    this.#begin(name.startsWith("analysis") || /\bto=/.test(header ?? "") ? "thinking" : "answer");
    this.#held = header === undefined ? this.#held.replace(signPattern, "") : this.#held.slice(at + 1);
    return true;
  }

  #begin(kind: "thinking" | "answer"): void {
    // Several messages of one kind are paragraphs.
    if (this.#begun[kind] && (kind === "answer" || !this.#begun.answer)) this.#texts[kind] += "\n\n";
    this.#begun[kind] = true;
    this.#kind = kind;
    this.#state = "body";
  }

  #take(): ReasonedText {
    const taken = { ...this.#texts };
    this.#texts.thinking = "";
    this.#texts.answer = "";
    return taken;
  }
}
