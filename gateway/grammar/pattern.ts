/**
 * Regular expressions as automata of code points, in the syntax that JSON schemas have: JavaScript's, without what looks
 * around (lookarounds, word boundaries) or back (references).
 */
export type CodePoints = readonly (readonly [low: number, high: number])[];

/** An expression that no automaton of code points is. */
export class PatternFault extends Error {}

type Edge =
  | { readonly kind: "some"; readonly of: CodePoints; readonly to: number }
  | { readonly kind: "empty"; readonly to: number }
  | { readonly kind: "start" | "end"; readonly to: number };

/** States are counted from 0; texts are read from the first one on, and match when they end in the last one. */
export interface Automaton {
  readonly edges: readonly (readonly Edge[])[];
  readonly first: number;
  readonly last: number;
}

const maxStates = 4_000;
const maxRepeat = 1_000;
/** Braces with two counts, some leading zeros among them. */
const maxCountChars = 24;
const lastCodePoint = 0x10ffff;
const any: CodePoints = [
  [0, 0xd7ff],
  [0xe000, lastCodePoint],
];
const lineBreaks: CodePoints = spans("\n\n\r\r\u2028\u2029");
const digits: CodePoints = spans("09");
const wordSigns: CodePoints = spans("09AZ__az");
/** WhiteSpace and LineTerminator of ECMAScript. */
const spaces: CodePoints = spans(
  "\t\r  \u00a0\u00a0\u1680\u1680\u2000\u200a\u2028\u2029\u202f\u202f\u205f\u205f\u3000\u3000\ufeff\ufeff",
);

/** Pairs of first and last. */
function spans(pairs: string): CodePoints {
  const points = Array.from(pairs, (sign) => sign.codePointAt(0) ?? 0);
  return points.flatMap((low, i): CodePoints => (i % 2 === 0 ? [[low, points[i + 1] ?? low]] : []));
}

function without(set: CodePoints): CodePoints {
  const left: [number, number][] = [];
  for (const [low, high] of any) {
    let from = low;
    for (const [first, last] of set.toSorted((a, b) => a[0] - b[0])) {
      if (last < from || first > high) continue;
      if (first > from) left.push([from, first - 1]);
      from = last + 1;
    }
    if (from <= high) left.push([from, high]);
  }
  return left;
}

/** A pattern matches where it is found: what stands around it is free unless it is anchored. @throws PatternFault */
export function patternAutomaton(pattern: string): Automaton {
  const parser = new Parser(pattern);
  const { from, to } = parser.whole();
  const { edges } = parser;
  const [first, last] = [edges.push([]) - 1, edges.push([]) - 1];
  edges[first]?.push({ kind: "some", of: any, to: first }, { kind: "empty", to: from });
  edges[to]?.push({ kind: "empty", to: last });
  edges[last]?.push({ kind: "some", of: any, to: last });
  return { edges, first, last };
}

interface Piece {
  readonly from: number;
  readonly to: number;
}

class Parser {
  readonly edges: Edge[][] = [];
  readonly #text: readonly string[];
  #at = 0;

  constructor(pattern: string) {
    this.#text = Array.from(pattern);
  }

  whole(): Piece {
    const piece = this.#alternatives();
    if (this.#at < this.#text.length) throw new PatternFault(`has a ')' too many`);
    return piece;
  }

  #alternatives(): Piece {
    const pieces = [this.#sequence()];
    while (this.#take("|")) pieces.push(this.#sequence());
    const [only] = pieces;
    if (pieces.length === 1 && only !== undefined) return only;
    const [from, to] = [this.#state(), this.#state()];
    for (const piece of pieces) {
      this.#join(from, piece.from);
      this.#join(piece.to, to);
    }
    return { from, to };
  }

  #sequence(): Piece {
    const from = this.#state();
    let to = from;
    while (this.#at < this.#text.length && this.#next !== "|" && this.#next !== ")") {
      const start = this.#at;
      const piece = this.#repeated(this.#term(), start);
      this.#join(to, piece.from);
      to = piece.to;
    }
    return { from, to };
  }

  #repeated(piece: Piece, start: number): Piece {
    const counts = this.#quantifier();
    if (counts === undefined) return piece;
    const [least, most] = counts;
    const after = this.#at;
    const again = (): Piece => {
      this.#at = start;
      const copy = this.#term();
      this.#at = after;
      return copy;
    };
    const from = this.#state();
    let to = from;
    for (let count = 0; count < least; count++) {
      const copy = count === 0 ? piece : again();
      this.#join(to, copy.from);
      to = copy.to;
    }
    if (most === Number.POSITIVE_INFINITY) {
      const copy = least === 0 ? piece : again();
      const loop = this.#state();
      this.#join(to, loop);
      this.#join(loop, copy.from);
      this.#join(copy.to, loop);
      return { from, to: loop };
    }
    const end = this.#state();
    for (let count = least; count < most; count++) {
      const copy = count === 0 ? piece : again();
      this.#join(to, end);
      this.#join(to, copy.from);
      to = copy.to;
    }
    this.#join(to, end);
    return { from, to: end };
  }

  /** Greedy or not is one language. */
  #quantifier(): readonly [number, number] | undefined {
    const [, braces] = /^\{(\d+(?:,\d*)?)\}/.exec(this.#text.slice(this.#at, this.#at + maxCountChars).join("")) ?? [];
    let counts: readonly [number, number] | undefined;
    if (braces !== undefined) {
      this.#at += braces.length + 2;
      const [least = "", most = least] = braces.split(",");
      counts = [Number(least), most === "" ? Number.POSITIVE_INFINITY : Number(most)];
    } else if (this.#take("*")) counts = [0, Number.POSITIVE_INFINITY];
    else if (this.#take("+")) counts = [1, Number.POSITIVE_INFINITY];
    else if (this.#take("?")) counts = [0, 1];
    if (counts === undefined) return undefined;
    const [least, most] = counts;
    const isBounded = most === Number.POSITIVE_INFINITY ? least <= maxRepeat : most <= maxRepeat;
    if (!isBounded || least > most)
      throw new PatternFault(`has a count that is over ${maxRepeat}, or less than its least`);
    this.#take("?");
    return counts;
  }

  #term(): Piece {
    const sign = this.#read();
    if (sign === "(") return this.#group();
    if (sign === "^" || sign === "$") {
      const [from, to] = [this.#state(), this.#state()];
      this.edges[from]?.push({ kind: sign === "^" ? "start" : "end", to });
      return { from, to };
    }
    if ("*+?".includes(sign)) throw new PatternFault(`has a '${sign}' with nothing to repeat`);
    // Other braces stand for themselves, as in JavaScript without its flag u.
    if (sign === "{" && /^,?\d/.test(`${this.#next}${this.#text[this.#at + 1]}`)) {
      throw new PatternFault("has a count in '{}' that is none, or has nothing to repeat");
    }
    if (sign === ".") return this.#some(without(lineBreaks));
    if (sign === "[") return this.#some(this.#set());
    return this.#some(sign === "\\" ? this.#escape(false) : exactly(sign));
  }

  #group(): Piece {
    if (this.#take("?")) {
      const named = /^<[A-Za-z_$][\w$]*>/.exec(this.#text.slice(this.#at, this.#at + 64).join(""));
      if (named !== null) this.#at += named[0].length;
      else if (!this.#take(":")) throw new PatternFault("looks around, which is not supported");
    }
    const piece = this.#alternatives();
    if (!this.#take(")")) throw new PatternFault("has a '(' that is not closed");
    return piece;
  }

  #set(): CodePoints {
    const isNegated = this.#take("^");
    const found: (readonly [number, number])[] = [];
    while (!this.#take("]")) {
      const low = this.#setMember();
      const isRange = this.#next === "-" && this.#text[this.#at + 1] !== "]";
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
    return isNegated ? without(found) : found;
  }

  #setMember(): CodePoints {
    const sign = this.#read();
    return sign === "\\" ? this.#escape(true) : exactly(sign);
  }

  #escape(isInSet: boolean): CodePoints {
    const sign = this.#read();
    const [lower, isNegated] = [sign.toLowerCase(), sign !== sign.toLowerCase()];
    const classes: Readonly<Record<string, CodePoints>> = { d: digits, w: wordSigns, s: spaces };
    const known = classes[lower];
    if (known !== undefined) return isNegated ? without(known) : known;
    const controls: Readonly<Record<string, string>> = { t: "\t", n: "\n", r: "\r", f: "\f", v: "\v", 0: "\0" };
    const control = controls[sign] ?? (sign === "b" && isInSet ? "\b" : undefined);
    if (control !== undefined) return exactly(control);
    if (sign === "x" || sign === "u") return this.#hexEscape(sign);
    if (/[A-Za-z0-9]/.test(sign)) throw new PatternFault(`has '\\${sign}', which is not supported`);
    return exactly(sign);
  }

  #hexEscape(sign: "x" | "u"): CodePoints {
    const rest = this.#text.slice(this.#at, this.#at + 10).join("");
    const form = sign === "x" ? /^([0-9a-f]{2})/i : /^(?:([0-9a-f]{4})|\{([0-9a-f]{1,6})\})/i;
    const [text = "", plain, braced] = form.exec(rest) ?? [];
    const codePoint = Number.parseInt(plain ?? braced ?? "", 16);
    const isScalar = codePoint <= lastCodePoint && !(codePoint >= 0xd800 && codePoint <= 0xdfff);
    if (!isScalar) throw new PatternFault("has an escape that is no character");
    this.#at += text.length;
    return [[codePoint, codePoint]];
  }

  #some(of: CodePoints): Piece {
    const [from, to] = [this.#state(), this.#state()];
    this.edges[from]?.push({ kind: "some", of, to });
    return { from, to };
  }

  get #next(): string | undefined {
    return this.#text[this.#at];
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

  #join(from: number, to: number): void {
    this.edges[from]?.push({ kind: "empty", to });
  }

  #state(): number {
    if (this.edges.length >= maxStates) throw new PatternFault("is too large");
    return this.edges.push([]) - 1;
  }
}

function exactly(sign: string): CodePoints {
  const codePoint = sign.codePointAt(0) ?? 0;
  if (codePoint >= 0xd800 && codePoint <= 0xdfff) throw new PatternFault("has half a character");
  return [[codePoint, codePoint]];
}
