/** IBM/spnl's assertions about templated texts and their tokens: what the model's own template and tokenizer make of them. */
import { describe, expect, test } from "bun:test";
import { Template } from "@huggingface/jinja";
import { MessageLayouts } from "../../gateway/text/message-layouts.ts";
import type { ModelText } from "../../gateway/text/model-text.ts";
import { TextTokenizer } from "../../gateway/text/tokenizer.ts";
import { byteLevelTokenizer } from "../text/models.ts";
import chatTemplate from "./fixtures/upstream/chat_template.json";
import tokenizer from "./fixtures/upstream/tokenizer.json";
import { differs } from "./upstream-differences.ts";

/** Granite's writes its line feed after each message, here it stands between them: the same text for every prompt. */
const templates: Readonly<Record<string, string>> = {
  Granite:
    "{% for m in messages %}{{ ('' if loop.first else '\\n') + '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>' }}{% endfor %}{% if add_generation_prompt %}{{ '\\n<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}",
  Glmedge:
    "{% for m in messages %}{{ '\\n<|' + m.role + '|>\\n' + m.content }}{% endfor %}{% if add_generation_prompt %}{{ '\\n<|assistant|>\\n' }}{% endif %}",
};

function layoutsOf(name: string): MessageLayouts {
  const template = new Template(templates[name] ?? "");
  return new MessageLayouts((messages, addGenerationPrompt) => {
    const copied = messages.map(({ role, content }) => ({ role, content }));
    return template.render({ messages: copied, add_generation_prompt: addGenerationPrompt });
  }, "");
}

function written(name: string, role: string, content: string): { before: string; content: string; after: string } {
  const start = layoutsOf(name).start(role);
  if (start === undefined) throw new Error(`${name} refuses ${role}`);
  return { before: start.prefix + start.first.before, content, after: start.first.after };
}

describe("chat_template.json", () => {
  for (const { template, chat, add_assistant: addAssistant, out } of chatTemplate.apply) {
    test(`${template}, ${addAssistant ? "and the answer's start" : "the messages alone"}`, () => {
      const [message] = chat;
      const { before, content, after } = written(template, "user", message?.user ?? "");
      expect(before + content + after + (addAssistant ? layoutsOf(template).opening : "")).toBe(out);
    });
  }
});

describe("tokenizer.json", () => {
  const { special } = tokenizer;
  const controls = ["<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"] as const;
  const model = byteLevelTokenizer(controls);
  const words = { user: special.user, assistant: special.assistant, hello: special.hello, Ġlonger: special[" longer"] };
  // The other tokens move out of the way of the real model's ids.
  const moved = Object.entries(model.model.vocab as Record<string, number>).map(([token, id]) => [token, id + 100_000]);
  const granite: ModelText = {
    tokenizer: {
      ...model,
      added_tokens: model.added_tokens.map((token) => ({
        ...token,
        id: special[token.content as (typeof controls)[number]],
      })),
      model: {
        ...model.model,
        ignore_merges: true,
        vocab: { ...Object.fromEntries(moved), ...words, ...pick(special, controls) },
      },
    },
    config: {},
    chatTemplate: templates.Granite ?? "",
  };
  const encode = (role: string, text: string): number[] => {
    const { before, content, after } = written("Granite", role, text);
    const pieces = [
      { kind: "template", text: before },
      { kind: "content", text: content },
      { kind: "template", text: after },
    ] as const;
    return [...new TextTokenizer(granite, { cacheBytes: 1 }).encode(pieces, true)];
  };

  for (const { fn, name = fn, in: text, out } of tokenizer.cases) {
    const role = fn.startsWith("user") ? "user" : "assistant";
    if (typeof out === "string") {
      test(name, () => {
        const { before, content, after } = written("Granite", role, text);
        expect(before + content + after).toBe(out);
      });
    } else if (differs("tokenizer.json", name)) {
      test(`${name}: the whole output instead`, () => {
        const longer = text.split(" ").length - 1;
        const whole = [...Array<number>(longer).fill(special[" longer"]), special["<|end_of_text|>"]];
        const { "<|start_of_role|>": start, "<|end_of_role|>": end } = special;
        expect(encode(role, text)).toEqual([start, special.assistant, end, special.hello, ...whole]);
        expect(encode(role, text).slice(0, out.length)).toEqual(out);
      });
    } else {
      test(name, () => expect(encode(role, text)).toEqual(out));
    }
  }
});

function pick<Key extends string>(values: Readonly<Record<Key, number>>, keys: readonly Key[]): Record<string, number> {
  return Object.fromEntries(keys.map((key) => [key, values[key]]));
}
