/** What hostile schemas cost: all is counted, and what is counted is bounded for all schemas of a request together. */
import { describe, expect, test } from "bun:test";
import { Budget, type GrammarBounds, GrammarTooLarge, largestGrammar } from "../../gateway/grammar/budget.ts";
import { finiteRules } from "../../gateway/grammar/builder.ts";
import { answerGrammar } from "../../gateway/tools/answer-grammar.ts";
import type { AnswerRules } from "../../gateway/tools/answer-rules.ts";
import { firstRuleSymbol, type GrammarRules } from "../../worker/contract/grammar.ts";

const letters = (count: number, from = 0x4e00, step = 1): string =>
  Array.from({ length: count }, (_, i) => String.fromCodePoint(from + step * i)).join("");
const text = (pattern: string) => ({ type: "string", pattern });
const objectOf = (count: number, property: (i: number) => object) => ({
  type: "object",
  properties: Object.fromEntries(Array.from({ length: count }, (_, i) => [`p${i}`, property(i)])),
});
const formatOf = (schema: unknown): AnswerRules => ({ format: { kind: "schema", schema, param: "schema" } });
/** Names what was refused, and "" what was not. */
const refusedOf = (rules: AnswerRules, bounds: Partial<GrammarBounds> = {}): string => {
  const answer = answerGrammar(rules, { ...largestGrammar, ...bounds });
  return "refusal" in answer ? answer.refusal.param : "";
};

describe("a pattern's parts are read once", () => {
  test("a set of 20,000 characters, a thousand times", () => {
    const schema = text(`^[${letters(20_000)}]{1000}$`);
    expect(refusedOf(formatOf(schema), { looks: 100_000, symbols: 10_000 })).toBe("");
    expect(refusedOf(formatOf(schema), { looks: 15_000 })).toBe("schema.pattern");
  });

  test("a set of characters that are apart", () => {
    const schema = text(`^[${letters(10_000, 0x4e00, 2)}]{1000}$`);
    expect(refusedOf(formatOf(schema), { looks: 300_000 })).toBe("");
  });

  test("a long row of characters, and a group within groups", () => {
    expect(refusedOf(formatOf(text(`^${"a".repeat(1_900)}$`)), { looks: 100_000 })).toBe("");
    expect(refusedOf(formatOf(text(`${"(".repeat(129)}a${")".repeat(129)}`)))).toBe("schema.pattern");
    expect(refusedOf(formatOf(text("((a{1000}){1000}){1000}")), { looks: 10_000 })).toBe("schema.pattern");
  });

  test("the same pattern, and the same format, at many places", () => {
    const emails = objectOf(500, () => ({ type: "string", format: "email" }));
    expect(refusedOf(formatOf(emails), { looks: 30_000 })).toBe("");
  });
});

describe("one budget is of all schemas of a request", () => {
  const setOf = (i: number) => text(`^[${letters(1_000, 0x4e00 + i, 2)}]{3}$`);

  test("of its properties: the one that is too much is named", () => {
    const properties = objectOf(100, setOf);
    expect(refusedOf(formatOf(properties))).toMatch(/^schema\.properties\.p\d+\.pattern$/);
    expect(refusedOf(formatOf(objectOf(10, setOf)))).toBe("");
  });

  test("of its tools and its format together", () => {
    const tools = (count: number) =>
      Array.from({ length: count }, (_, i) => {
        const parameters = { type: "object", properties: { a: setOf(i) }, required: ["a"] };
        return { name: `t${i}`, param: `tools[${i}].function.parameters`, parameters };
      });
    const sign = {
      kind: "object",
      marker: "<",
      closer: ">",
      before: "<",
      between: ":",
      after: ">",
      signs: [],
    } as const;
    const syntax = { ...sign, separator: undefined };
    const callsOf = (count: number) => ({ syntax, tools: tools(count), mode: "required", parallel: true }) as const;
    expect(refusedOf({ calls: callsOf(30) })).toMatch(/^tools\[\d+\]\.function\.parameters\.properties\.a\.pattern$/);
    expect(refusedOf({ calls: callsOf(8) })).toBe("");
    const half = { symbols: 30_000 };
    const format = formatOf(objectOf(6, (i) => setOf(50 + i))).format;
    expect([refusedOf({ format }, half), refusedOf({ calls: callsOf(6) }, half)]).toEqual(["", ""]);
    expect(refusedOf({ calls: callsOf(6), format }, half)).toStartWith("tools[");
  });

  test("of characters of patterns, states that are together, and values that are compared", () => {
    const long = objectOf(40, (i) => text(`^${i}${"a".repeat(900)}$`));
    expect(refusedOf(formatOf(long))).toEndWith(".pattern");
    expect(refusedOf(formatOf(objectOf(40, (i) => text(`a{${150 + i}}b`))))).toEndWith(".pattern");
    const kinds = { type: "object", properties: { a: { enum: letters(500).split("") } }, required: ["a"] };
    const apart = { oneOf: Array.from({ length: 64 }, (_, i) => ({ ...kinds, title: `${i}` })) };
    expect(refusedOf(formatOf({ anyOf: Array.from({ length: 64 }, () => apart) }))).toStartWith("schema");
    expect(refusedOf(formatOf({ anyOf: [apart] }), { looks: 10_000 })).toBe("schema");
  });
});

test("a budget that is spent stays spent, and says so", () => {
  const budget = new Budget({ ...largestGrammar, rules: 2 });
  budget.spend("rules", 2);
  expect(budget.isSpent).toBe(false);
  expect(() => budget.spend("rules", 1)).toThrow(GrammarTooLarge);
  expect(budget.isSpent).toBe(true);
});

test("finite rules are found in one pass, in whatever order they stand", () => {
  const count = 100_000;
  const rule = (r: number) => firstRuleSymbol + r;
  const chain: GrammarRules = Array.from({ length: count }, (_, r) => [r === count - 1 ? [97] : [rule(r + 1)]]);
  expect(finiteRules(chain).size).toBe(count);
  const endless = [[[rule(1)], [97, rule(2), rule(2)]], [[rule(1)]], [[rule(1), 97], [98]]];
  expect([...finiteRules(endless)].sort()).toEqual([0, 2]);
});
