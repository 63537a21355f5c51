/** Schemas that clients send, with an answer of each, and schemas that are meant to take long. */

export interface TypicalSchema {
  readonly name: string;
  readonly schema: unknown;
  readonly answer: unknown;
}

const text = { type: "string" };
const objectOf = (properties: Readonly<Record<string, unknown>>) => ({
  type: "object",
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
});
const said =
  "The contract ends on 31 March 2027, unless either side gives notice in writing three months before; see clause 14.2 and the annex on fees.";

const contact = objectOf({
  name: text,
  email: { type: "string", format: "email" },
  age: { type: "integer", minimum: 0, maximum: 150 },
  isMember: { type: "boolean" },
  born: { type: "string", format: "date" },
});
const shapes = ["circle", "square", "text", "image", "table", "list", "code", "quote"];

export const typicalSchemas: readonly TypicalSchema[] = [
  {
    name: "contact",
    schema: contact,
    answer: { name: "Ada King", email: "ada.king@example.org", age: 36, isMember: true, born: "1815-12-10" },
  },
  {
    name: "extraction, lists in objects",
    schema: objectOf({
      title: { type: "string", maxLength: 200 },
      parties: { type: "array", items: contact, minItems: 1, maxItems: 20 },
      kind: { enum: ["lease", "sale", "loan", "service", "employment"] },
      summary: { type: "string", maxLength: 1_000 },
      amounts: { type: "array", items: objectOf({ label: text, value: { type: "number" } }) },
    }),
    answer: {
      title: "Contract of services between King and Byron",
      parties: [{ name: "Ada King", email: "ada@example.org", age: 36, isMember: false, born: "1815-12-10" }],
      kind: "service",
      summary: said,
      amounts: [
        { label: "monthly fee", value: 1250.5 },
        { label: "deposit", value: 3e3 },
      ],
    },
  },
  {
    name: "anyOf of eight objects",
    schema: objectOf({
      parts: {
        type: "array",
        items: {
          anyOf: shapes.map((kind) => objectOf({ kind: { const: kind }, label: text, size: { type: "integer" } })),
        },
      },
    }),
    answer: { parts: shapes.map((kind, i) => ({ kind, label: `the ${kind} on page ${i}`, size: 10 * i })) },
  },
  {
    name: "enum of 500",
    schema: objectOf({ code: { enum: Array.from({ length: 500 }, (_, i) => `code ${i * 7_919}`) }, reason: text }),
    answer: { code: `code ${321 * 7_919}`, reason: said },
  },
  {
    name: "patterns",
    schema: objectOf({
      sku: { type: "string", pattern: "^[A-Z]{3}-[0-9]{4,6}(-[a-z]+)?$" },
      phone: { type: "string", pattern: "^\\+?[0-9 ]{6,20}$" },
      when: { type: "string", format: "date-time" },
      id: { type: "string", format: "uuid" },
    }),
    answer: {
      sku: "ABC-12345-blue",
      phone: "+44 20 7946 0958",
      when: "2026-11-22T10:00:00Z",
      id: "123e4567-e89b-42d3-a456-426614174000",
    },
  },
  {
    name: "any JSON object",
    schema: { type: "object" },
    answer: {
      answer: said,
      sources: [
        { id: "file-1", page: 3 },
        { id: "file-2", page: null },
      ],
      sure: true,
    },
  },
];

const pairOf = (i: number): string => String.fromCharCode(97 + (i % 26), 97 + (Math.floor(i / 26) % 26));
const patterns = (count: number, patternOf: (i: number) => string) =>
  Array.from({ length: count }, (_, i) => ({ type: "string", pattern: patternOf(i) }));

/** Answers of these are random. */
export const nastySchemas: readonly { readonly name: string; readonly schema: unknown }[] = [
  { name: "anyOf of 250 patterns, two letters", schema: { anyOf: patterns(250, (i) => `^.*${pairOf(i)}.*$`) } },
  {
    name: "anyOf of 250 patterns, classes",
    schema: { anyOf: patterns(250, (i) => `^[^${pairOf(i)}]*${pairOf(i)}[a-z]*$`) },
  },
  {
    name: "lists of anyOf of 100 patterns",
    schema: {
      type: "array",
      minItems: 40,
      items: { anyOf: patterns(100, (i) => `^.*${pairOf(i)}[^${pairOf(i + 9)}].*$`) },
    },
  },
  {
    name: "anyOf of 20 lists of 20",
    schema: {
      anyOf: Array.from({ length: 20 }, (_, i) => ({
        type: "array",
        minItems: 20 + i,
        maxItems: i + 40,
        items: {
          anyOf: Array.from({ length: 20 }, (_, j) => ({ type: "string", minLength: i + j, maxLength: 60 + i * j })),
        },
      })),
    },
  },
];
