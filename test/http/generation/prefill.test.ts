/** Answers that the caller has begun: the prompt ends within the last message, and what comes back goes on from it. */
import { describe, expect, test } from "bun:test";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const user = { role: "user", content: "the thing" };
const begun = { role: "assistant", content: "It is the" };
const prefill = { continue_final_message: true, add_generation_prompt: false };
const prompt = "<|im_start|>user\nthe thing<|im_end|>\n<|im_start|>assistant\nIt is the";
const look = { name: "look", parameters: { type: "object", properties: {} } };

const chat = (fields: object) => ({ model: "fake-model", max_tokens: 4, messages: [user, begun], ...fields });
const send = (rig: ChatRig, path: string, body: object) => post(rig.app, body, { path });

/** The prompt of the last request as text. */
const promptOf = ({ submits, text }: ChatRig): string => {
  const [run] = submits().at(-1)?.plan.runs ?? [];
  return [...(run?.tokenIds ?? [])].map((id) => text.tokenBytes.describe(id).token).join("");
};

describe.each([
  ["chat completions", "/v1/chat/completions", chat(prefill)],
  ["chat completions without vLLM's second field", "/v1/chat/completions", chat({ continue_final_message: true })],
  ["messages", "/v1/messages", chat({})],
  [
    "messages in blocks",
    "/v1/messages",
    chat({ messages: [user, { ...begun, content: [{ type: "text", text: begun.content }] }] }),
  ],
])("%s", (_name, path, body) => {
  test("end the prompt within the last message", async () => {
    const rig = chatRig();
    expect((await send(rig, path, body)).status).toBe(200);
    expect(promptOf(rig)).toBe(prompt);
  });

  test("answer with what goes on from it", async () => {
    const rig = chatRig({ answer: () => " end." });
    const answer = (await (await send(rig, path, { ...body, max_tokens: 20 })).json()) as {
      choices?: { message: { content: string } }[];
      content?: { text: string }[];
    };
    expect(answer.choices?.[0]?.message.content ?? answer.content?.[0]?.text).toStartWith(" end.");
  });
});

describe("without the wish", () => {
  test("an assistant's last message of chat completions is a turn of its own", async () => {
    const rig = chatRig();
    expect((await send(rig, "/v1/chat/completions", chat({ add_generation_prompt: true }))).status).toBe(200);
    expect(promptOf(rig)).toBe(`${prompt}<|im_end|>\n<|im_start|>assistant\n`);
  });

  test("an assistant's empty last message of messages is none", async () => {
    const rig = chatRig();
    await send(rig, "/v1/messages", chat({ messages: [user, { ...begun, content: "" }] }));
    expect(promptOf(rig)).toBe("<|im_start|>user\nthe thing<|im_end|>\n<|im_start|>assistant\n");
  });
});

test("messages count an answer that has begun as they read it", async () => {
  const rig = chatRig();
  const { max_tokens: _unused, ...body } = chat({});
  const counted = await send(rig, "/v1/messages/count_tokens", body);
  const { usage } = (await (await send(rig, "/v1/messages", chat({}))).json()) as { usage: Record<string, number> };
  const {
    input_tokens: computed = 0,
    cache_read_input_tokens: read = 0,
    cache_creation_input_tokens: kept = 0,
  } = usage;
  expect(await counted.json()).toEqual({ input_tokens: computed + read + kept });
});

test("tokenize has the tokens of a prompt that ends within its last message", async () => {
  const rig = chatRig();
  const shown = { messages: [user, begun], return_token_strs: true };
  const tokenize = async (fields: object) => {
    const response = await send(rig, "/tokenize", { ...shown, ...fields });
    return { status: response.status, body: (await response.json()) as { token_strs?: string[]; error?: object } };
  };
  expect((await tokenize(prefill)).body.token_strs?.join("")).toBe(prompt);
  expect((await tokenize({})).body.token_strs?.join("")).toBe(`${prompt}<|im_end|>\n<|im_start|>assistant\n`);
  const both = await tokenize({ ...prefill, add_generation_prompt: true });
  expect([both.status, both.body]).toMatchObject([400, { error: { param: "add_generation_prompt" } }]);
});

test("tools may be offered beside an answer that has begun", async () => {
  const rig = chatRig();
  const tools = [{ type: "function", function: look }];
  expect((await send(rig, "/v1/chat/completions", chat({ ...prefill, tools }))).status).toBe(200);
  expect(promptOf(rig)).toEndWith("<|im_start|>assistant\nIt is the");
});

test.each<[string, object, string]>([
  ["no last message of the assistant", { ...prefill, messages: [user] }, "continue_final_message"],
  ["no message at all", { ...prefill, messages: [] }, "messages"],
  ["a message with a fault", { ...prefill, messages: [user, { ...begun, tool_calls: [] }] }, "messages[1].tool_calls"],
  ["an empty one", { ...prefill, messages: [user, { ...begun, content: "" }] }, "continue_final_message"],
  ["both ends of a prompt", { ...prefill, add_generation_prompt: true }, "add_generation_prompt"],
  ["neither end of a prompt", { add_generation_prompt: false }, "add_generation_prompt"],
  ["a format of the whole answer", { ...prefill, response_format: { type: "json_object" } }, "response_format"],
  [
    "a call that must be made",
    { ...prefill, tools: [{ type: "function", function: look }], tool_choice: "required" },
    "tool_choice",
  ],
])("chat completions refuse %s", async (_name, fields, param) => {
  const response = await send(chatRig(), "/v1/chat/completions", chat(fields));
  expect([response.status, await response.json()]).toMatchObject([400, { error: { code: "invalid_value", param } }]);
});
