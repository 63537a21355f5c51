import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { Ajv } from "ajv";
import { ChatTemplate } from "../../gateway/text/chat-template.ts";
import { Detokenizer, TokenBytes } from "../../gateway/text/detokenizer.ts";
import type { JsonObject } from "../../gateway/text/messages.ts";
import type { ModelText } from "../../gateway/text/model-text.ts";
import { CallReader } from "../../gateway/tools/call-reader.ts";
import type { OfferedTool, ToolUse } from "../../gateway/tools/tool-use.ts";
import type { ByteGrammar } from "../../worker/contract/grammar.ts";
import { GrammarConstraint } from "../../worker/sample/constraint.ts";
import { GrammarMasks } from "../../worker/sample/grammar-masks.ts";
import { TokenTrie } from "../../worker/sample/token-trie.ts";
import { callGrammar } from "../grammar/compile.ts";
import { Choices } from "../sim/random.ts";
import { toolModels } from "../text/tool-models.ts";

setDefaultTimeout(60_000);

const weather: OfferedTool = {
  name: "get_weather",
  description: "x",
  parameters: {
    type: "object",
    properties: {
      city: { type: "string", minLength: 1, maxLength: 6 },
      unit: { enum: ["C", "F"] },
      days: { type: "array", items: { type: "integer" }, maxItems: 2 },
    },
    required: ["city", "unit"],
    additionalProperties: false,
  },
  strict: false,
  param: "tools[0].function.parameters",
};
const clock: OfferedTool = {
  name: "clock",
  description: undefined,
  parameters: { properties: { utc: { type: "boolean" } }, required: ["utc"], additionalProperties: false },
  strict: false,
  param: "tools[1].function.parameters",
};
const ajv = new Ajv();
const fits: Readonly<Record<string, ReturnType<typeof ajv.compile>>> = {
  get_weather: ajv.compile(weather.parameters),
  clock: ajv.compile({ type: "object", ...clock.parameters }),
};
const use = (fields: Partial<ToolUse> = {}): ToolUse => ({
  tools: [weather, clock],
  callable: new Set(["get_weather", "clock"]),
  mode: "auto",
  parallel: true,
  ...fields,
});

function world(model: ModelText) {
  const { calls: syntax } = new ChatTemplate(model);
  if (syntax === undefined) throw new Error("a template with tools");
  const tokenBytes = new TokenBytes(model.tokenizer, syntax.signs);
  const vocabulary = tokenBytes.vocabulary();
  const trie = new TokenTrie(vocabulary);
  const endId = model.tokenizer.added_tokens.find(({ content }) => content === model.config.eos_token)?.id ?? -1;
  const constrain = (grammar: ByteGrammar) =>
    new GrammarConstraint(new GrammarMasks(grammar, trie, vocabulary.ends.length), [endId]);
  const allowed = (constraint: GrammarConstraint): number[] =>
    [...constraint.mask().entries()].flatMap(([word, bits]) =>
      Array.from({ length: 32 }, (_, bit) => word * 32 + bit).filter((_, bit) => ((bits >> bit) & 1) === 1),
    );
  /** What is read of tokens that somebody draws who would rather break out. */
  const answer = (tokenIds: readonly number[], callsOnly: boolean) => {
    const detokenizer = new Detokenizer(tokenBytes, [], { showsSigns: true });
    const reader = new CallReader({ syntax, names: use().callable, several: true, callsOnly });
    const pieces = tokenIds.map((tokenId) => detokenizer.push([tokenId]).text);
    const parts = [...pieces, detokenizer.end().text].flatMap((piece) => [...reader.push(piece)]);
    const calls: { name: string; arguments: string }[] = [];
    let text = "";
    for (const part of [...parts, ...reader.end()]) {
      if (part.type === "text") text += part.text;
      else if (part.type === "call") calls.push({ name: part.name, arguments: "" });
      else
        calls[part.call] = {
          name: calls[part.call]?.name ?? "",
          arguments: `${calls[part.call]?.arguments}${part.text}`,
        };
    }
    return { text, calls };
  };
  const complete = (
    grammar: ByteGrammar,
    random: () => number,
    first: readonly number[] = [],
  ): number[] | undefined => {
    const constraint = constrain(grammar);
    for (const tokenId of first) constraint.accept(tokenId);
    const drawn = [...first];
    while (drawn.length < 400) {
      const ids = allowed(constraint);
      // Whoever may end does so at times.
      const tokenId = ids.includes(endId) && random() < 0.3 ? endId : (ids[Math.floor(random() * ids.length)] ?? endId);
      if (tokenId === endId) return drawn;
      drawn.push(tokenId);
      constraint.accept(tokenId);
    }
    return undefined;
  };
  return { syntax, model, answer, complete, constrain };
}

describe("where a call must come", () => {
  for (const [name, model] of Object.entries(toolModels)) {
    test(`${name}: there are calls and nothing else, and their arguments fit`, () => {
      const { syntax, answer, complete } = world(model);
      const choices = new Choices(7);
      let finished = 0;
      let several = 0;
      for (let run = 0; run < 60; run++) {
        const grammar = callGrammar(syntax, use({ mode: "required" }));
        const drawn = grammar && complete(grammar, () => choices.next());
        if (drawn === undefined) continue;
        finished += 1;
        const { text, calls } = answer(drawn, true);
        expect(text).toBe("");
        expect(calls.length).toBeGreaterThan(0);
        if (calls.length > 1) several += 1;
        for (const call of calls) expect([call, fits[call.name]?.(JSON.parse(call.arguments))]).toEqual([call, true]);
      }
      expect(finished).toBeGreaterThan(30);
      expect(several > 0).toBe(name !== "llama");
    });
  }

  test("it is the tool that is named, and one where one is wanted", () => {
    const { syntax, answer, complete } = world(toolModels.qwen);
    const choices = new Choices(3);
    for (let run = 0; run < 20; run++) {
      const one = use({ mode: "required", callable: new Set(["clock"]), parallel: false });
      const grammar = callGrammar(syntax, one);
      const drawn = grammar && complete(grammar, () => choices.next());
      if (drawn === undefined) continue;
      expect(answer(drawn, true).calls.map((call) => call.name)).toEqual(["clock"]);
    }
  });
});

test("a tool without properties is called without arguments", () => {
  const { syntax, answer, complete } = world(toolModels.qwen);
  const none: OfferedTool = { ...clock, parameters: { type: "object", properties: {} } };
  const grammar = callGrammar(syntax, use({ mode: "required", tools: [none], parallel: false }));
  const drawn = grammar && complete(grammar, () => 0.5);
  expect(answer(drawn ?? [], true).calls).toEqual([{ name: "clock", arguments: "{}" }]);
});

describe("where the answer is free", () => {
  test("nothing is asked of it, unless a tool is strict, or only one call is wanted, or a format", () => {
    const { syntax } = world(toolModels.qwen);
    expect(callGrammar(syntax, use())).toBeUndefined();
    expect(callGrammar(syntax, use({ parallel: false }))).toBeDefined();
    expect(callGrammar(syntax, use({ tools: [{ ...clock, strict: true }] }))).toBeDefined();
    expect(callGrammar(syntax, use(), { kind: "object" })).toBeDefined();
  });

  for (const [name, model] of Object.entries(toolModels)) {
    test(`${name}: a text, or calls that fit`, () => {
      const { syntax, answer, complete } = world(model);
      const strict = use({
        tools: [
          { ...weather, strict: true },
          { ...clock, strict: true },
        ],
      });
      const choices = new Choices(11);
      const grammar = callGrammar(syntax, strict);
      if (grammar === undefined) throw new Error("strict tools have a grammar");
      // A text, then what opens a call.
      const { tokenizer } = model;
      const encode = (text: string): number[] =>
        [...text].map((char) => (tokenizer.model.vocab as Record<string, number>)[char === " " ? "Ġ" : char] ?? -1);
      const opener = syntax.signs[0]?.content ?? syntax.marker;
      const markerId = tokenizer.added_tokens.find(({ content }) => content === opener)?.id;
      const marker = markerId === undefined ? encode(syntax.marker) : [markerId];
      const before = name === "llama" ? encode("{") : [...encode("So "), ...marker];
      let called = 0;
      for (let run = 0; run < 40; run++) {
        const drawn = complete(grammar, () => choices.next(), before);
        if (drawn === undefined) continue;
        const { text, calls } = answer(drawn, false);
        expect(text).toBe(name === "llama" ? "" : "So");
        expect(calls.length).toBeGreaterThan(0);
        called += calls.length;
        for (const call of calls) expect([call, fits[call.name]?.(JSON.parse(call.arguments))]).toEqual([call, true]);
      }
      expect(called).toBeGreaterThan(10);
      const free = complete(grammar, () => choices.next(), encode("No call: {}"));
      if (free !== undefined) expect(answer(free, false).text).toStartWith("No call: {}");
    });
  }

  test("a text that begins as a call's JSON does is a call where nothing marks one", () => {
    const { syntax, constrain } = world(toolModels.llama);
    const grammar = callGrammar(syntax, use({ parallel: false }));
    if (grammar === undefined) throw new Error("one call has a grammar");
    const vocab = toolModels.llama.tokenizer.model.vocab as Record<string, number>;
    const accept = (text: string): void => {
      const constraint = constrain(grammar);
      for (const char of text) constraint.accept(vocab[char] ?? -1);
    };
    expect(() => accept('{"x')).toThrow(RangeError);
    expect(() => accept('{"name')).not.toThrow();
    expect(() => accept('x{"x')).not.toThrow();
  });

  test("an answer of a format stands beside the calls", () => {
    const { syntax, answer, complete } = world(toolModels.qwen);
    const grammar = callGrammar(syntax, use(), { kind: "object" });
    const choices = new Choices(5);
    const kinds = new Set<string>();
    for (let run = 0; run < 80; run++) {
      const drawn = grammar && complete(grammar, () => choices.next());
      if (drawn === undefined) continue;
      const { text, calls } = answer(drawn, false);
      kinds.add(calls.length > 0 ? "calls" : typeof JSON.parse(text));
      expect(calls.length > 0 && text !== "").toBe(false);
    }
    expect([...kinds].sort()).toEqual(["calls", "object"]);
  });
});

describe("what cannot be kept", () => {
  const { syntax } = world(toolModels.qwen);
  const withParameters = (parameters: OfferedTool["parameters"]): ToolUse =>
    use({ mode: "required", tools: [clock, { ...weather, parameters }], callable: new Set(["get_weather"]) });

  test("is refused with its path in the request", () => {
    const properties: JsonObject = { a: { anyOf: [{ type: "string" }, { type: "array", uniqueItems: true }] } };
    expect(() => callGrammar(syntax, withParameters({ type: "object", properties }))).toThrow(
      expect.objectContaining({
        param: "tools[0].function.parameters.properties.a.anyOf[1].uniqueItems",
      }),
    );
  });

  test("does no harm in a tool that may not be called, and none in a free answer", () => {
    const odd: OfferedTool = { ...clock, parameters: { type: "object", not: {} } };
    const one = new Set(["get_weather"]);
    expect(callGrammar(syntax, use({ mode: "required", tools: [weather, odd], callable: one }))).toBeDefined();
    expect(callGrammar(syntax, use({ parallel: false, tools: [weather, odd] }))).toBeDefined();
  });

  test("tools whose grammar is too large, or that have no value, name the tools", () => {
    const properties = Object.fromEntries(
      Array.from({ length: 500 }, (_, index) => [
        `${index}`.repeat(60),
        { type: "string", maxLength: 4_000 + (index % 7) },
      ]),
    );
    expect(() => callGrammar(syntax, withParameters({ type: "object", properties }))).toThrow(
      expect.objectContaining({ param: "tools" }),
    );
    const endless = { type: "object", properties: { a: { $ref: "#" } }, required: ["a"] };
    expect(() => callGrammar(syntax, withParameters(endless))).toThrow(expect.objectContaining({ param: "tools" }));
  });
});
