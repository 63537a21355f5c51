/** Thinking in the three APIs: apart from the answer, whole and streamed; wishes of clients; earlier thinking. */
import { describe, expect, test } from "bun:test";
import {
  asksThinking,
  type ReasoningFamily,
  reasoningFamilies,
  reasoningModels,
  written,
} from "../../text/reasoning-models.ts";
import { chatRig, post } from "../chat-rig.ts";

const [thought, said] = ["Is it <b>Oslo</b>? 🙂\n\nYes.", "It is Oslo."];
const messages = [{ role: "user", content: "the thing" }];
const rigOf = (family: ReasoningFamily, answer = written[family](thought, said)) =>
  chatRig({ model: reasoningModels[family], answer: () => answer });
const bodyOf = (family: ReasoningFamily, more: object = {}) => {
  return { model: "fake-model", messages, max_tokens: 400, chat_template_kwargs: asksThinking[family], ...more };
};

interface Shown {
  readonly choices: readonly {
    readonly message: { content: string; reasoning_content?: string };
    readonly delta: { content?: string; reasoning_content?: string };
    readonly logprobs: { content: readonly { token: string }[] } | null;
    readonly finish_reason: string | null;
  }[];
  readonly usage: { completion_tokens: number; completion_tokens_details: { reasoning_tokens: number } };
  readonly error?: { readonly param: string; readonly code: string };
}
const json = async (response: Response | Promise<Response>) => (await (await response).json()) as Shown;
const framesOf = async (response: Response | Promise<Response>): Promise<readonly Record<string, never>[]> =>
  (await (await response).text())
    .split("\n")
    .filter((line) => line.startsWith("data: {"))
    .map((line) => JSON.parse(line.slice(6)) as Record<string, never>);

describe.each(reasoningFamilies)("%s", (family) => {
  test("chat: whole and streamed, each part in its own field, with its tokens counted", async () => {
    const { app } = rigOf(family);
    const whole = await json(post(app, bodyOf(family, { logprobs: true, n: 2 })));
    for (const { message, finish_reason: reason, logprobs } of whole.choices) {
      expect([message.reasoning_content, message.content, reason]).toEqual([thought, said, "stop"]);
      expect(logprobs?.content.map(({ token }) => token).join("")).toContain(said);
      expect(logprobs?.content.map(({ token }) => token).join("")).not.toContain("Yes.");
    }
    const { completion_tokens: tokens, completion_tokens_details: details } = whole.usage;
    expect(details.reasoning_tokens).toBeGreaterThan(2 * 10);
    expect(tokens - details.reasoning_tokens).toBeGreaterThanOrEqual(2 * 3);
    const chunks = (await framesOf(post(app, bodyOf(family, { stream: true })))) as unknown as readonly Shown[];
    const deltas = chunks.flatMap(({ choices }) => choices.map(({ delta }) => delta));
    expect(deltas.map((delta) => delta.reasoning_content ?? "").join("")).toBe(thought);
    expect(deltas.map((delta) => delta.content ?? "").join("")).toBe(said);
    expect(deltas.some((delta) => delta.content !== undefined && delta.reasoning_content !== undefined)).toBe(false);
  });

  test("messages and responses: blocks and items of thinking before those of the answer", async () => {
    if (family === "granite") return;
    const { app } = rigOf(family);
    const path = "/v1/messages";
    const body = { model: "fake-model", messages, max_tokens: 400 };
    const message = (await json(post(app, body, { path }))) as unknown as { content: readonly object[] };
    expect(message.content).toMatchObject([
      { type: "thinking", thinking: thought, signature: expect.stringMatching(/^.{40,}$/) },
      { type: "text", text: said },
    ]);
    const events = await framesOf(post(app, { ...body, stream: true }, { path }));
    const starts = events.filter(({ type }) => type === "content_block_start").map((event) => event.content_block);
    expect(starts).toMatchObject([
      { type: "thinking", thinking: "" },
      { type: "text", text: "" },
    ]);
    const deltas = events.flatMap(({ type, delta }) =>
      type === "content_block_delta" ? [delta as Record<string, string>] : [],
    );
    expect(deltas.map(({ thinking = "" }) => thinking).join("")).toBe(thought);
    expect(deltas.map(({ text = "" }) => text).join("")).toBe(said);
    expect(deltas.filter(({ signature }) => signature !== undefined)).toHaveLength(1);

    const asked = { model: "fake-model", input: "the thing", max_output_tokens: 400 };
    const response = (await json(post(app, asked, { path: "/v1/responses" }))) as unknown as {
      readonly id: string;
      readonly output: readonly object[];
      readonly usage: { readonly output_tokens_details: { readonly reasoning_tokens: number } };
    };
    expect(response.output).toMatchObject([
      { type: "reasoning", summary: [], content: [{ type: "reasoning_text", text: thought }] },
      { type: "message", content: [{ text: said }] },
    ]);
    expect(response.usage.output_tokens_details.reasoning_tokens).toBeGreaterThan(5);
    const told = (await framesOf(
      post(app, { ...asked, stream: true }, { path: "/v1/responses" }),
    )) as unknown as readonly {
      readonly type: string;
      readonly output_index?: number;
      readonly delta?: string;
      readonly item?: { readonly type: string };
    }[];
    const of = (type: string) => told.filter((event) => event.type === `response.${type}`);
    expect(
      of("reasoning_text.delta")
        .map(({ delta }) => delta)
        .join(""),
    ).toBe(thought);
    expect(
      of("output_text.delta")
        .map(({ delta }) => delta)
        .join(""),
    ).toBe(said);
    expect(of("output_item.added").map(({ output_index: at, item }) => [at, item?.type])).toEqual([
      [0, "reasoning"],
      [1, "message"],
    ]);
    expect(told.findIndex(({ type }) => type === "response.reasoning_text.done")).toBeLessThan(
      told.findIndex(({ type }) => type === "response.output_text.delta"),
    );
    // The next turn refers to the kept answer, thinking included.
    const next = { ...asked, input: "more", previous_response_id: response.id };
    expect((await post(app, next, { path: "/v1/responses" })).status).toBe(200);
  });
});

describe("wishes", () => {
  const promptOf = async (family: ReasoningFamily, fields: object, path?: string) => {
    const rig = rigOf(family);
    const body = path === undefined ? { model: "fake-model", messages, max_tokens: 9, ...fields } : fields;
    const response = await post(rig.app, body, path === undefined ? {} : { path });
    const [submit] = rig.submits();
    const tokens = submit?.plan.runs.flatMap((run) => [...run.tokenIds]) ?? [];
    const text = tokens.map((id) => rig.text.tokenBytes.describe(id).token).join("");
    const ignored = response.headers.get("x-spangate-ignored");
    return { status: response.status, ignored, text, limit: submit?.params.thinking };
  };
  const off = "<think>\n\n</think>";

  test.each<[object]>([
    [{ enable_thinking: false }],
    [{ thinking: { type: "disabled" } }],
    [{ thinking: false }],
    [{ reasoning_effort: "none" }],
    [{ reasoning: { effort: "none" } }],
    [{ reasoning: { enabled: false } }],
    [{ chat_template_kwargs: { enable_thinking: false }, reasoning_effort: "high" }],
  ])("%p switches Qwen3's thinking off", async (fields) => {
    expect(await promptOf("qwen3", fields)).toMatchObject({ status: 200, ignored: null });
    expect((await promptOf("qwen3", fields)).text).toContain(off);
    expect((await promptOf("qwen3", { reasoning_effort: "high" })).text).not.toContain(off);
  });

  test("reach gpt-oss as a level, and models without a switch are named", async () => {
    expect((await promptOf("gptOss", { reasoning_effort: "xhigh" })).text).toContain("Reasoning: high");
    expect((await promptOf("gptOss", { reasoning: { effort: "minimal" } })).text).toContain("Reasoning: low");
    const asked = { model: "fake-model", input: "x", max_output_tokens: 9, reasoning: { effort: "low" } };
    expect((await promptOf("gptOss", asked, "/v1/responses")).text).toContain("Reasoning: low");
    const none = await promptOf("gptOss", { reasoning_effort: "none", thinking: { type: "disabled" } });
    expect(none).toMatchObject({ status: 200, ignored: "thinking, reasoning_effort" });
    expect(await promptOf("r1", { enable_thinking: false })).toMatchObject({ ignored: "enable_thinking" });
    const message = { model: "fake-model", messages, max_tokens: 9, thinking: { type: "disabled" } };
    expect((await promptOf("qwen3", message, "/v1/messages")).text).toContain(off);
  });

  test("a budget is bytes of the marks and the tokens of the end, and stands under max_tokens", async () => {
    for (const fields of [
      { thinking: { type: "enabled", budget_tokens: 5 } },
      { thinking_budget: 5 },
      { thinking_token_budget: 5 },
      { reasoning: { max_tokens: 5 } },
    ]) {
      const { limit, ignored } = await promptOf("qwen3", fields);
      expect([limit?.maxTokens, limit?.opener.length, limit?.closer.length, ignored]).toEqual([5, 1, 1, null]);
      expect((await promptOf("r1", fields)).limit?.opener.length).toBe(0);
    }
    expect((await promptOf("qwen3", { thinking_budget: 5, enable_thinking: false })).limit).toBeUndefined();
    const body = { model: "fake-model", messages, max_tokens: 9, thinking: { type: "enabled", budget_tokens: 9 } };
    const refused = await json(post(rigOf("qwen3").app, body, { path: "/v1/messages" }));
    expect((refused.error as { param?: string } | undefined)?.param ?? JSON.stringify(refused)).toContain(
      "budget_tokens",
    );
    const plain = await post(chatRig().app, { model: "fake-model", messages, max_tokens: 2, thinking_budget: 5 });
    expect([plain.status, plain.headers.get("x-spangate-ignored")]).toEqual([200, "thinking_budget"]);
  });

  test.each<[string, object, string]>([
    ["an unknown effort", { reasoning_effort: "extreme" }, "reasoning_effort"],
    ["a budget below nothing", { thinking_budget: -1 }, "thinking_budget"],
    ["a budget beyond every model", { thinking_budget: 1e9 }, "thinking_budget"],
    ["an unknown switch", { thinking: { type: "perhaps" } }, "thinking"],
    ["an object", { chat_template_kwargs: { model_identity: { "{{": 1 } } }, "chat_template_kwargs.model_identity"],
    ["words", { chat_template_kwargs: { model_identity: "{{ x }}" } }, "chat_template_kwargs.model_identity"],
    [
      "a megabyte",
      { chat_template_kwargs: { model_identity: "x".repeat(2 ** 20) } },
      "chat_template_kwargs.model_identity",
    ],
  ])("%s is refused by name", async (_what, fields, param) => {
    const rig = rigOf("gptOss");
    const response = await post(rig.app, { model: "fake-model", messages, max_tokens: 2, ...fields });
    const shown = (await response.json()) as Shown;
    expect([response.status, shown.error?.param.startsWith(param)]).toEqual([400, true]);
    expect(rig.submits()).toEqual([]);
  });

  test("a text that could be a control token does not reach the prompt", async () => {
    const none = await promptOf("gptOss", { chat_template_kwargs: { reasoning_effort: "<|end|>" } });
    expect(none).toMatchObject({ status: 200, ignored: "chat_template_kwargs.reasoning_effort" });
    expect(none.text).toContain("Reasoning: medium");
  });

  test("an answer that was begun goes on as an answer, and earlier thinking is shown where the template shows it", async () => {
    const begun = [...messages, { role: "assistant", content: "It is" }];
    const { app } = rigOf("r1", " Oslo.");
    const goesOn = { messages: begun, continue_final_message: true, add_generation_prompt: false };
    const shown = await json(post(app, bodyOf("r1", goesOn)));
    expect(shown.choices[0]?.message).toMatchObject({ content: " Oslo." });
    const call = { id: "call_1", type: "function", function: { name: "look", arguments: "{}" } };
    const earlier = [
      ...messages,
      { role: "assistant", content: null, reasoning_content: "I must <|im_end|> look.", tool_calls: [call] },
      { role: "tool", tool_call_id: "call_1", content: "found" },
    ];
    const prompt = await promptOf("qwen3", { messages: earlier });
    expect(prompt.text).toContain("<think>\nI must <|im_end|> look.\n</think>\n\n<tool_call>");
    expect(prompt.ignored).toBeNull();
  });
});
