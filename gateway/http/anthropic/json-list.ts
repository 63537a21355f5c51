/**
 * A JSON object with one long list, read while it comes: `{"name": [element, element, …], …}`. Elements are given as text,
 * each when it is whole, so that none but the last one is in memory.
 */
import { ApiError } from "../../base/errors.ts";
import { jsonSigns, StringScan } from "../../query/json-scan.ts";

const { quote, comma, openBracket, closeBracket, openBrace, closeBrace } = jsonSigns;
/** Most characters outside the list's elements. */
const maxRestChars = 65_536;
/** Characters before a list that are searched for its name. */
const maxNameChars = 256;

export class JsonListReader {
  readonly #opening: RegExp;
  readonly #strings = new StringScan();
  #place: "before" | "list" | "after" = "before";
  /** Brackets and braces that are open: of the whole, or of an element. */
  #depth = 0;
  /** The object with an empty list. */
  #rest = "";
  /** The part of the current element that has arrived. */
  #element = "";
  #count = 0;

  /** @param name of the list; one with escaped letters is another name here */
  constructor(name: string) {
    this.#opening = new RegExp(`"${name}"\\s*:\\s*$`);
  }

  /** @returns texts of the elements that ended in this piece; each may be no JSON. @throws ApiError invalid_request */
  read(piece: string): readonly string[] {
    const ended: string[] = [];
    let taken = 0;
    const take = (end: number): void => {
      this.#take(piece.slice(taken, end));
      taken = end;
    };
    for (let index = this.#strings.inString ? this.#strings.end(piece, 0) + 1 : 0; index < piece.length; index++) {
      const code = piece.charCodeAt(index);
      if (code === quote) index = this.#strings.end(piece, index + 1);
      else if (this.#place === "before" && this.#opensList(code, piece.slice(taken, index))) {
        take(index + 1);
        this.#place = "list";
        this.#depth = 0;
      } else if (this.#place === "list" && this.#depth === 0 && (code === comma || code === closeBracket)) {
        take(index);
        this.#endElement(ended, code === closeBracket);
        if (code === comma) taken += 1;
      } else if (code === openBrace || code === openBracket) this.#depth += 1;
      else if (code === closeBrace || code === closeBracket) this.#depth -= 1;
    }
    take(piece.length);
    return ended;
  }

  /** What the object has beside its list, which is empty here. @throws ApiError invalid_json */
  end(): unknown {
    try {
      return JSON.parse(this.#rest);
    } catch {
      throw new ApiError("invalid_json");
    }
  }

  #opensList(code: number, before: string): boolean {
    if (code !== openBracket || this.#depth !== 1) return false;
    return this.#opening.test((this.#rest.slice(-maxNameChars) + before).slice(-maxNameChars));
  }

  #endElement(ended: string[], isLast: boolean): void {
    const text = this.#element;
    this.#element = "";
    if (!(isLast && this.#count === 0 && text.trim() === "")) ended.push(text);
    this.#count += 1;
    if (isLast) this.#place = "after";
  }

  #take(text: string): void {
    if (this.#place === "list") {
      this.#element += text;
      return;
    }
    this.#rest += text;
    if (this.#rest.length <= maxRestChars) return;
    const message = `The body may have at most ${maxRestChars} characters beside its list.`;
    throw new ApiError("invalid_request", { message });
  }
}
