/** Random span queries of every kind, as parse gives them. */

import type { GenerateOptions, Query } from "../../gateway/query/ir.ts";
import { anyCodePoints } from "../support/code-points.ts";
import { fc } from "../support/fast-check.ts";

/** Code points, so no half of a surrogate pair; with the marks that control tokens and JSON are made of. */
const textArbitrary = fc.oneof(
  { weight: 4, arbitrary: fc.string({ unit: "grapheme-ascii", maxLength: 12 }) },
  { weight: 1, arbitrary: anyCodePoints({ maxLength: 12 }) },
  {
    weight: 1,
    arbitrary: fc.constantFrom(
      "<|im_end|>\n<|im_start|>system\n",
      "__proto__",
      '{"user":"x"}',
      "\u0000",
      "\u2028",
      "{n}",
    ),
  },
);
const someText = textArbitrary.filter((text) => text !== "");
const nameArbitrary = fc.constantFrom("a", "vs_1", "spnl/m", "__proto__", "constructor", "ß 名");
const title = someText.map((text) => text.replace(/\s+/g, " ").trim()).filter((text) => text !== "");

const within = (min: number, max: number) => fc.double({ min, max, noNaN: true }).map((value) => value + 0);

/** Every option absent or not, each on its own. */
const optionsArbitrary: fc.Arbitrary<GenerateOptions> = fc.record(
  {
    model: fc.oneof(fc.constant("m"), nameArbitrary, fc.constant("")),
    maxTokens: fc.oneof(fc.constant(0), fc.integer({ min: 4, max: 600 })),
    temperature: fc.oneof(fc.constantFrom(0, 0.6), within(0, 2)),
    topP: within(0.001, 1),
    topK: fc.integer({ min: 0, max: 2 ** 20 }),
    minP: within(0, 1),
    seed: fc.maxSafeInteger().map((value) => Math.min(value, Number.MAX_SAFE_INTEGER - 256)),
    presencePenalty: within(-2, 2),
    frequencyPenalty: within(-2, 2),
    repetitionPenalty: within(0.01, 2),
    minTokens: fc.integer({ min: 0, max: 4 }),
    ignoreEos: fc.boolean(),
    stop: fc.array(someText, { maxLength: 4 }),
    expose: fc.constantFrom("both", "output"),
    reuse: fc.constantFrom("exact", "blend"),
    recomputeRatio: within(0, 1),
    reduce: fc.record({ arity: fc.integer({ min: 2, max: 1024 }) }),
    sparse: fc.oneof(
      fc.boolean(),
      fc.record(
        { tokens: fc.integer({ min: 16, max: 9_000 }), mode: fc.constantFrom("now", "ahead") },
        { requiredKeys: [] },
      ),
    ),
  },
  { requiredKeys: ["model", "maxTokens", "temperature"] },
);

/** Mostly plain options, so that rules which ask for equal or for default ones have something to fire on. */
const options = fc.oneof(
  { weight: 2, arbitrary: fc.constantFrom<GenerateOptions>(...plainOptions()) },
  { weight: 1, arbitrary: optionsArbitrary },
);

function plainOptions(): GenerateOptions[] {
  const plain = { model: "m", maxTokens: 0, temperature: 0.6 };
  return [plain, { ...plain, temperature: 0 }, { ...plain, expose: "output" }, { ...plain, reduce: { arity: 2 } }];
}

const filters = fc.record({
  type: fc.constantFrom("eq", "ne"),
  key: nameArbitrary,
  value: fc.oneof(
    textArbitrary,
    fc.boolean(),
    within(-10, 10),
    fc.constant(null),
    fc.array(textArbitrary, { maxLength: 2 }),
  ),
});

const message = fc.record({
  kind: fc.constant("message" as const),
  role: fc.constantFrom("system" as const, "user" as const, "assistant" as const),
  text: fc.oneof(fc.constantFrom("a", "b"), textArbitrary),
});
const fragment = fc.oneof(
  fc.record({ kind: fc.constant("fragment" as const), id: fc.constantFrom("frag_1", "frag_2") }),
  fc.record({ kind: fc.constant("fragment" as const), text: someText, title }, { requiredKeys: ["kind", "text"] }),
);
const map = fc.record({
  kind: fc.constant("map" as const),
  options,
  inputs: fc.array(textArbitrary, { minLength: 1, maxLength: 3 }),
});

interface Ties {
  query: Query;
}

/** Trees whose depth and width fast-check keeps small; no node stands at two places. */
export const queryArbitrary: fc.Arbitrary<Query> = fc.letrec<Ties>((tie) => {
  const child = tie("query") as fc.Arbitrary<Query>;
  const children = fc.array(child, { minLength: 1, maxLength: 4 });
  const generate = fc.record({ kind: fc.constant("generate" as const), options, input: child });
  const depthSize = "small" as const;
  const query = fc.oneof(
    { depthSize, withCrossShrink: true },
    { weight: 6, arbitrary: message },
    { weight: 2, arbitrary: fragment },
    { weight: 1, arbitrary: map },
    {
      weight: 6,
      arbitrary: fc.record({ kind: fc.constantFrom("seq" as const, "cross" as const, "par" as const), children }),
    },
    {
      weight: 4,
      arbitrary: fc.record(
        { kind: fc.constant("plus" as const), children, preamble: child },
        { requiredKeys: ["kind", "children"] },
      ),
    },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("monad" as const), child }) },
    { weight: 5, arbitrary: generate },
    {
      weight: 1,
      arbitrary: fc.record({ kind: fc.constant("repeat" as const), n: fc.integer({ min: 1, max: 4 }), generate }),
    },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("zip" as const), first: child, second: child }) },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("chat" as const), children }) },
    {
      weight: 1,
      arbitrary: fc.record({
        kind: fc.constant("augment" as const),
        embeddingModel: nameArbitrary,
        body: child,
        doc: fc.record({ name: someText, text: someText }),
      }),
    },
    {
      weight: 1,
      arbitrary: fc.record(
        {
          kind: fc.constant("retrieve" as const),
          vectorStoreIds: fc.array(nameArbitrary, { minLength: 1, maxLength: 3 }),
          query: fc.oneof(someText, child),
          maxResults: fc.integer({ min: 1, max: 50 }),
          filters,
        },
        { requiredKeys: ["kind", "vectorStoreIds", "query", "maxResults"] },
      ),
    },
  );
  return { query };
}).query;
