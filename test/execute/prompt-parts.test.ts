import { describe, expect, test } from "bun:test";
import { markOrigins, originOf } from "../../gateway/execute/origins.ts";
import { allRuns, innerAt, promptParts } from "../../gateway/execute/prompt-parts.ts";
import { Slots } from "../../gateway/execute/slots.ts";
import type { Generate, Query } from "../../gateway/query/ir.ts";
import { parseQuery } from "../../gateway/query/parse.ts";
import { canonicalText } from "../../gateway/query/print.ts";
import { rewrite } from "../support/span-queries.ts";

const g = (text: string, fields: object = {}) => ({ g: { model: "", ...fields, input: { user: text } } });
const user = (text: string) => ({ user: text });

function generateOf(query: Query): Generate {
  if (query.kind !== "generate") throw new Error(`a ${query.kind}`);
  return query;
}
const input = (value: unknown): Query => generateOf(parseQuery({ g: { model: "", input: value } })).input;

describe("what a prompt needs", () => {
  test("generates and repeats that stand in it, not those inside them, each with its path", () => {
    const prompt = input({ seq: [{ plus: [g("a"), { repeat: { n: 2, ...g("b") } }] }, user("x"), g("c")] });
    const nested = input({ seq: [{ g: { model: "", input: g("deep") } }] });
    expect(promptParts(prompt, "$.g.input").inner.map(({ path }) => path)).toEqual([
      "$.g.input.seq[0].plus[0]",
      "$.g.input.seq[0].plus[1].repeat",
      "$.g.input.seq[2]",
    ]);
    expect(promptParts(nested, "$").inner.map(({ path }) => path)).toEqual(["$.seq[0]"]);
  });

  test("a node that stands twice is one", () => {
    const zipped = rewrite(
      parseQuery({ g: { model: "", input: { zip: { first: g("a"), second: { seq: [user("b"), user("c")] } } } } }),
    );
    const { inner } = promptParts(generateOf(zipped.query).input, "$.g.input");
    expect(inner.length).toBe(1);
  });

  test("effects run for themselves; one-token generates in a commutative join are spans", () => {
    const one = { max_tokens: 1 };
    const prompt = input({
      seq: [
        { monad: g("warm", { max_tokens: 4 }) },
        { monad: { plus: [g("s", one), g("long")] } },
        { monad: g("m", one) },
        user("q"),
      ],
    });
    const { inner, effects, spans } = promptParts(prompt, "$.g.input");
    expect(inner).toEqual([]);
    expect(effects.map(({ path }) => path)).toEqual([
      "$.g.input.seq[0].monad",
      "$.g.input.seq[1].monad.plus[1]",
      "$.g.input.seq[2].monad",
    ]);
    expect(spans.map(({ input: span }) => canonicalText(span))).toEqual([canonicalText(parseQuery(user("s")))]);
  });

  test("a span that the prompt holds itself is not prepared apart", () => {
    const shared = parseQuery(user("document"));
    const warming = { kind: "generate", options: { model: "", maxTokens: 1, temperature: 0 }, input: shared } as const;
    const prompt: Query = {
      kind: "seq",
      children: [
        { kind: "monad", child: { kind: "plus", children: [warming] } },
        { kind: "plus", children: [shared] },
      ],
    };
    expect(promptParts(prompt, "$").spans).toEqual([]);
  });

  test("all runs of a query: inner ones before those that read them, each once", () => {
    const query = parseQuery({
      g: { model: "", input: { seq: [{ g: { model: "", input: g("deep") } }, { monad: g("e") }] } },
    });
    const paths = allRuns([innerAt(generateOf(query), "$")]).map(({ path }) => path);
    expect(paths).toEqual(["$.g.input.seq[0].g.input", "$.g.input.seq[0]", "$.g.input.seq[1].monad", "$"]);
  });
});

test("a generate keeps its place in the caller's query through the rules", () => {
  const texts = ["one", "two", "three", "four"];
  const query = markOrigins(parseQuery({ g: { model: "", input: { plus: texts.map((text) => g(text)) } } }));
  const { query: rewritten, steps } = rewrite(query);
  // They were put into another order and shown behind their inputs: their places have changed.
  expect(new Set(steps.map(({ rule }) => rule))).toContain("canonical-order");
  const { inner } = promptParts(generateOf(rewritten).input, "$.g.input");
  const found = inner.map(({ node, path }) => {
    const { input: asked } = node as Generate;
    return [asked.kind === "message" ? asked.text : "", path] as const;
  });
  expect(new Map(found)).toEqual(new Map(texts.map((text, index) => [text, `$.g.input.plus[${index}]`])));
  expect(inner.some(({ place, path }) => place !== path)).toBe(true);
  expect(originOf(generateOf(rewritten))).toBe("$");
});

describe("slots", () => {
  test("are given in order", async () => {
    const slots = new Slots(1);
    const controller = new AbortController();
    const leave = await slots.enter(controller.signal);
    const order: string[] = [];
    const second = slots.enter(controller.signal).then((leaveSecond) => {
      order.push("second");
      leaveSecond();
    });
    const third = slots.enter(controller.signal).then(() => order.push("third"));
    await Promise.resolve();
    expect(order).toEqual([]);
    leave();
    await Promise.all([second, third]);
    expect(order).toEqual(["second", "third"]);
  });

  test("an aborted wait hands its slot on", async () => {
    const slots = new Slots(1);
    const leave = await slots.enter(new AbortController().signal);
    const gone = new AbortController();
    const aborted = slots.enter(gone.signal);
    const patient = slots.enter(new AbortController().signal);
    gone.abort();
    leave();
    await expect(aborted).rejects.toBe(gone.signal.reason);
    (await patient)();
  });
});
