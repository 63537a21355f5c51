/** Reads a row of calls behind its marker, as a model writes it. */
import { type CallSyntax, signIndex } from "../text/call-syntax.ts";
import { nextChar, type Reading, readNested, readString, readValue } from "./read-json.ts";

/** Receives the calls as they are read. */
export interface CallSink {
  /** Whether there is a tool of this name. */
  offers(name: string): boolean;
  /** A call begins: its arguments follow. */
  begin(name: string): void;
  arguments(text: string): void;
  /** The call has all its arguments. */
  end(): void;
}

/** Most characters of a name that are read. */
const maxNameChars = 256;

/** Returns true where the calls end, and false where the text is not, or no longer, a call. */
export function readCalls(syntax: Pick<CallSyntax, "kind" | "between">, sink: CallSink): Reading<boolean> {
  return syntax.kind === "named" ? readNamed(syntax.between, sink) : readObjects(sink);
}

function* readObjects(sink: CallSink): Reading<boolean> {
  let char = yield* nextChar();
  const isList = char === "[";
  if (isList) char = yield* nextChar();
  for (;;) {
    if (char !== "{" || !(yield* readObject(sink))) return false;
    if (!isList) return true;
    char = yield* nextChar();
    if (char !== ",") return char === "]";
    char = yield* nextChar();
  }
}

/** Reads `{"name": …, "arguments": {…}}` behind its first bracket, in any order. Other fields are ignored. */
function* readObject(sink: CallSink): Reading<boolean> {
  const call = new PendingCall(sink);
  let char = yield* nextChar();
  while (char === '"') {
    let key = "";
    const isKey = yield* readString((text) => {
      key += text;
    });
    if (!isKey || (yield* nextChar()) !== ":") return false;
    const first = yield* nextChar();
    if (key === 'name"') {
      let name = "";
      char = yield* readValue(first, (text) => {
        name += text;
      });
      if (!call.name(name)) return false;
    } else if (key === 'arguments"' || key === 'parameters"') {
      if ((first !== "{" && first !== "n") || !call.takesArguments()) return false;
      char = yield* readValue(first, (text) => {
        // null stands for no arguments.
        if (first === "{") call.arguments(text);
      });
    } else {
      char = yield* readValue(first, () => undefined);
    }
    if (char === ",") char = yield* nextChar();
    else if (char !== "}") return false;
  }
  return char === "}" && call.end();
}

function* readNamed(argumentsSign: string, sink: CallSink): Reading<boolean> {
  let name = "";
  let char = yield;
  for (; signIndex(char) < 0 && char !== "{"; char = yield) {
    if (name.length === maxNameChars) return false;
    name += char;
  }
  if (!sink.offers(name.trim())) return false;
  // An id may stand between the name and the arguments.
  for (let chars = 0; char !== argumentsSign && char !== "{"; char = yield) {
    chars += 1;
    if (chars > maxNameChars) return false;
  }
  if (char !== "{") char = yield* nextChar();
  if (char !== "{") return false;
  sink.begin(name.trim());
  if (!(yield* readNested(char, (text) => sink.arguments(text)))) return false;
  sink.end();
  return true;
}

/** A call that is being read. Its name may come after its arguments. */
class PendingCall {
  readonly #sink: CallSink;
  #name: string | undefined;
  #early = "";
  #hasArguments = false;
  #begun = false;

  constructor(sink: CallSink) {
    this.#sink = sink;
  }

  /** @returns false when there is no tool of this name */
  name(json: string): boolean {
    const name = json.length <= maxNameChars ? stringOf(json) : undefined;
    if (name === undefined || this.#name !== undefined || !this.#sink.offers(name)) return false;
    this.#name = name;
    if (this.#early !== "") this.arguments("");
    return true;
  }

  /** @returns false when the call has arguments already */
  takesArguments(): boolean {
    const isFirst = !this.#hasArguments;
    this.#hasArguments = true;
    return isFirst;
  }

  arguments(text: string): void {
    this.#early += text;
    if (this.#name === undefined) return;
    if (!this.#begun) this.#sink.begin(this.#name);
    this.#begun = true;
    this.#sink.arguments(this.#early);
    this.#early = "";
  }

  /** @returns false when the call has no name */
  end(): boolean {
    if (this.#name === undefined) return false;
    if (!this.#begun) this.arguments("{}");
    this.#sink.end();
    return true;
  }
}

function stringOf(json: string): string | undefined {
  try {
    const value: unknown = JSON.parse(json);
    return typeof value === "string" ? value : undefined;
  } catch {
    return undefined;
  }
}
