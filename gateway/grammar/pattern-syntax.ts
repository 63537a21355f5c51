/**
 * Reads regular expressions into a tree. The syntax is that of JSON schemas: JavaScript's, without lookarounds, word
 * boundaries and back references. Each part is read once, however often it is repeated.
 */
import type { Budget } from "./budget.ts";
import {
  type CodePoints,
  digits,
  lastCodePoint,
  lineBreaks,
  setOf,
  spaces,
  without,
  wordSigns,
} from "./code-points.ts";

/** Thrown for an expression that is invalid or that no automaton of code points can express. */
export class PatternFault extends Error {}

export type PatternNode =
  | { readonly kind: "some"; readonly of: CodePoints }
  | { readonly kind: "start" | "end" }
  /** "row": the parts in order. "choice": one of the parts. */
  | { readonly kind: "row" | "choice"; readonly parts: readonly PatternNode[] }
  /** `most` is Infinity where there is no upper bound. */
  | { readonly kind: "repeat"; readonly part: PatternNode; readonly least: number; readonly most: number };

const maxRepeat = 1_000;
/** Deepest nesting of groups. */
const maxDepth = 128;
/** Most characters of a count in braces, such as {2,5}, with some leading zeros. */
const maxCountChars = 24;
const classes: Readonly<Record<string, CodePoints>> = { d: digits, w: wordSigns, s: spaces };
const negatedClasses: Readonly<Record<string, CodePoints>> = {
  D: without(digits),
  W: without(wordSigns),
  S: without(spaces),
};
const inLine = without(lineBreaks);
const controls: Readonly<Record<string, string>> = { t: "\t", n: "\n", r: "\r", f: "\f", v: "\v", 0: "\0" };

/** @throws PatternFault, GrammarTooLarge */
export function readPattern(pattern: string, budget: Budget): PatternNode {
  budget.spend("patternChars", pattern.length);
  return new Parser(pattern, budget).whole();
}

class Parser {
  readonly #text: readonly string[];
  readonly #budget: Budget;
  #at = 0;
  #depth = 0;

  constructor(pattern: string, budget: Budget) {
    this.#text = Array.from(pattern);
    this.#budget = budget;
  }

  whole(): PatternNode {
    const node = this.#choice();
    if (this.#at < this.#text.length) throw new PatternFault(`has a ')' too many`);
    return node;
  }

  #choice(): PatternNode {
    const parts = [this.#row()];
    while (this.#take("|")) parts.push(this.#row());
    const [only] = parts;
    return parts.length === 1 && only !== undefined ? only : { kind: "choice", parts };
  }

  #row(): PatternNode {
    const parts: PatternNode[] = [];
    while (this.#at < this.#text.length && this.#next !== "|" && this.#next !== ")") {
      parts.push(this.#repeated(this.#term()));
    }
    return { kind: "row", parts };
  }

  /** Reads a quantifier. Greedy and lazy ones match the same texts. */
  #repeated(part: PatternNode): PatternNode {
    const counts = this.#quantifier();
    if (counts === undefined) return part;
    const [least, most] = counts;
    const isBounded = most === Number.POSITIVE_INFINITY ? least <= maxRepeat : most <= maxRepeat;
    if (!isBounded || least > most)
      throw new PatternFault(`has a count that is over ${maxRepeat}, or less than its least`);
    this.#take("?");
    return { kind: "repeat", part, least, most };
  }

  #quantifier(): readonly [number, number] | undefined {
    if (this.#next === "{") {
      const [, braces] = /^\{(\d+(?:,\d*)?)\}/.exec(this.#ahead(maxCountChars)) ?? [];
      if (braces === undefined) return undefined;
      this.#at += braces.length + 2;
      const [least = "", most = least] = braces.split(",");
      return [Number(least), most === "" ? Number.POSITIVE_INFINITY : Number(most)];
    }
    if (this.#take("*")) return [0, Number.POSITIVE_INFINITY];
    if (this.#take("+")) return [1, Number.POSITIVE_INFINITY];
    return this.#take("?") ? [0, 1] : undefined;
  }

  #term(): PatternNode {
    const sign = this.#read();
    if (sign === "(") return this.#group();
    if (sign === "^") return { kind: "start" };
    if (sign === "$") return { kind: "end" };
    if ("*+?".includes(sign)) throw new PatternFault(`has a '${sign}' with nothing to repeat`);
    // Other braces stand for themselves, as in JavaScript without the flag u.
    if (sign === "{" && /^,?\d/.test(this.#ahead(2))) {
      throw new PatternFault("has a count in '{}' that is none, or has nothing to repeat");
    }
    if (sign === ".") return { kind: "some", of: inLine };
    if (sign === "[") return { kind: "some", of: this.#set() };
    return { kind: "some", of: sign === "\\" ? this.#escape(false) : exactly(sign) };
  }

  #group(): PatternNode {
    if (this.#take("?")) {
      const named = /^<[A-Za-z_$][\w$]*>/.exec(this.#ahead(64));
      if (named !== null) this.#at += named[0].length;
      else if (!this.#take(":")) throw new PatternFault("looks around, which is not supported");
    }
    this.#depth += 1;
    if (this.#depth > maxDepth) throw new PatternFault(`has groups nested deeper than ${maxDepth}`);
    const node = this.#choice();
    this.#depth -= 1;
    if (!this.#take(")")) throw new PatternFault("has a '(' that is not closed");
    return node;
  }

  #set(): CodePoints {
    const isNegated = this.#take("^");
    const found: (readonly [number, number])[] = [];
    while (!this.#take("]")) {
      const low = this.#setMember();
      const isRange = this.#next === "-" && this.#text[this.#at + 1] !== "]";
      this.#budget.spend("looks", low.length);
      if (!isRange) {
        found.push(...low);
        continue;
      }
      this.#at += 1;
      const high = this.#setMember();
      const [[first] = [], [last] = []] = [low[0], high[0]];
      const isSingle = [low, high].every((set) => set.length === 1 && set[0]?.[0] === set[0]?.[1]);
      if (!isSingle || first === undefined || last === undefined || first > last) {
        throw new PatternFault("has a range in '[]' that is none");
      }
      found.push([first, last]);
    }
    const set = setOf(found);
    return isNegated ? without(set) : set;
  }

  #setMember(): CodePoints {
    const sign = this.#read();
    return sign === "\\" ? this.#escape(true) : exactly(sign);
  }

  #escape(isInSet: boolean): CodePoints {
    const sign = this.#read();
    const known = classes[sign] ?? negatedClasses[sign];
    if (known !== undefined) return known;
    const control = controls[sign] ?? (sign === "b" && isInSet ? "\b" : undefined);
    if (control !== undefined) return exactly(control);
    if (sign === "x" || sign === "u") return this.#hexEscape(sign);
    if (/[A-Za-z0-9]/.test(sign)) throw new PatternFault(`has '\\${sign}', which is not supported`);
    return exactly(sign);
  }

  #hexEscape(sign: "x" | "u"): CodePoints {
    const form = sign === "x" ? /^([0-9a-f]{2})/i : /^(?:([0-9a-f]{4})|\{([0-9a-f]{1,6})\})/i;
    const [text = "", plain, braced] = form.exec(this.#ahead(10)) ?? [];
    const codePoint = Number.parseInt(plain ?? braced ?? "", 16);
    const isScalar = codePoint <= lastCodePoint && !(codePoint >= 0xd800 && codePoint <= 0xdfff);
    if (!isScalar) throw new PatternFault("has an escape that is no character");
    this.#at += text.length;
    return [[codePoint, codePoint]];
  }

  get #next(): string | undefined {
    return this.#text[this.#at];
  }

  #ahead(chars: number): string {
    return this.#text.slice(this.#at, this.#at + chars).join("");
  }

  #take(sign: string): boolean {
    if (this.#next !== sign) return false;
    this.#at += 1;
    return true;
  }

  #read(): string {
    const sign = this.#next;
    if (sign === undefined) throw new PatternFault("ends too early");
    this.#at += 1;
    return sign;
  }
}

function exactly(sign: string): CodePoints {
  const codePoint = sign.codePointAt(0) ?? 0;
  if (codePoint >= 0xd800 && codePoint <= 0xdfff) throw new PatternFault("has half a character");
  return [[codePoint, codePoint]];
}
