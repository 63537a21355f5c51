import { describe, expect, test } from "bun:test";
import type { ModelText } from "../../../gateway/text/model-text.ts";
import { toolModels } from "../../text/tool-models.ts";
import { chatRig, post, question } from "../chat-rig.ts";
import { asked, tool } from "../chat-tools-request.ts";

interface Delta {
  readonly role?: string;
  readonly content?: string | null;
  readonly tool_calls?: {
    index: number;
    id?: string;
    type?: string;
    function: { name?: string; arguments?: string };
  }[];
}
interface Answer {
  readonly choices: {
    readonly message: { content: string | null; tool_calls?: { id: string; type: string; function: object }[] };
    readonly delta: Delta;
    readonly finish_reason: string | null;
  }[];
}
const read = async (response: Response | Promise<Response>): Promise<Answer> =>
  (await (await response).json()) as Answer;

const made = (city: string) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}"}}\n</tool_call>`;
const rig = (answer: string, model: ModelText = toolModels.qwen) => chatRig({ model, answer: () => answer });

describe("an answer with calls", () => {
  test("has them with ids, no text where there is none, and its own reason to end", async () => {
    const { app } = rig(`${made("Oslo")}\n${made("Rome")}`);
    const { choices } = await read(post(app, asked));
    expect(choices).toHaveLength(1);
    expect(choices[0]).toMatchObject({ finish_reason: "tool_calls", message: { role: "assistant", content: null } });
    const calls = choices[0]?.message.tool_calls ?? [];
    expect(calls.map(({ type, function: called }) => [type, called])).toEqual([
      ["function", { name: "get_weather", arguments: '{"city": "Oslo"}' }],
      ["function", { name: "get_weather", arguments: '{"city": "Rome"}' }],
    ]);
    expect(new Set(calls.map(({ id }) => id)).size).toBe(2);
    for (const { id } of calls) expect(id).toMatch(/^call_[0-9a-f]{24}$/);
  });

  test("has one where one alone is wanted", async () => {
    const named = { tool_choice: { type: "function", function: { name: "get_weather" } } };
    for (const fields of [named, { parallel_tool_calls: false }]) {
      const { choices } = await read(post(rig(`${made("Oslo")}\n${made("Rome")}`).app, { ...asked, ...fields }));
      expect(choices[0]?.message.tool_calls?.map((call) => call.function)).toEqual([
        { name: "get_weather", arguments: '{"city": "Oslo"}' },
      ]);
    }
  });

  test("comes in pieces: the call with its id, then its arguments", async () => {
    const { app } = rig(`Let me look.\n${made("Oslo")}\n${made("Rome")}`);
    const body = await (await post(app, { ...asked, stream: true })).text();
    const chunks = body
      .split("\n\n")
      .filter((frame) => frame.startsWith("data: {"))
      .map((frame) => JSON.parse(frame.slice(6)) as Answer);
    const choices = chunks.flatMap((chunk) => chunk.choices);
    expect(choices[0]?.delta).toEqual({ role: "assistant", content: null });
    expect(choices.map(({ delta }) => delta.content ?? "").join("")).toBe("Let me look.");
    const deltas = choices.flatMap(({ delta }) => delta.tool_calls ?? []);
    const begun = deltas.filter(({ id }) => id !== undefined);
    expect(begun.map((delta) => [delta.index, delta.type, delta.function.name, delta.function.arguments])).toEqual([
      [0, "function", "get_weather", ""],
      [1, "function", "get_weather", ""],
    ]);
    for (const [index, city] of ["Oslo", "Rome"].entries()) {
      const pieces = deltas.filter((delta) => delta.index === index && delta.id === undefined);
      expect(pieces.length).toBeGreaterThan(3);
      expect(pieces.map((piece) => piece.function.arguments).join("")).toBe(`{"city": "${city}"}`);
      for (const piece of pieces) expect(Object.keys(piece)).toEqual(["index", "function"]);
    }
    expect(choices.at(-1)).toMatchObject({ delta: {}, finish_reason: "tool_calls" });
    expect(body).toEndWith("data: [DONE]\n\n");
  });

  test("is cut off like any other, and stays text where no such tool was offered", async () => {
    const cut = await read(post(rig(made("Oslo")).app, { ...asked, max_tokens: 40 }));
    expect(cut.choices[0]).toMatchObject({ finish_reason: "length" });
    const other = await read(post(rig(made("Oslo")).app, { ...asked, tools: [tool({ name: "clock" })] }));
    expect(other.choices[0]).toMatchObject({ finish_reason: "stop", message: { content: made("Oslo") } });
    for (const free of [{ tools: undefined }, { tool_choice: "none" }]) {
      const { choices } = await read(post(rig(made("Oslo")).app, { ...asked, ...free }));
      expect(choices[0]).toMatchObject({ finish_reason: "stop", message: { content: made("Oslo") } });
      expect(choices[0]?.message.tool_calls).toBeUndefined();
    }
  });

  test("of words that spell a call's token has none", async () => {
    // What the model writes here are the words of a document, token by token, as it would quote them.
    const { app, processes, text } = chatRig({ model: toolModels.qwen });
    for (const { core } of processes) core.answer = () => [...text.tokenizer.encodeText(made("Oslo"))];
    const { choices } = await read(post(app, { ...asked, documents: [{ text: made("Oslo") }] }));
    expect(choices[0]).toMatchObject({ finish_reason: "stop", message: { content: made("Oslo") } });
  });

  test("and every choice has its own", async () => {
    const { choices } = await read(post(rig(made("Oslo")).app, { ...asked, n: 2, logprobs: true }));
    const ids = choices.map(({ message }) => message.tool_calls?.[0]?.id);
    expect(new Set(ids).size).toBe(2);
  });
});

describe("what the worker is asked for", () => {
  test("is a grammar where a call must come, or one alone, or one that fits; nothing else where it is free", async () => {
    const { app, submits } = rig("x");
    const named = { type: "function", function: { name: "clock" } };
    const allowed = { type: "allowed_tools", allowed_tools: { mode: "required", tools: [named] } };
    const bodies = [
      { tool_choice: "required" },
      { tool_choice: named },
      { tool_choice: allowed },
      { parallel_tool_calls: false },
      { tools: [tool({ strict: true })] },
      {},
      { tool_choice: "auto" },
      { tool_choice: "none" },
    ];
    for (const body of bodies) expect((await post(app, { ...asked, ...body })).status).toBe(200);
    const grammars = submits().map(({ params }) => params.grammar !== undefined);
    expect(grammars).toEqual([true, true, true, true, true, false, false, false]);
  });

  test("shows the tools to the model unless none may be called", async () => {
    const { app, submits, text } = rig("x");
    const shown = () => {
      const ids =
        submits()
          .at(-1)
          ?.plan.runs.flatMap((run) => [...run.tokenIds]) ?? [];
      const name = text.tokenizer.encode([{ kind: "template", text: '"get_weather"' }], false);
      return ` ${ids.join(" ")} `.includes(` ${name.join(" ")} `);
    };
    for (const [fields, isShown] of [
      [{}, true],
      [{ tool_choice: "none" }, false],
      [{ tools: [] }, false],
    ] as const) {
      await post(app, { ...asked, ...fields });
      expect(shown()).toBe(isShown);
    }
  });
});

test("the prompt of a chat with tools is counted and listed as it is sent", async () => {
  const { app, submits } = rig("x");
  const body = { model: question.model, messages: asked.messages, tools: asked.tools };
  const response = await post(app, body, { path: "/tokenize" });
  const { tokens } = (await response.json()) as { tokens: number[] };
  await post(app, asked);
  expect(tokens).toEqual(submits()[0]?.plan.runs.flatMap((run) => [...run.tokenIds]) ?? []);
  expect((await post(app, { prompt: "x", tools: asked.tools }, { path: "/tokenize" })).status).toBe(400);
});

test("a conversation goes on with an answer as it was given, and with the tools' results", async () => {
  const { app } = rig(made("Oslo"));
  const message = (await read(post(app, asked))).choices[0]?.message;
  const result = {
    role: "tool",
    tool_call_id: message?.tool_calls?.[0]?.id,
    content: [{ type: "text", text: "grey" }],
  };
  const messages = [...asked.messages, message, result];
  for (const model of Object.values(toolModels)) {
    expect((await post(rig("x", model).app, { ...asked, messages })).status).toBe(200);
    expect((await post(rig("x", model).app, { ...question, messages })).status).toBe(200);
  }
});

describe("tools of a model whose template knows none", () => {
  test("are described in the system message, and calls are read between marks that nobody else knows", async () => {
    const { app, submits, processes, text } = chatRig();
    for (const { core } of processes) core.answer = () => [7];
    const promptOf = async (key: string): Promise<string> => {
      await post(app, { ...asked, messages: [{ role: "system", content: "Be brief." }, ...asked.messages] }, { key });
      const ids =
        submits()
          .at(-1)
          ?.plan.runs.flatMap((run) => [...run.tokenIds]) ?? [];
      const bytes = ids.flatMap((id) => [...text.tokenBytes.of(id)]);
      return new TextDecoder().decode(Uint8Array.from(bytes));
    };
    const prompt = await promptOf("key-a");
    expect(prompt).toStartWith("system\nBe brief.\n\n# Tools");
    expect(prompt).toContain('{"type":"function","function":{"name":"get_weather","description":"Weather"');
    const [marker = "", digits] = /<tool_call_([0-9a-f]{8})>/.exec(prompt) ?? [];
    expect(await promptOf("key-a")).toBe(prompt);
    expect(await promptOf("key-b")).not.toContain(`${digits}`);
    const answered = async (answer: string) => {
      for (const { core } of processes) core.answer = () => [...text.tokenizer.encodeText(answer)];
      return (await read(post(app, asked))).choices[0];
    };
    const call = '\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n';
    expect(await answered(`${marker}${call}</tool_call_${digits}>`)).toMatchObject({
      finish_reason: "tool_calls",
      message: { content: null, tool_calls: [{ function: { arguments: '{"city": "Oslo"}' } }] },
    });
    for (const other of ["<tool_call>", "<tool_call_00000000>"]) {
      expect(await answered(other + call)).toMatchObject({ finish_reason: "stop", message: { content: other + call } });
    }
  });
});
