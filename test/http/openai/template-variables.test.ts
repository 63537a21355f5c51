/** `chat_template_kwargs`: what the model's template reads reaches it, and what it does not read is never silent. */
import { expect, test } from "bun:test";
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import { models } from "../../text/models.ts";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

/** Opens the answer behind an empty thought where thinking is switched off, as Qwen3 does; `terse` changes the start. */
const chatTemplate = `{%- if terse %}{{- '<|im_start|>system\n' + 'Be terse.' + '<|im_end|>\n' }}{%- endif %}${models.chatml.chatTemplate}{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{{- 'tone' | replace('tone', '') }}`;
const model = { ...models.chatml, chatTemplate };
const messages = [{ role: "user", content: "the thing" }];

/** The oracle: the template rendered with the variables, encoded by the model's own tokenizer. */
function tokensWith(variables: object): readonly number[] {
  const rendered = new Template(chatTemplate).render({ ...variables, messages, add_generation_prompt: true });
  return new Tokenizer(model.tokenizer, model.config).encode(rendered, { add_special_tokens: false }).ids;
}

async function ask(rig: ChatRig, path: string, variables: object, headers: Record<string, string> = {}) {
  const limits = path === "/tokenize" ? {} : { max_tokens: 2 };
  const body = { model: "fake-model", messages, ...limits, chat_template_kwargs: variables };
  const response = await post(rig.app, body, { path, headers });
  return {
    status: response.status,
    ignored: response.headers.get("x-spangate-ignored"),
    body: (await response.json()) as {
      readonly tokens?: readonly number[];
      readonly usage?: { readonly prompt_tokens: number };
      readonly error?: { readonly code: string; readonly param: string };
    },
  };
}

test.each([{}, { enable_thinking: false }, { enable_thinking: true }, { enable_thinking: false, terse: true }])(
  "%p reaches the template, in chats and in /tokenize",
  async (variables) => {
    const rig = chatRig({ model });
    // Layouts are remembered: the other's must not be taken.
    await ask(rig, "/tokenize", { terse: true });
    const wanted = tokensWith(variables);
    const tokenized = await ask(rig, "/tokenize", variables);
    expect([tokenized.status, tokenized.ignored, tokenized.body.tokens]).toEqual([200, null, [...wanted]]);
    const chat = await ask(rig, "/v1/chat/completions", variables);
    expect([chat.status, chat.ignored, chat.body.usage?.prompt_tokens]).toEqual([200, null, wanted.length]);
    const [submit] = rig.submits();
    expect(submit?.plan.runs.flatMap((run) => [...run.tokenIds])).toEqual([...wanted]);
  },
);

test("thinking is really another prompt", () => {
  expect(tokensWith({ enable_thinking: false }).length).toBeGreaterThan(tokensWith({ enable_thinking: true }).length);
});

test("a hint that the template does not read is named, and refused where nothing may be left out", async () => {
  const path = "/v1/chat/completions";
  const plain = chatRig();
  const hints = { enable_thinking: false, thinking: true, reasoning_effort: "low" };
  expect(await ask(plain, path, hints)).toMatchObject({
    status: 200,
    ignored: Object.keys(hints)
      .map((name) => `chat_template_kwargs.${name}`)
      .join(", "),
  });
  expect(await ask(chatRig({ model }), path, { enable_thinking: null })).toMatchObject({ status: 200, ignored: null });
  expect(await ask(plain, path, hints, { "x-spangate-strict": "true" })).toMatchObject({
    status: 400,
    body: { error: { code: "unsupported_field", param: "chat_template_kwargs.enable_thinking" } },
  });
});

test.each([
  ["a name that the template does not read", { loud: true }, "chat_template_kwargs.loud"],
  ["a word that only its texts hold", { tone: true }, "chat_template_kwargs.tone"],
  ["a text", { terse: "<|im_end|>" }, "chat_template_kwargs.terse"],
  ["the prompt's own", { messages: true }, "chat_template_kwargs.messages"],
  ["the prompt's own start", { bos_token: false }, "chat_template_kwargs.bos_token"],
  ["no name", { "a b": true }, "chat_template_kwargs.a b"],
  ["too many", Object.fromEntries(Array.from({ length: 17 }, (_, at) => [`v${at}`, true])), "chat_template_kwargs"],
])("%s is refused", async (_what, variables, param) => {
  for (const path of ["/v1/chat/completions", "/tokenize"]) {
    expect(await ask(chatRig({ model }), path, variables)).toMatchObject({ status: 400, body: { error: { param } } });
  }
});
