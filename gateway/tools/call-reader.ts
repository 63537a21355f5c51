/**
 * Reads a model's answer as text and calls while it is generated. Text becomes a call only when it names an offered tool
 * and the first bracket of its arguments is there; anything else stays text.
 */
import { type CallSyntax, withSignsShown } from "../text/call-syntax.ts";
import { type CallSink, readCalls } from "./read-call.ts";
import type { Reading } from "./read-json.ts";

export type AnswerPart =
  | { readonly type: "text"; readonly text: string }
  /** Calls are numbered from 0. */
  | { readonly type: "call"; readonly call: number; readonly name: string }
  | { readonly type: "arguments"; readonly call: number; readonly text: string };

export interface CallReaderOptions {
  readonly syntax: CallSyntax;
  /** Tools that may be called. */
  readonly names: ReadonlySet<string>;
  /** true: the answer may have more than one call. */
  readonly several: boolean;
  /** true: the answer has calls and nothing else, so a call that is cut off before its name is not shown as text. */
  readonly callsOnly: boolean;
}

/** "start": nothing was read yet, and an answer may begin with a call. "behind": a call's closer may come next. */
type Mode = "start" | "text" | "call" | "behind" | "plain" | "ended";

export class CallReader {
  readonly #options: CallReaderOptions;
  readonly #sink: CallSink;
  #mode: Mode;
  /** Text that was not read yet. */
  #held = "";
  /** The text of a possible call, which is shown as text if it turns out to be no call. */
  #raw = "";
  #reading: Reading<boolean> | undefined;
  #callCount = 0;
  /** Whether a call has begun in the row of calls that is being read. */
  #begun = false;
  /** What is left out until there is text or another call: white space behind a call, or all behind a broken one. */
  #dropped: "nothing" | "space" | "all" = "nothing";
  #parts: AnswerPart[] = [];

  constructor(options: CallReaderOptions) {
    this.#options = options;
    this.#mode = options.syntax.marker === "" ? "start" : "text";
    this.#sink = {
      offers: (name) => options.names.has(name),
      begin: (name) => this.#begin(name),
      arguments: (text) => this.#addArguments(text),
      end: () => {
        if (!options.several) this.#mode = "ended";
      },
    };
  }

  push(text: string): readonly AnswerPart[] {
    this.#held += text;
    while (this.#held !== "" && this.#step()) {
      // Each step takes some of what is held, or changes the mode.
    }
    return this.#take();
  }

  /** Ends the answer and returns what was still held back. */
  end(): readonly AnswerPart[] {
    const isText = (this.#mode === "text" && this.#dropped !== "all") || this.#mode === "start";
    // White space beside calls is no text.
    const rest = isText && (this.#callCount === 0 || this.#held.trim() !== "") ? this.#held : "";
    const isNoCall = this.#mode === "call" && !this.#begun;
    if (!this.#options.callsOnly) this.#show(isNoCall ? this.#raw : rest);
    this.#held = "";
    this.#mode = "ended";
    return this.#take();
  }

  /** @returns false when it needs more text */
  #step(): boolean {
    switch (this.#mode) {
      case "start":
        return this.#stepStart();
      case "text":
        return this.#stepText();
      case "call":
        return this.#stepCall();
      case "behind":
        return this.#stepBehind();
      case "plain":
        this.#show(this.#held);
        this.#held = "";
        return true;
      case "ended":
        this.#held = "";
        return true;
    }
  }

  #stepStart(): boolean {
    const start = this.#held.trimStart();
    if (start === "") return false;
    if (start.startsWith("{") || start.startsWith("[")) this.#open(this.#held.length - start.length, 0);
    else this.#mode = "plain";
    return true;
  }

  #stepText(): boolean {
    const { marker } = this.#options.syntax;
    if (this.#dropped === "space") this.#held = this.#held.trimStart();
    const at = this.#held.indexOf(marker);
    const textChars = at < 0 ? this.#held.length - partialChars(this.#held, marker) : at;
    // White space before a marker is left out, so it is held back together with the marker's possible beginning.
    const end = this.#held.slice(0, textChars).trimEnd().length;
    if (this.#dropped !== "all") this.#show(this.#held.slice(0, end));
    this.#held = this.#held.slice(end);
    if (at >= 0) this.#open(at - end, marker.length);
    return at >= 0;
  }

  #stepCall(): boolean {
    const chars = this.#held;
    this.#held = "";
    let at = 0;
    for (const char of chars) {
      const read = this.#reading?.next(char);
      if (!this.#begun) this.#raw += char;
      if (this.#mode === "ended") return true;
      if (read?.done === true) {
        // The character that ended something which is no call may begin another call.
        this.#held = chars.slice(read.value ? at + char.length : at);
        this.#close(read.value, char);
        return true;
      }
      at += char.length;
    }
    return false;
  }

  #stepBehind(): boolean {
    const { closer } = this.#options.syntax;
    const rest = this.#held.trimStart();
    if (closer.startsWith(rest) && rest.length < closer.length) return false;
    if (rest.startsWith(closer)) this.#held = rest.slice(closer.length);
    this.#mode = "text";
    return true;
  }

  /** Begins to read what may be a row of calls, behind white space and the marker. */
  #open(spaceChars: number, markerChars: number): void {
    this.#raw = this.#held.slice(0, spaceChars + markerChars);
    this.#held = this.#held.slice(spaceChars + markerChars);
    this.#begun = false;
    this.#reading = readCalls(this.#options.syntax, this.#sink);
    this.#reading.next();
    this.#mode = "call";
  }

  /** @param isWhole true: the row of calls is complete. false: it broke off at `last`, which is no part of it. */
  #close(isWhole: boolean, last: string): void {
    const { marker, closer } = this.#options.syntax;
    const canGoOn = marker !== "";
    if (isWhole || this.#begun) {
      this.#dropped = isWhole ? "space" : "all";
      this.#mode = canGoOn ? "text" : "ended";
      if (isWhole && closer !== "") this.#mode = "behind";
      return;
    }
    this.#show(this.#raw.slice(0, this.#raw.length - last.length));
    this.#mode = canGoOn ? "text" : "plain";
  }

  #begin(name: string): void {
    this.#begun = true;
    this.#raw = "";
    this.#parts.push({ type: "call", call: this.#callCount, name });
    this.#callCount += 1;
  }

  #addArguments(text: string): void {
    const last = this.#parts.at(-1);
    if (last?.type === "arguments") this.#parts[this.#parts.length - 1] = { ...last, text: last.text + text };
    else if (text !== "") this.#parts.push({ type: "arguments", call: this.#callCount - 1, text });
  }

  #show(signed: string): void {
    const text = withSignsShown(signed, this.#options.syntax.signs);
    if (text === "") return;
    this.#dropped = "nothing";
    const last = this.#parts.at(-1);
    if (last?.type === "text") this.#parts[this.#parts.length - 1] = { type: "text", text: last.text + text };
    else this.#parts.push({ type: "text", text });
  }

  #take(): readonly AnswerPart[] {
    const parts = this.#parts;
    this.#parts = [];
    return parts;
  }
}

/** Length of the longest end of the text that is a beginning of the marker. */
function partialChars(text: string, marker: string): number {
  let chars = Math.min(marker.length - 1, text.length);
  while (chars > 0 && !text.endsWith(marker.slice(0, chars))) chars -= 1;
  return chars;
}
