/** Keywords of schemas, each against a validator: what the grammar takes and what it does not. */
import { expect, setDefaultTimeout, test } from "bun:test";
import { fc } from "../support/fast-check.ts";
import { Adversary, byteTokens, vocabularyOf } from "./adversary.ts";
import { schemaGrammar } from "./compile.ts";
import { validates, validatorOf } from "./json-oracle.ts";
import { bound, ranges } from "./ranges.ts";

setDefaultTimeout(60_000);

const bytes = new Adversary(vocabularyOf(byteTokens), 0);

test("numbers keep to their bounds, and reach them", () => {
  const property = fc.property(ranges, fc.oneof(bound, fc.integer({ min: -150, max: 150 })), (range, value) => {
    const grammar = schemaGrammar(range);
    const isValid = validatorOf(range);
    const near = Object.values(range).filter((end) => typeof end === "number");
    for (const number of [value, ...near.flatMap((end) => [end - 1, end, end + 1])]) {
      if (Math.abs(number) >= 10 ** 15) continue;
      const text = JSON.stringify(number);
      expect([text, bytes.accepts(grammar, text)]).toEqual([text, isValid(number)]);
      // Great numbers have fewer places, so that none is rounded beyond its bound.
      if (range.type === "integer" || near.some((end) => Math.abs(end) > 10 ** 11)) continue;
      const decimal = `${text === "0" && value < 0 ? "-0" : text}.125`;
      expect([decimal, bytes.accepts(grammar, decimal)]).toEqual([decimal, isValid(Number(decimal))]);
    }
  });
  fc.assert(property, { numRuns: 100 });
});

test("decimals have the places that 15 digits leave; above a bound, not zeros alone", () => {
  const taken = (schema: object, texts: readonly string[]) => {
    const grammar = schemaGrammar({ type: "number", ...schema });
    return texts.filter((text) => bytes.accepts(grammar, text));
  };
  const prices = ["0", "19.99", "0.00000000000001", "1234567.89125", "123456789012345.5"];
  expect(taken({ minimum: 0 }, [...prices, "-0.5", "123456789012345.55"])).toEqual(prices);
  expect(taken({ maximum: 0 }, ["-19.99", "-0.05", "0", "0.05"])).toEqual(["-19.99", "-0.05", "0"]);
  const above = ["0.125", "0.07052", "0.00000000000001", "0.12345678901234", "7.000"];
  expect(taken({ exclusiveMinimum: 0 }, ["0", "0.0", "0.00000", ...above, "-0.1"])).toEqual(above);
  expect(taken({ exclusiveMinimum: 0, exclusiveMaximum: 1 }, ["0.0", "0.9375", "1", "1.0"])).toEqual(["0.9375"]);
});

test("there is no number beyond 15 digits, where one is rounded beyond its bound", () => {
  for (const type of ["integer", "number"]) {
    for (const range of [{ minimum: 10 ** 15 }, { maximum: -1e21 }, { exclusiveMinimum: 1e21, maximum: 1e22 }]) {
      expect(() => schemaGrammar({ type, ...range })).toThrow("no number between");
    }
    const widest = schemaGrammar({ type, minimum: -1e21, exclusiveMaximum: 1e21 });
    expect(bytes.accepts(widest, "999999999999999")).toBe(true);
  }
});

test("alternatives of which a value is one, by their types and by the kind that they name", () => {
  const kind = (name: string, fields: object) => ({
    type: "object",
    properties: { kind: { const: name }, ...fields },
    required: ["kind", ...Object.keys(fields)],
    additionalProperties: false,
  });
  const schema = {
    $defs: { other: kind("b", { count: { type: "integer" } }) },
    oneOf: [kind("a", { name: { type: "string" } }), { $ref: "#/$defs/other" }, { type: "null" }, { const: "text" }],
  };
  const grammar = schemaGrammar(schema);
  const fits = [{ kind: "a", name: "x" }, { kind: "b", count: 1 }, null, "text"];
  const wrong = [{ kind: "b", name: "x" }, { kind: "a" }, "other", 1];
  for (const value of [...fits, ...wrong]) {
    const text = JSON.stringify(value);
    expect([text, bytes.accepts(grammar, text)]).toEqual([text, validates(schema, text)]);
    expect([text, bytes.accepts(grammar, text)]).toEqual([text, fits.includes(value as never)]);
  }
});

test("lists of items of their own, as each draft has them, and maps", () => {
  const items = [{ type: "string" }, { type: "number" }];
  for (const schema of [
    { type: "array", prefixItems: items, items: false, minItems: 2 },
    { type: "array", items, additionalItems: false, minItems: 2, maxItems: 2 },
  ]) {
    const grammar = schemaGrammar(schema);
    for (const value of [["a", 1], ["a"], [1, "a"], ["a", 1, 2], []]) {
      const text = JSON.stringify(value);
      expect([text, bytes.accepts(grammar, text)]).toEqual([text, text === '["a",1]']);
    }
  }
  const map = { type: "object", propertyNames: { type: "string" }, additionalProperties: { type: "integer" } };
  expect(bytes.accepts(schemaGrammar(map), '{"a":1,"b":2}')).toBe(true);
  expect(bytes.accepts(schemaGrammar(map), '{"a":"b"}')).toBe(false);
  const open = { type: "object", properties: { a: { type: "null" } }, required: ["a"], additionalProperties: {} };
  expect(bytes.accepts(schemaGrammar(open), '{"a":null}')).toBe(true);
});
