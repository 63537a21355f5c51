import { describe, expect, test } from "bun:test";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const path = "/v1/completions";
const question = { model: "fake-model", prompt: "the thing in the row", max_tokens: 4 };

interface TextChoice {
  index: number;
  text: string;
  finish_reason: string | null;
  logprobs: null;
}
interface TextAnswer {
  choices: TextChoice[];
  usage: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details: { cached_tokens: number } };
}
const send = async (app: ChatRig["app"], body: object): Promise<TextAnswer> => {
  const response = await post(app, body, { path });
  expect(response.status).toBe(200);
  return (await response.json()) as TextAnswer;
};
const idsOf = async (app: ChatRig["app"], body: object): Promise<number[]> => {
  const response = await post(app, body, { path: "/tokenize" });
  expect(response.status).toBe(200);
  return ((await response.json()) as { tokens: number[] }).tokens;
};

describe("a completion", () => {
  test("goes on with the text as it is, without a template", async () => {
    const { app, submits } = chatRig();
    const answer = await send(app, question);
    expect(answer).toMatchObject({ object: "text_completion", model: "fake-model" });
    const [submit] = submits();
    const ids = await idsOf(app, { prompt: question.prompt });
    expect([...(submit?.plan.runs[0]?.tokenIds ?? [])]).toEqual(ids);
    expect(submit?.plan.runs).toHaveLength(1);
    expect(answer.usage).toMatchObject({ prompt_tokens: ids.length, completion_tokens: 4 });
    // The worker echoes the prompt.
    const text = answer.choices[0]?.text ?? "";
    expect(text).not.toBe("");
    expect(question.prompt).toStartWith(text);
    expect(answer.choices[0]).toMatchObject({ index: 0, finish_reason: "length", logprobs: null });
  });

  test("token ids are the prompt they stand for; control tokens among them too", async () => {
    const { app, submits } = chatRig();
    const ids = await idsOf(app, { messages: [{ role: "user", content: "the thing" }] });
    await send(app, { ...question, prompt: ids });
    await post(app, { model: "fake-model", messages: [{ role: "user", content: "the thing" }], max_tokens: 4 });
    const [raw, chat] = submits();
    expect(raw?.plan.runs[0]?.blockKeys).toEqual(chat?.plan.runs[0]?.blockKeys ?? []);
    await send(app, { ...question, prompt: "<|im_start|>" });
    expect(submits()[2]?.plan.runs[0]?.tokenIds.length).toBeGreaterThan(1);
  });

  test("several prompts with several choices each, in their order, each as if it were alone", async () => {
    const { app, submits } = chatRig();
    const prompts = ["the thing", "in the row"];
    const answer = await send(app, { ...question, prompt: prompts, n: 2, seed: 7 });
    expect(answer.choices.map(({ index }) => index)).toEqual([0, 1, 2, 3]);
    for (const [index, { text }] of answer.choices.entries()) {
      expect(text).not.toBe("");
      expect(prompts[Math.floor(index / 2)]).toStartWith(text);
    }
    expect(submits().map(({ params }) => params.sampling.seed)).toEqual([7, 8, 7, 8]);
    const lengths = await Promise.all(prompts.map(async (prompt) => (await idsOf(app, { prompt })).length));
    expect(answer.usage).toMatchObject({ prompt_tokens: (lengths[0] ?? 0) + (lengths[1] ?? 0), completion_tokens: 16 });
    const lists = await Promise.all(prompts.map((prompt) => idsOf(app, { prompt })));
    const again = await send(app, { ...question, prompt: lists });
    expect(again.choices.map(({ text }) => text)).toEqual([0, 2].map((index) => answer.choices[index]?.text ?? ""));
  });

  test("without max_tokens there are 16", async () => {
    const { app, submits } = chatRig();
    await send(app, { ...question, max_tokens: null });
    expect(submits()[0]?.params.maxTokens).toBe(16);
  });

  test("a stream adds up to the same", async () => {
    const { app } = chatRig();
    const whole = await send(app, { ...question, n: 2 });
    const body = { ...question, n: 2, stream: true, stream_options: { include_usage: true } };
    const lines = (await (await post(chatRig().app, body, { path })).text())
      .split("\n\n")
      .filter((line) => line !== "");
    expect(lines.at(-1)).toBe("data: [DONE]");
    const chunks = lines.slice(0, -1).map((line) => JSON.parse(line.replace("data: ", "")) as TextAnswer);
    const parts = chunks.flatMap(({ choices }) => choices);
    for (const { index, text } of whole.choices) {
      const own = parts.filter((part) => part.index === index);
      expect(own.map((part) => part.text).join("")).toBe(text);
      expect(own.at(-1)?.finish_reason).toBe("length");
    }
    expect(chunks.at(-1)?.choices).toEqual([]);
    expect(chunks.at(-1)?.usage.completion_tokens).toBe(whole.usage.completion_tokens);
  });
});

describe("tokens", () => {
  const { app } = chatRig();
  const back = async (tokens: number[]) =>
    ((await (await post(app, { tokens }, { path: "/detokenize" })).json()) as { prompt: string }).prompt;

  test("a text comes back from its tokens, markers included", async () => {
    for (const text of ["the thing in the row", "<|im_end|> été \u{1F600}", ""]) {
      expect(await back(await idsOf(app, { prompt: text }))).toBe(text);
    }
  });

  test("of many are turned into text piece by piece, characters that are spread over tokens too", async () => {
    const text = "\u{1F600} the thing <|im_end|>".repeat(150);
    const long = await idsOf(app, { prompt: text });
    expect(long.length).toBeGreaterThan(1_100);
    // A whole list of these is ten pieces, each character in another place of its piece.
    const tokens = Array.from({ length: Math.ceil(10_240 / long.length) }, () => long).flat();
    expect(await back(tokens)).toBe(text.repeat(tokens.length / long.length));
    const emoji = await idsOf(app, { prompt: "\u{1F600}" });
    const [word = 0] = await idsOf(app, { prompt: "the" });
    expect(emoji.length).toBeGreaterThan(1);
    // Each of its tokens is the first behind the end of a piece once.
    for (const [at] of emoji.entries()) {
      const words = Array.from({ length: 1_024 - at }, () => word);
      expect(await back([...words, ...emoji])).toBe(`${await back(words)}\u{1F600}`);
    }
    const named = await post(app, { prompt: text, return_token_strs: true }, { path: "/tokenize" });
    const { token_strs: names } = (await named.json()) as { token_strs: string[] };
    expect(names).toHaveLength(long.length);
    expect(names.join("").endsWith(text.slice(-20))).toBe(true);
  });

  test("a conversation is its whole prompt, special tokens by their names", async () => {
    const messages = [{ role: "user", content: "the thing" }];
    const answer = await post(app, { messages, return_token_strs: true, model: "fake-model" }, { path: "/tokenize" });
    const {
      tokens,
      token_strs: names,
      count,
      max_model_len: context,
    } = (await answer.json()) as {
      tokens: number[];
      token_strs: string[];
      count: number;
      max_model_len: number;
    };
    expect(count).toBe(tokens.length);
    expect(context).toBe(2048);
    expect(names.join("")).toContain("<|im_start|>user\nthe thing<|im_end|>");
    expect(await back(tokens)).toBe(names.join(""));
  });
});

describe("bad input", () => {
  const { app } = chatRig();
  const refusal = async (body: object, at: string) => {
    const response = await post(app, body, { path: at });
    const { error } = (await response.json()) as { error: { code: string; param: string | null } };
    return { status: response.status, code: error.code, param: error.param };
  };
  const many = Array.from({ length: 33 }, () => "x");
  test.each<[string, string, object, string, string]>([
    ["no prompt", path, { ...question, prompt: undefined }, "invalid_value", "prompt"],
    ["an empty prompt", path, { ...question, prompt: "" }, "invalid_value", "prompt"],
    ["an empty list", path, { ...question, prompt: [] }, "invalid_value", "prompt"],
    ["texts and ids", path, { ...question, prompt: ["x", 1] }, "invalid_value", "prompt[1]"],
    ["a negative id", path, { ...question, prompt: [-1] }, "invalid_value", "prompt[0]"],
    ["an unknown id", path, { ...question, prompt: [2_000_000] }, "invalid_value", "prompt"],
    [
      "a wrong id among many",
      path,
      { ...question, prompt: [...Array(2_000).fill(1), -1] },
      "invalid_value",
      "prompt[2000]",
    ],
    [
      "texts among many ids",
      path,
      { ...question, prompt: [1, ...Array(2_000).fill("x")] },
      "invalid_value",
      "prompt[1]",
    ],
    ["too many lists", path, { ...question, prompt: many.map(() => [1]) }, "invalid_value", "prompt"],
    ["too many ids", path, { ...question, prompt: Array(140_000).fill(1) }, "invalid_value", "prompt"],
    ["too many prompts", path, { ...question, prompt: many }, "invalid_value", "prompt"],
    ["too many choices", path, { ...question, prompt: many.slice(0, 17), n: 2 }, "invalid_value", "n"],
    ["echo", path, { ...question, echo: true }, "unsupported_field", "echo"],
    ["best_of", path, { ...question, best_of: 2 }, "unsupported_field", "best_of"],
    ["a suffix", path, { ...question, suffix: "x" }, "unsupported_field", "suffix"],
    ["a long prompt", path, { ...question, prompt: "amber ".repeat(50_000) }, "context_length_exceeded", "prompt"],
    ["too many tokens", path, { ...question, max_tokens: 1_000_000 }, "context_length_exceeded", "max_tokens"],
    ["another model", path, { ...question, model: "nobody" }, "model_not_found", "model"],
    ["nothing to tokenize", "/tokenize", {}, "invalid_value", "prompt"],
    [
      "two things to tokenize",
      "/tokenize",
      { prompt: "x", messages: [{ role: "user", content: "x" }] },
      "invalid_value",
      "prompt",
    ],
    [
      "no start of the answer",
      "/tokenize",
      { messages: [{ role: "user", content: "x" }], add_generation_prompt: false },
      "invalid_value",
      "add_generation_prompt",
    ],
    ["a template", "/tokenize", { prompt: "x", chat_template: "x" }, "unsupported_field", "chat_template"],
    ["a long text", "/tokenize", { prompt: "amber ".repeat(50_000) }, "context_length_exceeded", "prompt"],
    ["another model's tokens", "/detokenize", { tokens: [1], model: "nobody" }, "model_not_found", "model"],
    ["unknown tokens", "/detokenize", { tokens: [1, 2_000_000] }, "invalid_value", "tokens[1]"],
    ["no tokens", "/detokenize", {}, "invalid_value", "tokens"],
  ])("%s", async (_name, at, body, code, param) => {
    expect(await refusal(body, at)).toMatchObject({ code, param });
  });

  test("keys without the scope, or without a tenant", async () => {
    for (const at of [path, "/tokenize", "/detokenize"]) {
      for (const key of ["key-reader", "key-platform"]) {
        expect((await post(app, question, { path: at, key })).status).toBe(403);
      }
    }
  });
});
