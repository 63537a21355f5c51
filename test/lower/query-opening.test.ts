/**
 * Templates that write nothing to open an answer: the last token of the prompt's own text opens it then. Texts are held
 * against the template's own rendering.
 */
import { describe, expect, test } from "bun:test";
import type { Query } from "../../gateway/query/ir.ts";
import { planFault } from "../../worker/contract/validate.ts";
import { mistralModel, models, ownTokens } from "../text/models.ts";
import {
  assistant,
  behind,
  card,
  contextOf,
  fragment,
  g,
  lowererOf,
  plus,
  repeat,
  seq,
  submitOf,
  system,
  user,
  visibleTo,
} from "./query-rig.ts";

const said = "an answer";
const model = mistralModel;
const { lowerer, tokenizer } = lowererOf(model);
const lowered = (query: Query, options = {}) =>
  lowerer.lower(
    g(query, options),
    contextOf(tokenizer, () => said),
  );
const textOf = (query: Query, options = {}) => {
  const { plan, promptTokens } = lowered(query, options);
  const visible = visibleTo(plan, plan.runs.length - 1);
  expect(promptTokens).toBe(visible.length);
  return visible;
};
const own = (...turns: readonly string[]) =>
  ownTokens(
    model,
    turns.map((content, index) => ({ role: index % 2 === 0 ? "user" : "assistant", content })),
  );
const tokens = (text: string) => [...tokenizer.encode([{ kind: "template", text }], false)];
const closer = tokens("[/INST]");

test("the whole prompt is the template's own, and its last token stands in the answer's run", () => {
  const question = seq(user("the thing"), assistant("yes"), user("why"));
  expect(textOf(question)).toEqual(own("the thing", "yes", "why"));
  const { plan, closeTokenIds } = lowered(question);
  expect([...(plan.runs.at(-1)?.tokenIds ?? [])]).toEqual(closer);
  expect([...closeTokenIds]).toEqual(tokens("</s>"));
  const limits = { ...card, vocabSize: 400, blockCount: 1_000, kvBytesPerBlock: 1 };
  expect(planFault(submitOf(lowered(question)), limits)).toBeUndefined();
});

test("a text without a token at its end gives the last of what it has", () => {
  const { lowerer: folding, tokenizer: text } = lowererOf(models.folding);
  const { plan } = folding.lower(g(user("the thing")), contextOf(text));
  const whole = ownTokens(models.folding, [{ role: "user", content: "the thing" }]);
  expect(visibleTo(plan, plan.runs.length - 1)).toEqual(whole);
  expect([...(plan.runs.at(-1)?.tokenIds ?? [])]).toEqual(whole.slice(-1));
});

describe("outputs", () => {
  const inner = user("the thing");
  const answered = [...own("the thing"), ...tokens(said), ...tokens("</s>")];
  const question = own("why").slice(1);

  test("behind their own prompt: together they are the conversation, computed once", () => {
    const shown = seq(plus(seq(inner, g(inner, { expose: "output" }))), user("why"));
    expect(textOf(shown)).toEqual([...answered, ...question]);
    const keysOf = (query: Query) => lowered(query).plan.runs.map(({ blockKeys }) => blockKeys.join());
    expect(keysOf(shown)).toContain(keysOf(inner)[0]);
  });

  test("several of one prompt each begin with its last token", () => {
    const shown = seq(plus(seq(inner, repeat(2, g(inner, { expose: "output" })))), user("why"));
    const again = [...closer, ...tokens(said), ...tokens("</s>")];
    expect(textOf(shown)).toEqual([...answered, ...again, ...question]);
  });

  test("in an ordered join: as the template writes an answer, without the token", () => {
    const shown = seq(inner, g(inner), user("why"));
    expect(textOf(shown)).toEqual([...answered, ...question]);
  });

  test("blended prompts copy fragments and compute outputs in place", () => {
    const shown = seq(fragment("a"), g(inner), user("why"));
    const { plan } = lowered(shown, { reuse: "blend" });
    expect(visibleTo(plan, plan.runs.length - 1)).toEqual([...textOf(shown)]);
    const copies = plan.runs.flatMap((run) => run.blend?.copies ?? []);
    expect(copies.map(({ at }) => at)).toEqual([1]);
  });
});

describe("a prompt that does not end in text of its own is refused with its path", () => {
  const refused: [string, Query, object][] = [
    ["a plus", seq(user("a"), plus(fragment("a"), user("b"))), {}],
    ["a fragment that is copied", seq(user("a"), fragment("a")), { reuse: "blend" }],
  ];
  test.each(refused)("%s", (_, query, options) => {
    expect(() => lowered(query, options)).toThrow(
      expect.objectContaining({ code: "chat_template_error", param: "$.g.input" }),
    );
  });

  test("of an inner generate too", () => {
    const inner = behind(user("p"), user("b"));
    expect(() => lowered(seq(plus(g(inner)), user("c")))).toThrow(
      expect.objectContaining({ code: "chat_template_error", param: "$.g.input.seq[0].plus[0].g.input" }),
    );
  });

  test("a role that the template does not know is refused as before", () => {
    expect(() => lowered(seq(system("s"), user("a")))).toThrow(
      expect.objectContaining({ code: "chat_template_error" }),
    );
  });
});
