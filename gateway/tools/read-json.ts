/**
 * Reads JSON while it is generated, one character at a time. Each reader is a generator that takes the next character
 * at every `yield`. It writes on valid JSON as far as the model's mistakes allow.
 */
import { signIndex } from "../text/call-syntax.ts";

/** A reader: takes characters, and returns what it found. */
export type Reading<Found> = Generator<undefined, Found, string>;

export type Write = (text: string) => void;

const isSpace = (char: string): boolean => char === " " || char === "\n" || char === "\r" || char === "\t";

/** Reads up to the next character that is no white space, and returns that character. */
export function* nextChar(): Reading<string> {
  for (;;) {
    const char = yield;
    if (!isSpace(char)) return char;
  }
}

/** Reads the rest of a string, its closing quote included. false: a sign stands in it, so it is no string. */
export function* readString(write: Write): Reading<boolean> {
  for (;;) {
    const first = yield;
    const escapes = first === "\\";
    const char = escapes ? yield : first;
    if (signIndex(char) >= 0) return false;
    // Control characters that the model left unescaped are escaped; a line break in a string is the most usual mistake.
    if (char < " ") write(JSON.stringify(char).slice(1, -1));
    else write(escapes ? first + char : char);
    if (char === '"' && !escapes) return true;
  }
}

/** Reads an object or array behind its first bracket, up to its last one. false: the text is neither. */
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

/** Reads a value of any kind behind its first character. Returns the character behind it, or "" for no value. */
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
