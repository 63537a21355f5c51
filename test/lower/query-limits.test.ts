import { describe, expect, spyOn, test } from "bun:test";
import { yieldsDuring } from "../support/yields.ts";
import { models } from "../text/models.ts";
import {
  behind,
  contextOf,
  corpusSalt,
  fragment,
  g,
  lowererOf,
  plus,
  repeat,
  salt,
  seq,
  system,
  user,
} from "./query-rig.ts";

describe("limits", () => {
  test("what cannot fit is refused before it is encoded, and what does not fit when it is known", () => {
    const small = lowererOf(models.chatml, { contextTokens: 100 });
    const context = contextOf(small.tokenizer);
    const refusal = (message: string) => expect.objectContaining({ code: "context_length_exceeded", message });
    const encode = spyOn(small.tokenizer, "encode");
    const long = g(seq(plus(user("a".repeat(900)), user("b".repeat(900)))));
    expect(() => small.lowerer.lower(long, context)).toThrow(refusal(expect.stringContaining("is 100 tokens")));
    expect(encode).not.toHaveBeenCalled();
    expect(() => small.lowerer.lower(g(plus(fragment("long"))), context, "$.x")).toThrow(
      expect.objectContaining({ code: "context_length_exceeded", param: "$.x.g.input" }),
    );
    const unknown = contextOf(small.tokenizer, () => undefined);
    const outputs = plus(repeat(8, g(user("x"), { expose: "output" })));
    expect(small.lowerer.lower(g(outputs), unknown).promptTokens).toBeGreaterThan(100);
  });

  test("a plan with too many runs, and an empty prompt, are refused", () => {
    const spans = Array.from({ length: 4_100 }, (_, index) => user(`${index}`));
    const { lowerer, tokenizer } = lowererOf(models.chatml);
    const lower = (query: ReturnType<typeof g>) => lowerer.lower(query, contextOf(tokenizer));
    expect(() => lower(g(plus(...spans)))).toThrow("too many spans");
    const answers = Array.from({ length: 2_100 }, (_, index) => g(user(`${index}`), { expose: "output" }));
    expect(() => lower(g(plus(...answers)))).toThrow("too many spans");
    const alternating = Array.from({ length: 600 }, (_, index) => [plus(user(`${index}`)), user("x")]).flat();
    expect(() => lower(g(seq(...alternating)))).toThrow("too many spans");
    expect(() => lower(g(seq(plus())))).toThrow(expect.objectContaining({ code: "invalid_value", param: "$.g.input" }));
  });
});

test("more spans than a plan may have are refused before one of them is encoded", () => {
  const { lowerer, tokenizer } = lowererOf(models.chatml);
  const encode = spyOn(tokenizer, "encode");
  const count = (spans: number) => Array.from({ length: spans }, (_, index) => user(`${index}`));
  const wide = g(seq(...[2_100, 2_000].map((spans) => plus(...count(spans)))));
  expect(() => lowerer.lower(wide, contextOf(tokenizer))).toThrow(
    expect.objectContaining({ code: "invalid_value", param: "$.g.input" }),
  );
  expect(encode).not.toHaveBeenCalled();
  // What puts nothing into the prompt is no span.
  const empty = Array.from({ length: 5_000 }, () => seq());
  expect(lowerer.lower(g(seq(plus(...empty), user("x"))), contextOf(tokenizer)).plan.runs.length).toBe(2);
});

test("many short texts let other work go on", async () => {
  const { lowerer, tokenizer } = lowererOf(models.chatml);
  const texts = Array.from({ length: 1_000 }, (_, index) => user(`${index}`));
  const { yields } = await yieldsDuring(() => lowerer.lowerInSlices(g(plus(...texts)), contextOf(tokenizer)));
  expect(yields).toBeGreaterThan(4);
});

test("chains of many outputs are made in slices", async () => {
  const { lowerer, tokenizer } = lowererOf(models.chatml);
  const context = contextOf(tokenizer);
  const query = g(seq(plus(...Array.from({ length: 40 }, (_, seed) => g(user("x"), { seed }))), user("y")));
  let [yields, isDone] = [0, false];
  const count = (): void => {
    yields += 1;
    if (!isDone) setImmediate(count);
  };
  setImmediate(count);
  const whenAsked: number[] = [];
  await lowerer.lowerInSlices(query, {
    ...context,
    outputs: (node) => {
      Bun.sleepSync(1);
      whenAsked.push(yields);
      return context.outputs(node);
    },
  });
  isDone = true;
  const afterLastYield = whenAsked.filter((each) => each === whenAsked.at(-1)).length;
  expect(afterLastYield).toBeLessThan(20);
});

test("a stand-in costs one key, however long it may become", () => {
  const { lowerer, tokenizer } = lowererOf(models.chatml);
  const lowered = lowerer.lower(g(seq(plus(g(user("x"))), user("y"))), {
    ...contextOf(tokenizer),
    outputs: () => [{ tokenIds: new Int32Array(1_000), known: false }],
  });
  const standIn = lowered.plan.runs.find(({ tokenIds }) => tokenIds.length > 1_000);
  expect(standIn?.blockKeys.length).toBe(1);
  const prepared = lowerer.preparable(lowered);
  expect(prepared?.runs.length).toBe(1);
});

test("each text is encoded ahead of use under the salt of its owner, and not again", async () => {
  const { lowerer, tokenizer } = lowererOf(models.llama3);
  const context = contextOf(tokenizer);
  const inner = seq(user("inner"), fragment("b"));
  const query = g(seq(system("s"), behind(user("p"), fragment("a")), plus(fragment("c"), g(inner)), user("u")));
  const warmed = spyOn(tokenizer, "warm");
  await lowerer.lowerInSlices(query, context);
  const owners = warmed.mock.calls.map(([pieces, , owner]) => [
    pieces.find(({ kind }) => kind === "content")?.text,
    owner,
  ]);
  expect(owners).toEqual(
    expect.arrayContaining([
      ["s", salt],
      ["p", salt],
      ["the thing a in the user", corpusSalt],
      ["the thing c in the user", corpusSalt],
      // Part of the caller's own chain, and a span that this quotes.
      ["the thing b in the user", corpusSalt],
      ["inner", salt],
      ["u", salt],
    ]),
  );
  expect(owners.length).toBe(7);
  const unyielded = { chars: 0 };
  const encoded = spyOn(tokenizer, "encode");
  lowerer.lower(query, context);
  // Warming what was lowered finds all of it.
  for (const [pieces, opens, owner] of encoded.mock.calls) {
    if (owner !== undefined) await tokenizer.warm(pieces, opens, owner, unyielded);
  }
  expect(unyielded.chars).toBe(0);
});

test("tokens and keys of long texts are remembered; of short ones, of which there may be thousands, the tokens alone", () => {
  const { lowerer, tokenizer } = lowererOf(models.llama3);
  const context = contextOf(tokenizer);
  const long = "a word and another ".repeat(20);
  const query = g(seq(user(long), plus(g(user("short")), fragment("a"))));
  const first = lowerer.lower(query, context);
  const encoded = spyOn(tokenizer, "encode");
  expect(lowerer.lower(query, context).plan).toEqual(first.plan);
  const texts = encoded.mock.calls.flatMap(([pieces, , owner]) =>
    owner === undefined ? [] : pieces.flatMap(({ kind, text }) => (kind === "content" ? [text] : [])),
  );
  expect(texts).toEqual(["short"]);
});

test("only the text at the very start opens a prompt", () => {
  const { lowerer, tokenizer } = lowererOf(models.chatml);
  const encoded = spyOn(tokenizer, "encode");
  const input = seq(user("first"), plus(user("span"), fragment("a")), user("later"));
  lowerer.lower(g(seq(plus(g(input, { expose: "output" })), user("outer"))), contextOf(tokenizer));
  const contents = encoded.mock.calls.flatMap(([pieces, opens]) =>
    pieces.flatMap(({ kind, text }) => (kind === "content" ? [[text, opens]] : [])),
  );
  expect(Object.fromEntries(contents)).toEqual({
    first: true,
    span: false,
    "the thing a in the user": false,
    later: false,
    "an answer": false,
    outer: false,
  });
});

test("an answer whose end takes more than a block cannot be closed", () => {
  const { lowerer, tokenizer } = lowererOf(models.chatml, { blockTokens: 1 });
  expect(() => lowerer.lower(g(user("x")), contextOf(tokenizer))).toThrow("begins or ends an answer");
});
