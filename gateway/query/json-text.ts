/** Text to values, with bounds on what the parsers of JSON and YAML may meet: both are native and fast, but not bounded. */
import { refuse } from "./check.ts";
import { endOfString, jsonSigns } from "./json-scan.ts";
import { queryLimits } from "./limits.ts";

/** @throws QueryError invalid_json, nesting_too_deep, invalid_value */
export function readJsonText(text: string): unknown {
  if (text.length > queryLimits.textChars) refuse("$", `must have at most ${queryLimits.textChars} characters`);
  refuseCostlyJson(text);
  try {
    return JSON.parse(text);
  } catch {
    return refuse("$", "is not valid JSON", "invalid_json");
  }
}

const { quote, comma, openBracket, closeBracket, openBrace, closeBrace } = jsonSigns;

/** Counts what JSON is made of, strings skipped whole, so that no parser ever meets a deep value or builds millions. */
function refuseCostlyJson(text: string): void {
  let depth = 0;
  let tokens = 0;
  for (let index = 0; index < text.length; index++) {
    const code = text.charCodeAt(index);
    if (code === quote) index = endOfString(text, index + 1);
    else if (code === openBrace || code === openBracket) depth += 1;
    else if (code === closeBrace || code === closeBracket) depth -= 1;
    else if (code !== comma) continue;
    tokens += 1;
    if (depth > queryLimits.jsonDepth) {
      refuse("$", `may be nested ${queryLimits.jsonDepth} braces and brackets deep at most`, "nesting_too_deep");
    }
    if (tokens > queryLimits.jsonTokens) refuse("$", "has too many small values");
  }
}

const lessThan = String.raw`(?:<|\\x3c|\\u003c|\\U0000003c)`;
/**
 * A merge key (`<<: *anchor`), plain, quoted, escaped or after `?`. It copies all keys of a mapping, so a short text can
 * make a very large value; an alias only shows the same object again.
 */
const mergeKey = new RegExp(
  `${lessThan}{2}["']?\\s*:|(?:^|[-{[,])[ \\t]*\\?\\s+(?:[!&]\\S+\\s+){0,2}["']?${lessThan}{2}`,
  "im",
);

/**
 * The value may hold an object at many places, and within itself: whoever walks it must bound depth and count.
 * @throws QueryError invalid_json, nesting_too_deep, invalid_value
 */
export function readYamlText(text: string): unknown {
  if (text.length > queryLimits.yamlChars) {
    refuse("$", `must have at most ${queryLimits.yamlChars} characters as YAML; send a longer query as JSON`);
  }
  if (mergeKey.test(text)) refuse("$", 'has a merge key ("<<:"), which is not supported; write its fields out');
  const value = parseYaml(text);
  // The parser gives several documents as a list of them, and no query is a list.
  if (Array.isArray(value)) refuse("$", "must be one YAML document that is a mapping");
  return value;
}

function parseYaml(text: string): unknown {
  try {
    return Bun.YAML.parse(text);
  } catch (error) {
    // The parser descends natively and guards its stack.
    if (error instanceof RangeError) return refuse("$", "is nested too deeply", "nesting_too_deep");
    return refuse("$", "is not valid YAML", "invalid_json");
  }
}
