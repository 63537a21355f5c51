/** What a JSON text may cost whoever parses it and looks at what it holds. */
import { ApiError } from "../../base/errors.ts";
import { jsonSigns, StringScan } from "../../query/json-scan.ts";

const { quote, comma, openBracket, closeBracket, openBrace, closeBrace } = jsonSigns;

export interface JsonBounds {
  /** Most brackets and braces that are open at the same time. */
  readonly depth: number;
  readonly commas: number;
  /** Most names of one object. */
  readonly fields: number;
  /** Strings (names among them), lists and objects: each costs a parser many times what a number does. */
  readonly nodes: number;
}

/**
 * Counts the parts of a JSON text while it arrives, so that a text which is too costly is refused before it is parsed:
 * no recursive function meets a deep value, no parser builds millions of small values, and no schema looks at a hundred
 * thousand names. Strings are skipped whole.
 */
export class JsonCost {
  readonly #bounds: JsonBounds;
  #depth = 0;
  #commas = 0;
  #nodes = 0;
  /** Commas of the value that is open at each depth; of an array, none. */
  readonly #fieldCommas: number[] = [];
  readonly #strings = new StringScan();

  constructor(bounds: JsonBounds) {
    this.#bounds = bounds;
  }

  /** Looks at the next piece of the text. @throws ApiError nesting_too_deep, invalid_request */
  look(piece: string): void {
    if (piece === "") return;
    for (let index = this.#strings.inString ? this.#strings.end(piece, 0) + 1 : 0; index < piece.length; index++) {
      const code = piece.charCodeAt(index);
      if (code === quote) {
        this.#node();
        index = this.#strings.end(piece, index + 1);
      } else if (code === comma) this.#comma();
      else if (code === openBrace || code === openBracket) this.#open(code === openBrace);
      else if (code === closeBrace || code === closeBracket) this.#depth = Math.max(0, this.#depth - 1);
    }
  }

  #node(): void {
    this.#nodes += 1;
    const { nodes } = this.#bounds;
    if (this.#nodes > nodes) throw tooMany(`The body may have at most ${nodes} strings, lists and objects.`);
  }

  #open(isObject: boolean): void {
    this.#node();
    this.#depth += 1;
    this.#fieldCommas[this.#depth] = isObject ? 0 : Number.NEGATIVE_INFINITY;
    const { depth } = this.#bounds;
    if (this.#depth > depth) {
      throw new ApiError("nesting_too_deep", { message: `The body may be nested ${depth} deep at most.` });
    }
  }

  #comma(): void {
    this.#commas += 1;
    const { commas, fields: maxFields } = this.#bounds;
    if (this.#commas > commas) throw tooMany(`The body may have at most ${commas} values.`);
    const fields = (this.#fieldCommas[this.#depth] ?? 0) + 1;
    this.#fieldCommas[this.#depth] = fields;
    if (fields >= maxFields) throw tooMany(`An object may have at most ${maxFields} fields.`);
  }
}

const tooMany = (message: string): ApiError => new ApiError("invalid_request", { message });
