/**
 * JSON as it is being written, one character at a time: each reader is a generator that takes the next character with
 * every `yield`. What a reader writes on is valid wherever a model's slips allow it.
 */
import { signIndex } from "../text/call-syntax.ts";

/** Takes characters; returns what it found. */
export type Reading<Found> = Generator<undefined, Found, string>;

export type Write = (text: string) => void;

const isSpace = (char: string): boolean => char === " " || char === "\n" || char === "\r" || char === "\t";

/** The next character that is no white space. */
export function* nextChar(): Reading<string> {
  for (;;) {
    const char = yield;
    if (!isSpace(char)) return char;
  }
}

/** The rest of a string, its closing quote included. false: a sign stands in it. */
export function* readString(write: Write): Reading<boolean> {
  for (;;) {
    const first = yield;
    const escapes = first === "\\";
    const char = escapes ? yield : first;
    if (signIndex(char) >= 0) return false;
    // What a model leaves unescaped is escaped: a line break in a string is the most usual slip.
    if (char < " ") write(JSON.stringify(char).slice(1, -1));
    else write(escapes ? first + char : char);
    if (char === '"' && !escapes) return true;
  }
}

/** An object or array behind its first bracket. Returns at its last one; false: it is none. */
export function* readNested(first: string, write: Write): Reading<boolean> {
  write(first);
  const open = [first];
  while (open.length > 0) {
    const char = yield;
    if (signIndex(char) >= 0) return false;
    const closes = char === "}" || char === "]";
    if (closes && open.pop() !== (char === "}" ? "{" : "[")) return false;
    write(char);
    if (char === "{" || char === "[") open.push(char);
    if (char === '"' && !(yield* readString(write))) return false;
  }
  return true;
}

/** A value of any kind behind its first character. Returns what follows it; "": it is none. */
export function* readValue(first: string, write: Write): Reading<string> {
  if (first === "{" || first === "[") return (yield* readNested(first, write)) ? yield* nextChar() : "";
  if (first === '"') {
    write(first);
    return (yield* readString(write)) ? yield* nextChar() : "";
  }
  if (!/[-\w]/.test(first)) return "";
  write(first);
  for (;;) {
    const char = yield;
    if (isSpace(char)) return yield* nextChar();
    if (!/[-+.\w]/.test(char)) return char;
    write(char);
  }
}
