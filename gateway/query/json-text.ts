/** Parses JSON and YAML within bounds. The parsers are native and fast, but have no bounds of their own. */
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

/** Counts brackets, commas and strings in JSON text, so that the parser never meets deep or millions of values. */
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
 * A merge key (`<<: *anchor`): plain, quoted, escaped or after `?`. It copies all keys of a mapping, so a short text
 * can make a very large value. An alias only points to the same object again, so it is allowed.
 */
const mergeKey = new RegExp(
  `${lessThan}{2}["']?\\s*:|(?:^|[-{[,])[ \\t]*\\?\\s+(?:[!&]\\S+\\s+){0,2}["']?${lessThan}{2}`,
  "im",
);

/**
 * Parses YAML. The value may hold the same object at many places, even inside itself, so the caller must bound depth
 * and count when it walks the value.
 * @throws QueryError invalid_json, nesting_too_deep, invalid_value
 */
export function readYamlText(text: string): unknown {
  if (text.length > queryLimits.yamlChars) {
    refuse("$", `must have at most ${queryLimits.yamlChars} characters as YAML; send a longer query as JSON`);
  }
  if (mergeKey.test(text)) refuse("$", 'has a merge key ("<<:"), which is not supported; write its fields out');
  const value = parseYaml(text);
  // The parser returns several documents as a list, and no query is a list.
  if (Array.isArray(value)) refuse("$", "must be one YAML document that is a mapping");
  return value;
}

function parseYaml(text: string): unknown {
  try {
    return Bun.YAML.parse(text);
  } catch (error) {
    // The native parser recurses, and throws this before its stack overflows.
    if (error instanceof RangeError) return refuse("$", "is nested too deeply", "nesting_too_deep");
    return refuse("$", "is not valid YAML", "invalid_json");
  }
}

/** A query's text as the value that `parseQuery` takes. @throws QueryError invalid_json */
export function readQueryText(text: string, format: "json" | "yaml"): unknown {
  return format === "json" ? readJsonText(text) : readYamlText(text);
}
