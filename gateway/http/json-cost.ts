/** What a JSON text may cost whoever parses it and looks at what it holds. */
import { ApiError } from "../errors.ts";

const quote = 0x22;
const backslash = 0x5c;
const openBrace = 0x7b;
const closeBrace = 0x7d;
const openBracket = 0x5b;
const closeBracket = 0x5d;
const comma = 0x2c;

/**
 * Counts brackets and commas outside strings, so that nothing recursive ever meets a deep value, no parser builds
 * millions of small ones, and no schema looks at each of a hundred thousand names.
 * @param maxFields of one object
 * @throws ApiError nesting_too_deep, invalid_request
 */
export function refuseCostlyJson(text: string, maxDepth: number, maxCommas: number, maxFields = maxCommas): void {
  let depth = 0;
  let commas = 0;
  /** Commas of the value that is open at each depth; of an array, none. */
  const fieldCommas: number[] = [];
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index);
    if (code === quote) index = endOfString(text, index + 1);
    else if (code === openBrace || code === openBracket) {
      depth += 1;
      fieldCommas[depth] = code === openBrace ? 0 : Number.NEGATIVE_INFINITY;
    } else if (code === closeBrace || code === closeBracket) depth = Math.max(0, depth - 1);
    else if (code === comma) {
      commas += 1;
      const fields = (fieldCommas[depth] ?? 0) + 1;
      fieldCommas[depth] = fields;
      if (fields >= maxFields) {
        throw new ApiError("invalid_request", { message: `An object may have at most ${maxFields} fields.` });
      }
    }
    if (depth > maxDepth) {
      throw new ApiError("nesting_too_deep", { message: `The body may be nested ${maxDepth} deep at most.` });
    }
    if (commas > maxCommas) {
      throw new ApiError("invalid_request", { message: `The body may have at most ${maxCommas} values.` });
    }
  }
}

/** Index of the quote that ends the string; the end of the text when there is none. Skips with indexOf, as most bytes are in strings. */
function endOfString(text: string, start: number): number {
  let end = text.indexOf('"', start);
  while (end >= 0) {
    let backslashes = 0;
    while (text.charCodeAt(end - 1 - backslashes) === backslash && end - 1 - backslashes >= start) backslashes += 1;
    if (backslashes % 2 === 0) return end;
    end = text.indexOf('"', end + 1);
  }
  return text.length;
}
