/** What a JSON text may cost whoever parses it and looks at what it holds. */
import { ApiError } from "../errors.ts";
import { endOfString, jsonSigns } from "../query/json-scan.ts";

const { quote, comma, openBracket, closeBracket, openBrace, closeBrace } = jsonSigns;

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
