import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { Choices } from "../sim/random.ts";
import { fc } from "../support/fast-check.ts";
import { Adversary, byteTokens, demoVocabulary, vocabularyOf } from "./adversary.ts";
import { anyObjectGrammar, GrammarRefused, schemaGrammar } from "./compile.ts";
import { validates } from "./json-oracle.ts";
import { ranges } from "./ranges.ts";

// Thousands of steps over the vocabulary.
setDefaultTimeout(60_000);

const bytes = new Adversary(vocabularyOf(byteTokens), 0);
const demo = demoVocabulary();
const model = new Adversary(demo.vocabulary, demo.endTokenId);

/** Validators take no enum with a value twice; -0 is 0 there. */
const sortedText = (value: unknown): string => Array.from(JSON.stringify(value)).sort().join();

/** Schemas whose every completion is short, so that an adversary comes to an end. */
const { schema: schemas } = fc.letrec<{ schema: object; leaf: object }>((tie) => ({
  leaf: fc.oneof(
    fc.constant({ type: "boolean" }),
    fc.constant({ type: "null" }),
    fc.constant({ type: "integer" }),
    fc.constant({ type: "number" }),
    fc.constant({ type: ["integer", "null", "number"] }),
    ranges,
    fc.constantFrom("^(?:ab|世){1,2}$", "^\\d{2}:[0-5]$", '^["a]?$').map((pattern) => ({ type: "string", pattern })),
    fc.tuple(fc.nat(3), fc.nat(5)).map(([min, more]) => ({ type: "string", minLength: min, maxLength: min + more })),
    fc
      .uniqueArray(fc.jsonValue({ maxDepth: 1 }), { minLength: 1, maxLength: 4, selector: sortedText })
      .map((values) => ({ enum: values })),
    fc.jsonValue({ maxDepth: 2 }).map((value) => ({ const: value })),
  ),
  schema: fc.oneof(
    { maxDepth: 3, depthIdentifier: "schema" },
    tie("leaf"),
    fc
      .tuple(fc.dictionary(fc.string({ maxLength: 6 }), tie("schema"), { maxKeys: 4, noNullPrototype: true }), fc.nat())
      .map(([properties, some]) => {
        const required = Object.keys(properties).filter((_, i) => ((some >> i) & 1) === 0);
        return { type: "object", properties, required, additionalProperties: false };
      }),
    fc
      .tuple(tie("schema"), fc.nat(2), fc.nat(2))
      .map(([items, min, more]) => ({ type: "array", items, minItems: min, maxItems: min + more })),
    fc.array(tie("schema"), { minLength: 1, maxLength: 3 }).map((anyOf) => ({ anyOf })),
  ),
}));

describe("every completion parses and validates, whatever tokens are liked", () => {
  test("of schemas by chance, in bytes and in the demo model's tokens", () => {
    let ended = 0;
    const property = fc.property(schemas, fc.nat(), (schema, seed) => {
      const grammar = schemaGrammar(schema);
      const choices = new Choices(seed);
      const random = () => choices.next();
      for (const adversary of [bytes, model]) {
        const text = adversary.complete(grammar, random, 500);
        if (text === undefined) continue;
        ended += 1;
        expect([text, validates(schema, text)]).toEqual([text, true]);
      }
    });
    fc.assert(property, { numRuns: 50 });
    expect(ended).toBeGreaterThan(75);
  });

  test("of values whose fields have names of Object's methods", () => {
    const values: readonly object[] = [{ toString: "" }, { valueOf: 1 }, { hasOwnProperty: null }, { constructor: [] }];
    for (const value of values) {
      const text = JSON.stringify(value);
      for (const schema of [{ const: value }, { enum: [1, value] }]) {
        expect([bytes.accepts(schemaGrammar(schema), text), validates(schema, text)]).toEqual([true, true]);
        expect([bytes.accepts(schemaGrammar(schema), "{}"), validates(schema, "{}")]).toEqual([false, false]);
      }
    }
  });

  test("of any object", () => {
    const grammar = anyObjectGrammar();
    const choices = new Choices(5);
    const random = () => choices.next();
    const texts = Array.from({ length: 12 }, () => bytes.complete(grammar, random, 3_000)).filter(
      (it) => it !== undefined,
    );
    expect(texts.length).toBeGreaterThan(3);
    for (const text of texts) expect(typeof JSON.parse(text)).toBe("object");
  });

  test("of a schema that refers to itself", () => {
    const tree = {
      $ref: "#/$defs/node",
      $defs: {
        node: {
          type: "object",
          properties: { next: { anyOf: [{ type: "null" }, { $ref: "#/$defs/node" }] } },
          required: ["next"],
          additionalProperties: false,
        },
      },
    };
    const grammar = schemaGrammar(tree);
    const choices = new Choices(3);
    const random = () => choices.next();
    for (let i = 0; i < 10; i++) {
      const text = model.complete(grammar, random, 2_000);
      expect(text).toBeDefined();
      expect(validates(tree, text ?? "")).toBe(true);
    }
    expect(bytes.accepts(grammar, '{"next":{"next": {"next":null}}}')).toBe(true);
  });
});

describe("what a model would write is allowed", () => {
  test("values of schemas by chance, in their own order", () => {
    const person = {
      type: "object",
      properties: {
        name: { type: "string" },
        age: { type: "integer" },
        tags: { type: "array", items: { enum: ["a", "b"] } },
        score: { type: ["number", "null"] },
      },
      required: ["name", "age"],
      additionalProperties: false,
    };
    const grammar = schemaGrammar(person);
    const yes = [
      '{"name":"Jon","age":30}',
      '{"name": "Jön \\"x\\" 世界 \\ud83d\\ude00", "age": -7, "tags": [], "score": 1.5e-3}',
      '{\n  "name": "",\n  "age": 0,\n  "tags": [\n    "a",\n    "b"\n  ]\n}',
    ];
    for (const text of yes) expect([text, bytes.accepts(grammar, text)]).toEqual([text, true]);
    const no = [
      '{"name":"Jon"}',
      '{"age":30,"name":"Jon"}',
      '{"name":"Jon","age":30,}',
      '{"name":"Jon","age":3.5}',
      '{"name":"Jon","age":030}',
      '{"name":"Jon","age":30,"tags":["c"]}',
      '{"name":"Jon","age":30,"other":1}',
      '{"name":"J\non","age":30}',
      '{"name":"\\ud83d","age":30}',
      '{"name":"Jon","age":30}}',
      '{"name":"Jon","age":30',
      "",
    ];
    for (const text of no) expect([text, bytes.accepts(grammar, text)]).toEqual([text, false]);
  });

  test("properties that are not required may be left out in every way", () => {
    const all = { a: { type: "null" }, b: { type: "null" }, c: { type: "null" } };
    const grammar = schemaGrammar({ properties: all, required: ["b"], additionalProperties: false });
    for (const names of ["b", "ab", "bc", "abc", "a", "c", "ac", "", "ba"]) {
      const text = `{${[...names].map((name) => `"${name}":null`).join(", ")}}`;
      expect([text, bytes.accepts(grammar, text)]).toEqual([text, /^a?bc?$/.test(names)]);
    }
  });

  test("strings are UTF-8", () => {
    const grammar = schemaGrammar({ type: "string" });
    const quoted = (...inner: number[]) => Uint8Array.of(0x22, ...inner, 0x22);
    const whole = [
      [0xc2, 0x80],
      [0xe0, 0xa0, 0x80],
      [0xed, 0x9f, 0xbf],
      [0xef, 0xbf, 0xbf],
      [0xf4, 0x8f, 0xbf, 0xbf],
    ];
    for (const inner of whole) expect([inner, bytes.accepts(grammar, quoted(...inner))]).toEqual([inner, true]);
    const overlong = [
      [0xc0, 0xaf],
      [0xe0, 0x80, 0xaf],
      [0xf0, 0x80, 0x80, 0xaf],
    ];
    const broken = [[0x80], [0xc3], [0xe2, 0x82], [0xed, 0xa0, 0x80], [0xf4, 0x90, 0x80, 0x80], [0xff], [0x1f]];
    for (const inner of [...overlong, ...broken]) {
      expect([inner, bytes.accepts(grammar, quoted(...inner))]).toEqual([inner, false]);
    }
  });

  test("lengths count characters, and arrays their items", () => {
    const strings = schemaGrammar({ type: "string", minLength: 1, maxLength: 3 });
    for (const text of ["", "a", "世界!", "\u{1f600}\u{1f600}\u{1f600}", "abcd"]) {
      const fits = [...text].length >= 1 && [...text].length <= 3;
      expect([text, bytes.accepts(strings, JSON.stringify(text))]).toEqual([text, fits]);
    }
    const arrays = schemaGrammar({ type: "array", items: { type: "boolean" }, minItems: 1, maxItems: 2 });
    for (const count of [0, 1, 2, 3]) {
      const text = JSON.stringify(Array.from({ length: count }, () => true));
      expect(bytes.accepts(arrays, text)).toBe(count === 1 || count === 2);
    }
  });
});

describe("refused with its path", () => {
  const nested = (schema: unknown) => ({ type: "object", properties: { a: { type: "array", items: schema } } });
  let deep: object = { type: "null" };
  for (let i = 0; i < 40; i++) deep = { type: "array", items: deep };
  const cases: readonly (readonly [string, unknown, string])[] = [
    ["a pattern that looks ahead", nested({ type: "string", pattern: "^(?=a)" }), "properties.a.items.pattern"],
    ["a pattern that is none", { type: "string", pattern: "(a" }, "pattern"],
    ["a pattern that is too large", { type: "string", pattern: "(?:a{1000}){1000}" }, "pattern"],
    ["a pattern of too many states", { type: "string", pattern: "(?:a|b)*a(?:a|b){20}" }, "pattern"],
    ["a format that is not known", { type: "string", format: "iri" }, "format"],
    ["a multiple", { type: "integer", multipleOf: 3 }, "multipleOf"],
    ["a bound that is no number", { type: "integer", minimum: "3" }, "minimum"],
    ["a bound between integers", { type: "number", minimum: 0.5 }, ""],
    ["a bound of a text", nested({ type: "string", minimum: 3 }), "properties.a.items.minimum"],
    ["no number between", { type: "integer", minimum: 4, maximum: 3 }, ""],
    ["no integer between", { type: "integer", exclusiveMinimum: 4, exclusiveMaximum: 5 }, ""],
    ["all of", { allOf: [{}] }, "allOf"],
    ["one of two that a value may be of both", { oneOf: [{ type: "integer" }, { type: "number" }] }, "oneOf"],
    [
      "one of two objects whose kind may be left out",
      { oneOf: ["x", "y"].map((kind) => ({ type: "object", properties: { kind: { const: kind } } })) },
      "oneOf",
    ],
    [
      "one of two objects of a kind in common",
      {
        oneOf: [["x"], ["y", "x"]].map((kinds) => {
          return { type: "object", properties: { kind: { enum: kinds } }, required: ["kind"] };
        }),
      },
      "oneOf",
    ],
    ["names of a kind", { type: "object", propertyNames: { maxLength: 3 } }, "propertyNames"],
    [
      "a list of open length",
      nested({ type: "array", prefixItems: [{}], items: {} }),
      "properties.a.items.prefixItems",
    ],
    ["a list of items that may be left out", { type: "array", items: [{}], additionalItems: false }, "items"],
    ["a list's items beside no list", { type: "array", items: {}, additionalItems: false }, "additionalItems"],
    ["a type beside anyOf", { type: "object", anyOf: [{}] }, "type"],
    ["a type that is none", nested({ type: "date" }), "properties.a.items.type"],
    ["a schema that is none", nested("string"), "properties.a.items"],
    ["no value at all", false, ""],
    ["a required name that is no property", { type: "object", required: ["b"], properties: { a: {} } }, "required.0"],
    [
      "schemas of others beside properties",
      { properties: { a: {} }, additionalProperties: { type: "null" } },
      "additionalProperties",
    ],
    ["an empty enum", { enum: [] }, "enum"],
    ["an enum without a value of the type", { type: "string", enum: [1] }, "enum"],
    ["another document", { $ref: "https://example.com/schema" }, "$ref"],
    ["a definition that is not there", { $ref: "#/$defs/x", $defs: {} }, "$ref"],
    ["a name of all objects", { $ref: "#/$defs/constructor", $defs: {} }, "$ref"],
    ["itself", { anyOf: [{ type: "null" }, { $ref: "#" }] }, "anyOf.1.$ref"],
    ["no end", { type: "object", properties: { a: { $ref: "#" } }, required: ["a"] }, ""],
    ["too deep", deep, Array.from({ length: 33 }, () => "items").join(".")],
    ["too long", { type: "string", maxLength: 5_000 }, "maxLength"],
    ["fewer than least", { type: "array", minItems: 2, maxItems: 1 }, "maxItems"],
    ["too large", { anyOf: Array.from({ length: 20 }, (_, i) => ({ type: "string", minLength: 4_096 - i })) }, ""],
    ["too many values", { enum: Array.from({ length: 513 }, (_, i) => i) }, "enum"],
  ];
  test.each([...cases])("%s", (_what, schema, path) => {
    const fault = (() => {
      try {
        schemaGrammar(schema);
        return undefined;
      } catch (error) {
        return error instanceof GrammarRefused ? error : undefined;
      }
    })();
    expect(fault?.param.replaceAll(/\[(\d+)\]/g, ".$1")).toBe(path === "" ? "schema" : `schema.${path}`);
  });
});
