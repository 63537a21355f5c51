/** Schemas of answers and of tools: what a grammar is compiled from, and what it costs to follow. */
import { jsonCase, type StallCase } from "./case.ts";
import { times } from "./texts.ts";

const chat = "POST /v1/chat/completions";

const asked = { messages: [{ role: "user", content: "Who is Anna?" }], max_tokens: 24, temperature: 2 };

function formatCase(name: string, schema: object, more: object = {}): StallCase {
  const format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return jsonCase(chat, `schema: ${name}`, ({ model }) => ({ model, ...asked, ...more, response_format: format }));
}

const letters = (count: number, from = 0x4e00) => String.fromCodePoint(...times(count, (at) => from + at));
const object = (properties: object) => ({ type: "object", properties, additionalProperties: false });
const properties = (count: number, schema: (at: number) => object) =>
  Object.fromEntries(times(count, (at) => [`p${at}`, schema(at)]));
const string = (pattern: string) => ({ type: "string", pattern });

const tools = (count: number, schema: (at: number) => object) =>
  times(count, (at) => ({ type: "function", function: { name: `t${at}`, strict: true, parameters: schema(at) } }));

const toolsCase = (name: string, list: readonly object[]): StallCase =>
  jsonCase(chat, `tools: ${name}`, ({ model }) => ({ model, ...asked, tools: list, tool_choice: "required" }));

/** 8,000 classes of two letters each, a way to spell each text many times. */
const ambiguous = {
  type: "array",
  items: { anyOf: times(250, (at) => string(`^(a|b|${letters(1, 0x61 + (at % 26))})*$`)) },
};

export const schemaCases: readonly StallCase[] = [
  formatCase("a class of 20,000 characters, a thousand times", string(`^[${letters(20_000)}]{1000}$`)),
  formatCase("a class of 2 million characters", string(`^[${letters(20_000).repeat(100)}]{1000}$`)),
  formatCase(
    "100 patterns of 1,000 characters, three times each",
    object(properties(100, (at) => string(`^[${letters(1_000, 0x4e00 + at)}]{3}$`))),
  ),
  formatCase("a literal of 1,900 letters", string(`^${"a".repeat(1_900)}$`)),
  formatCase("nested counts", string("^((a{1,30}){1,30}b?){1,3}$")),
  formatCase("many ways to spell one text", string("^(a|a|aa|aaa)*(a|aa|aaa|aaaa)*(a?){30}b$")),
  formatCase(
    "any of 250 patterns, 6 choices",
    {
      type: "object",
      properties: { a: { anyOf: times(250, (at) => string(`^(${"x?".repeat(at % 20)}[a-z ]*){1,3}${at}$`)) } },
      required: ["a"],
    },
    { n: 6 },
  ),
  formatCase("lists of any of 250 patterns, 16 choices", ambiguous, { n: 16 }),
  formatCase("300 tuples over 300", {
    anyOf: times(300, (at) => ({
      type: "array",
      prefixItems: times(Math.min(300, at + 1), () => ({})),
      minItems: Math.min(300, at + 1),
      items: false,
    })),
  }),
  formatCase("512 properties, none required", object(properties(512, () => ({ type: "string" })))),
  formatCase("512 values of 100 letters", { enum: times(512, (at) => `${at}${"v".repeat(100)}`) }),
  formatCase(
    "strings of up to 4,096 characters, 8 of them",
    object(properties(8, () => ({ type: "string", minLength: 4_000, maxLength: 4_096 }))),
  ),
  formatCase("60,000 keywords nested in definitions", {
    $defs: properties(5_000, (at) => ({ $ref: `#/$defs/p${at + 1}` })),
    $ref: "#/$defs/p0",
  }),
  formatCase("numbers in ranges", {
    type: "array",
    items: { type: "integer", minimum: -987_654_321_012, maximum: 123_456_789_012 },
    minItems: 500,
    maxItems: 1_024,
  }),
  toolsCase(
    "30 strict, 100 patterns each",
    tools(30, () => object(properties(20, (at) => string(`^[${letters(200, 0x4e00 + at)}]{3}$`)))),
  ),
  toolsCase(
    "128 strict, 50 properties",
    tools(128, () => object(properties(50, () => ({ type: "number" })))),
  ),
  jsonCase("POST /v1/responses", "schema: a class of 20,000 characters", ({ model }) => ({
    model,
    input: "Who?",
    max_output_tokens: 4,
    text: { format: { type: "json_schema", name: "a", schema: string(`^[${letters(20_000)}]{1000}$`) } },
  })),
  jsonCase("POST /v1/messages", "schema: 100 patterns", ({ model }) => ({
    model,
    max_tokens: 4,
    messages: [{ role: "user", content: "Who?" }],
    output_config: {
      format: {
        type: "json_schema",
        schema: object(properties(100, (at) => string(`^[${letters(1_000, 0x4e00 + at)}]{3}$`))),
      },
    },
  })),
];
