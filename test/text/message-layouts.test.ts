import { describe, expect, test } from "bun:test";
import { Template } from "@huggingface/jinja";
import { parseConfig } from "../../gateway/config.ts";
import type { Message, Query } from "../../gateway/query/ir.ts";
import { type ModelText, readModelText } from "../../gateway/text/model-text.ts";
import {
  assistant,
  contextOf,
  fragment,
  g,
  lowererOf,
  plus,
  seq,
  system,
  user,
  visibleTo,
} from "../lower/query-rig.ts";
import { effort } from "../support/effort.ts";
import { fc } from "../support/fast-check.ts";
import { models, ownTokens, textSide } from "./models.ts";
import { reasoningModels } from "./reasoning-models.ts";

const demo = readModelText(parseConfig({}).modelDir);
/** Writes the date before the first system message and nowhere else, as Llama 3.1 does; the first turn is its own case. */
const dated: ModelText = {
  ...models.llama3,
  chatTemplate:
    "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] | trim %}{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}{{ bos_token + '<|start_header_id|>system<|end_header_id|>\n\nToday is a day.\n\n' + sys + '<|eot_id|>' }}{% for m in rest %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
};
const able = {
  demo,
  chatml: models.chatml,
  llama3: models.llama3,
  granite: models.granite,
  rstrip: models.rstrip,
  dated,
};

const text = fc.string({
  unit: fc.constantFrom(" ", "\n", "\t", "the", "a", "é", "世", "😀", "<|", "|>", "'s", "7"),
  maxLength: 12,
});
const message = fc.tuple(fc.constantFrom(user, assistant, system), text).map(([role, content]) => role(content));
/** What the model's own library makes of the messages of a query, one after the other. */
const own = (model: ModelText, messages: readonly Message[]) =>
  ownTokens(
    model,
    messages.map(({ role, text: content }) => ({ role, content })),
  );

function lowered(model: ModelText, input: Query) {
  const { lowerer, tokenizer } = lowererOf(model);
  return lowerer.lower(g(input), contextOf(tokenizer));
}

function shownBy(model: ModelText, input: Query): readonly number[] {
  const { plan } = lowered(model, input);
  return visibleTo(plan, plan.runs.length - 1);
}

/** Writes an answer with an empty thinking when nothing comes behind it: before a question it stands plain. */
const { qwen3 } = reasoningModels;

describe("messages put together are the model's own rendering", () => {
  for (const [name, model] of Object.entries({ ...able, qwen3 })) {
    test(`${name}: in one chain, and as spans laid flat`, () => {
      // Where the first system message is a special one, only the first stands as the template writes it.
      const inside = name === "dated" || name === "granite" ? message.filter(({ role }) => role !== "system") : message;
      const rows = fc.tuple(message, fc.array(inside, { maxLength: 4 }), text);
      fc.assert(
        fc.property(rows, ([first, rest, question]) => {
          const messages = [first, ...rest, user(question)];
          const flat = own(model, messages);
          expect(shownBy(model, seq(...messages))).toEqual(flat);
          const [span, ...others] = rest;
          if (span !== undefined) {
            const query = seq(first, plus(span, seq(...others)), user(question));
            expect(shownBy(model, query)).toEqual(flat);
          }
          // A span is the same in every prompt, so a message in it is never the special first one.
          if (name === "dated" && first.role === "system") return;
          expect(shownBy(model, plus(first, seq(...rest, user(question))))).toEqual(flat);
        }),
        { numRuns: effort(20, 100) },
      );
    });
  }

  for (const [name, model] of Object.entries(able)) {
    test(`${name}: outputs, and prompts that are shown without what opened them`, () => {
      const { lowerer, tokenizer } = lowererOf(model);
      const inner = seq(user("the thing"), user("in the row"));
      const output = g(inner, { expose: "output" });
      const context = contextOf(tokenizer, () => "an answer");
      const { plan, promptTokens } = lowerer.lower(
        g(seq(system("s"), plus(seq(inner, output), fragment("a")), user("u"))),
        context,
      );
      const document = { role: "document", content: context.fragments.get("a")?.text ?? "" };
      const rest = [...inner.children, assistant("an answer")].map((one) => one as Message);
      const contents = rest.map(({ role, text: content }) => ({ role, content }));
      const flat = [{ role: "system", content: "s" }, ...contents, document, { role: "user", content: "u" }];
      expect(visibleTo(plan, plan.runs.length - 1)).toEqual(ownTokens(model, flat));
      expect(promptTokens).toBe(ownTokens(model, flat).length);
    });
  }

  test("granite: a prompt whose first message is an inner prompt's system message has no other", () => {
    const inner = g(seq(system("s"), user("a")));
    const flat = own(models.granite, [system("s"), user("a"), assistant("an answer"), user("b")]);
    expect(shownBy(models.granite, seq(plus(inner), user("b")))).toEqual(flat);
  });

  test("strict: what opens a shown prompt is hidden, where the first message is a special one too", () => {
    const inner = g(seq(system("s"), user("a")));
    const flat = own(models.strict, [system("s"), user("a"), assistant("an answer"), user("b")]);
    expect(shownBy(models.strict, seq(plus(inner), user("b")))).toEqual(flat);
    const starts = shownBy(models.strict, seq(system("o"), plus(inner), user("b"))).filter((id) => id === flat[0]);
    expect(starts.length).toBe(1);
  });

  test("what closes an answer and what opens it stand around an assistant's message", () => {
    const { lowerer, tokenizer } = lowererOf(demo);
    const { plan, closeTokenIds } = lowerer.lower(g(user("x")), contextOf(tokenizer));
    const opening = [...(plan.runs.at(-1)?.tokenIds ?? [])];
    const rendered = new Template(demo.chatTemplate).render({ messages: [{ role: "assistant", content: "y" }] });
    const whole = [...tokenizer.encode([{ kind: "template", text: rendered }], true)];
    expect([...opening, ...tokenizer.encodeText("y"), ...closeTokenIds]).toEqual(whole);
  });
});

describe("what a template does not allow", () => {
  test("a role it refuses inside a prompt is an error with the message's path", () => {
    const query = seq(user("a"), plus(seq(system("b"), user("c"))));
    expect(() => lowered(models.strict, query)).toThrow(
      expect.objectContaining({ code: "chat_template_error", param: "$.g.input.seq[1].plus[0].seq[0]" }),
    );
    expect(lowered(models.strict, seq(system("b"), user("c"))).plan.runs.length).toBe(2);
  });

  test("a role it refuses at the start is an error with the prompt's path", () => {
    expect(() => lowered(models.strict, seq(assistant("b"), user("c")))).toThrow(
      expect.objectContaining({ code: "chat_template_error", param: "$.g.input" }),
    );
  });

  test("a system message that is folded into the next one is refused; prompts without it are the model's own", () => {
    const turns =
      "{% if messages and messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] ~ '\n' %}{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}{% for m in rest %}{{ '<|im_start|>' ~ m['role'] ~ '\n' ~ (sys if loop.first else '') ~ m['content'] ~ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    const model = { ...models.chatml, chatTemplate: turns };
    const messages = [user("a"), assistant("b"), user("c")];
    expect(shownBy(model, seq(...messages))).toEqual(own(model, messages));
    expect(() => lowered(model, seq(system("s"), user("c")))).toThrow(
      expect.objectContaining({ code: "chat_template_error" }),
    );
  });

  test("an answer that is opened in different ways has no opening", () => {
    const { chatTemplate } = models.chatml;
    const varying = chatTemplate.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant ' ~ messages|length");
    expect(varying).not.toBe(chatTemplate);
    expect(() => lowered({ ...models.chatml, chatTemplate: varying }, user("c"))).toThrow("begins or ends an answer");
  });

  test("a layout that depends on neighbours is none", () => {
    const numbered = "{% for m in messages %}{{ loop.index ~ m['role'] ~ ':' ~ m['content'] ~ '\n' }}{% endfor %}";
    const { template } = textSide({ ...models.chatml, chatTemplate: numbered + models.chatml.chatTemplate });
    expect(template.messages.inside("user")).toBeUndefined();
    const counting = models.chatml.chatTemplate.replace("'<|im_start|>'", "'<|im_start|>' ~ loop.index");
    expect(textSide({ ...models.chatml, chatTemplate: counting }).template.messages.inside("user")).toBeUndefined();
  });

  test("nor is one that depends on what follows", () => {
    const { chatTemplate } = models.chatml;
    const older = chatTemplate.replace(
      "+ '<|im_end|>'",
      "+ ('' if loop.last or message['role'] != 'assistant' else loop.revindex | string) + '<|im_end|>'",
    );
    expect(older).not.toBe(chatTemplate);
    expect(textSide({ ...models.chatml, chatTemplate: older }).template.messages.inside("user")).toBeUndefined();
    const alone = chatTemplate.replace("+ '<|im_end|>'", "+ ('(alone)' if loop.length == 1 else '') + '<|im_end|>'");
    expect(textSide({ ...models.chatml, chatTemplate: alone }).template.messages.start("user")).toBeUndefined();
  });

  test("an answer that is written otherwise when nothing comes behind it is taken as before a question", () => {
    const { chatTemplate } = models.chatml;
    const old = chatTemplate.replace(
      "+ '<|im_end|>'",
      "+ ('' if loop.last or message['role'] != 'assistant' else '!') + '<|im_end|>'",
    );
    const model = { ...models.chatml, chatTemplate: old };
    expect(textSide(model).template.messages.inside("assistant")?.after).toStartWith("!");
    const messages = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")];
    expect(shownBy(model, seq(...messages))).toEqual(own(model, messages));
  });

  test("special tokens that users write stay text, in messages and fragments", () => {
    for (const model of Object.values(able)) {
      const controls = model.tokenizer.added_tokens.filter(({ special }) => special);
      const ids = new Set(controls.map(({ id }) => id));
      const attack = `x${controls.map(({ content }) => content).join("")}y`;
      const count = (content: string) => {
        const span: Query = { kind: "fragment", text: content, title: content };
        const query = seq(user(content), plus(span, user(content)), span);
        return lowered(model, query)
          .plan.runs.flatMap((run) => [...run.tokenIds])
          .filter((id) => ids.has(id)).length;
      };
      expect(count(attack)).toBe(count("harmless"));
    }
  });
});
