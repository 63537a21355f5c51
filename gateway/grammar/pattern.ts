/** Turns a pattern into an automaton that reads code points. */
import { type Alphabet, alphabetOf } from "./alphabet.ts";
import type { Budget } from "./budget.ts";
import { anything, type CodePoints } from "./code-points.ts";
import { PatternFault, type PatternNode, readPattern } from "./pattern-syntax.ts";

/** Leads from a state to another with any character of the alphabet's class number `class`. */
export interface Move {
  readonly class: number;
  readonly to: number;
}

/** Leads from a state to another without a character: always, or only at the start or end of the text. */
export interface Jump {
  readonly kind: "always" | "start" | "end";
  readonly to: number;
}

/** States are numbered from 0. Reading begins in `first`, and a text matches if it can end in `last`. */
export interface Automaton {
  readonly classes: readonly CodePoints[];
  /** The moves of each state. */
  readonly moves: readonly (readonly Move[])[];
  readonly jumps: readonly (readonly Jump[])[];
  readonly first: number;
  readonly last: number;
}

/**
 * The automaton of a pattern that may match anywhere in a text: any text may stand around it unless it is anchored.
 * @throws PatternFault, GrammarTooLarge
 */
export function patternAutomaton(pattern: string, budget: Budget): Automaton {
  const it = new Assembler(budget);
  const { from, to } = it.add(readPattern(pattern, budget));
  const [first, last] = [it.state(), it.state()];
  it.take(first, anything, first);
  it.jump(first, from);
  it.jump(to, last);
  it.take(last, anything, last);
  return { ...it.automaton(), first, last };
}

const maxStates = 4_000;

interface Piece {
  readonly from: number;
  readonly to: number;
}

class Assembler {
  readonly #budget: Budget;
  readonly #jumps: Jump[][] = [];
  /** For each state, the sets of characters that it takes, by their numbers. */
  readonly #taken: { readonly set: number; readonly to: number }[][] = [];
  readonly #sets: CodePoints[] = [];
  readonly #setIds = new Map<CodePoints, number>();
  /** Sets of one character each, so that a character which stands several times in a pattern has one set. */
  readonly #singles = new Map<number, CodePoints>();

  constructor(budget: Budget) {
    this.#budget = budget;
  }

  add(node: PatternNode): Piece {
    switch (node.kind) {
      case "some": {
        const piece = { from: this.state(), to: this.state() };
        this.take(piece.from, node.of, piece.to);
        return piece;
      }
      case "row":
        return this.#row(node.parts);
      case "choice":
        return this.#choice(node.parts);
      case "repeat":
        return this.#repeat(node.part, node.least, node.most);
      default: {
        const piece = { from: this.state(), to: this.state() };
        this.#jumps[piece.from]?.push({ kind: node.kind, to: piece.to });
        return piece;
      }
    }
  }

  state(): number {
    if (this.#jumps.length >= maxStates) throw new PatternFault("is too large");
    this.#budget.spend("looks", 1);
    this.#taken.push([]);
    return this.#jumps.push([]) - 1;
  }

  jump(from: number, to: number): void {
    this.#jumps[from]?.push({ kind: "always", to });
  }

  take(from: number, of: CodePoints, to: number): void {
    const set = this.#same(of);
    const id = this.#setIds.getOrInsertComputed(set, () => this.#sets.push(set) - 1);
    this.#taken[from]?.push({ set: id, to });
  }

  automaton(): Pick<Automaton, "classes" | "moves" | "jumps"> {
    const { classes, classesOf }: Alphabet = alphabetOf(this.#sets, this.#budget);
    const moves = this.#taken.map((taken) =>
      taken.flatMap(({ set, to }): readonly Move[] => {
        const members = classesOf[set] ?? [];
        this.#budget.spend("looks", members.length);
        return members.map((member) => ({ class: member, to }));
      }),
    );
    return { classes, moves, jumps: this.#jumps };
  }

  #row(parts: readonly PatternNode[]): Piece {
    const from = this.state();
    let to = from;
    for (const part of parts) to = this.#behind(to, part);
    return { from, to };
  }

  #choice(parts: readonly PatternNode[]): Piece {
    const [from, to] = [this.state(), this.state()];
    for (const part of parts) this.jump(this.#behind(from, part), to);
    return { from, to };
  }

  #repeat(part: PatternNode, least: number, most: number): Piece {
    const from = this.state();
    let to = from;
    for (let count = 0; count < least; count++) to = this.#behind(to, part);
    const end = this.state();
    if (most === Number.POSITIVE_INFINITY) {
      this.jump(to, end);
      this.jump(this.#behind(end, part), end);
      return { from, to: end };
    }
    for (let count = least; count < most; count++) {
      this.jump(to, end);
      to = this.#behind(to, part);
    }
    this.jump(to, end);
    return { from, to: end };
  }

  /** Adds a node behind a state. @returns the node's last state */
  #behind(state: number, node: PatternNode): number {
    const piece = this.add(node);
    this.jump(state, piece.from);
    return piece.to;
  }

  #same(of: CodePoints): CodePoints {
    const [[low, high] = [0, 1]] = of;
    if (of.length !== 1 || low !== high) return of;
    const known = this.#singles.get(low) ?? of;
    this.#singles.set(low, known);
    return known;
  }
}
