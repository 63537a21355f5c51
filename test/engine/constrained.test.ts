/** Completions under a grammar, over backends whose logits are whatever they are. */
import { describe, expect, test } from "bun:test";
import {
  byteRange,
  endOfRule,
  firstRuleSymbol,
  type GrammarRules,
  grammarSymbols,
} from "../../worker/contract/grammar.ts";
import type { GenerateParams, SamplingParams } from "../../worker/contract/messages.ts";
import { vocabularyOf } from "../grammar/adversary.ts";
import { schemaGrammar } from "../grammar/compile.ts";
import { TinyWorld } from "./harness.ts";
import { pipelinedWorld } from "./pipelined-world.ts";
import { countUp, submitPlan } from "./plans.ts";

/** Token 0 ends, tokens 1 to 95 are the printable characters, and one more reaches over two marks. */
const tokens = ["", ...Array.from({ length: 95 }, (_, i) => String.fromCharCode(0x20 + i)), '":'];
const vocabulary = vocabularyOf(tokens);
const schema = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 6 },
    kinds: { type: "array", items: { enum: ["red", "blue"] }, maxItems: 2 },
    count: { type: "integer" },
  },
  required: ["name", "kinds", "count"],
  additionalProperties: false,
};
const grammar = schemaGrammar(schema);
const parts = { system: countUp(1, 5), spans: [countUp(20, 6)], question: countUp(60, 3) };
const shape = { blockCount: 128, contextTokens: 512 };

interface Wanted {
  readonly params?: Partial<GenerateParams>;
  readonly sampling?: Partial<SamplingParams>;
}

/** @param wanted default: the grammar */
async function textIn(world: TinyWorld, { params, sampling }: Wanted = {}): Promise<string> {
  const options = { params: { maxTokens: 300, grammar, ...params }, sampling };
  world.engine.submit(submitPlan("a", parts, options as never));
  await world.settle();
  expect(world.finishedOf("a").reason).toBe("stop");
  return world
    .tokensOf("a")
    .map((tokenId) => tokens[tokenId])
    .join("");
}

function worldOf(): TinyWorld {
  const world = new TinyWorld({ shape });
  world.engine.constraints.setVocabulary(vocabulary);
  return world;
}

describe("a completion under a grammar", () => {
  const settings: readonly Partial<SamplingParams>[] = [
    {},
    { temperature: 1, seed: 1 },
    { temperature: 1.5, topK: 50, seed: 2 },
    { temperature: 2, topP: 0.5, minP: 0.1, seed: 3 },
    { temperature: 1, presencePenalty: 2, repetitionPenalty: 1.5, seed: 4 },
    { temperature: 1, topLogprobs: 5, seed: 5 },
    // The end and nonsense are wanted above all.
    {
      logitBias: [
        [0, 100],
        [5, 100],
        [40, 100],
      ],
    },
  ];
  test.each([...settings])("keeps to it: %o", async (sampling) => {
    const answer = JSON.parse(await textIn(worldOf(), { sampling }));
    expect(Object.keys(answer)).toEqual(Object.keys(schema.properties));
    expect(answer.name.length).toBeLessThanOrEqual(6);
    expect(answer.kinds.every((kind: string) => ["red", "blue"].includes(kind))).toBe(true);
    expect(Number.isInteger(answer.count)).toBe(true);
  });

  test("is the same where steps are begun ahead, beside others that have none", async () => {
    const expected = await textIn(worldOf());
    const { world, device } = pipelinedWorld(shape);
    world.engine.constraints.setVocabulary(vocabulary);
    world.engine.submit(submitPlan("b", { question: countUp(3, 7) }, { params: { maxTokens: 20, ignoreEos: true } }));
    expect(await textIn(world)).toBe(expected);
    expect(world.tokensOf("b")).toHaveLength(20);
    expect(device.faults).toEqual([]);
    const alone = pipelinedWorld(shape).world;
    alone.engine.submit(submitPlan("b", { question: countUp(3, 7) }, { params: { maxTokens: 20, ignoreEos: true } }));
    await alone.settle();
    expect(world.tokensOf("b")).toEqual(alone.tokensOf("b"));
  });

  test("goes on where it was when it was put off", async () => {
    const expected = await textIn(worldOf());
    const tight = new TinyWorld({ shape: { ...shape, blockCount: 20 }, limits: { maxRunningRequests: 4 } });
    tight.engine.constraints.setVocabulary(vocabulary);
    tight.engine.submit(submitPlan("b", { question: countUp(3, 30) }, { params: { maxTokens: 40, ignoreEos: true } }));
    expect(await textIn(tight)).toBe(expected);
    expect(tight.engine.stats().preemptions).toBeGreaterThan(0);
  });

  test("is cut where its tokens are used up", async () => {
    const world = worldOf();
    world.engine.submit(submitPlan("a", parts, { params: { maxTokens: 5, grammar } }));
    await world.settle();
    expect(world.finishedOf("a").reason).toBe("length");
    expect(world.tokensOf("a")).toHaveLength(5);
  });
});

describe("what cannot be", () => {
  const wrong: readonly (readonly [string, Partial<GenerateParams>, string])[] = [
    ["minTokens", { minTokens: 2 }, "minTokens"],
    ["ignoreEos", { ignoreEos: true }, "ignoreEos"],
    ["no rule", { grammar: { symbols: new Int32Array(0) } }, "symbols"],
    ["a rule that is not there", { grammar: { symbols: grammarSymbols([[[firstRuleSymbol + 1]]]) } }, "symbol"],
    ["a mark that is none", { grammar: { symbols: Int32Array.of(97, -3, -1, -2) } }, "symbol"],
    ["an alternative without an end", { grammar: { symbols: Int32Array.of(97, endOfRule) } }, "symbol"],
    ["a rule without an end", { grammar: { symbols: Int32Array.of(97, -1, -2, 97, -1) } }, "end"],
    ["no name", { grammar: { ...grammar, id: "" } }, "grammar.id"],
    ["a long name", { grammar: { ...grammar, id: "x".repeat(129) } }, "grammar.id"],
    ["a list of symbols", { grammar: { symbols: [97, -1, -2] as never } }, "Int32Array"],
    ["too many symbols", { grammar: { symbols: new Int32Array(81_921).fill(97) } }, "symbols"],
  ];
  test.each([...wrong])("%s is refused", async (_what, params, named) => {
    const world = worldOf();
    world.engine.submit(submitPlan("a", parts, { params: { maxTokens: 9, grammar, ...params } }));
    await world.settle();
    expect(world.failedOf("a")?.code).toBe("bad_plan");
    expect(world.failedOf("a")?.message).toContain(named);
  });

  test("a grammar before the vocabulary is refused", async () => {
    const world = new TinyWorld({ shape });
    world.engine.submit(submitPlan("a", parts, { params: { grammar } }));
    await world.settle();
    expect(world.failedOf("a")?.code).toBe("bad_plan");
  });

  const a = byteRange(97, 97);
  const rule = (index: number) => firstRuleSymbol + index;
  const endless: GrammarRules = [[[rule(0), a]]];
  const endlessBehindNothing: GrammarRules = [[[a, rule(1)]], [[rule(2), rule(1), a], [a]], [[], [a]]];
  const unspeakable: GrammarRules = [[[byteRange(200, 200)]]];
  // Each rule begins with the next one in two ways: 2^20 ways to read the first byte.
  const doubling = Array.from({ length: 20 }, (_, i) => [
    [rule(i + 1), a],
    [rule(i + 1), a, a],
  ]);
  const ambiguous: GrammarRules = [...doubling, [[a]]];
  test.each([
    ["left recursion", endless, "bad_plan", "recurs on the left"],
    ["left recursion behind a rule that may be empty", endlessBehindNothing, "bad_plan", "recurs on the left"],
    ["a byte that no token has", unspeakable, "internal", "sampling failed"],
    ["no text at all", [[]], "internal", "sampling failed"],
    ["a byte that can be read in a million ways", ambiguous, "grammar_too_ambiguous", "cannot be followed"],
  ] as const)("%s ends its request alone", async (_what, bad, code, reason) => {
    const world = worldOf();
    world.engine.submit(
      submitPlan("b", parts, { params: { maxTokens: 5, grammar: { symbols: grammarSymbols(bad) } } }),
    );
    expect(JSON.parse(await textIn(world))).toBeObject();
    expect(world.failedOf("b")?.code).toBe(code);
    expect(world.failedOf("b")?.message).toContain(reason);
  });
});
