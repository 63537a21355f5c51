import { describe, expect, test } from "bun:test";
import type { ModelText } from "../../../gateway/text/model-text.ts";
import { toolModels } from "../../text/tool-models.ts";
import { chatRig, post } from "../chat-rig.ts";

const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = (fields: object = {}) => ({
  name: "get_weather",
  description: "Weather",
  input_schema: schema,
  ...fields,
});
const asked = {
  model: "fake-model",
  max_tokens: 200,
  messages: [{ role: "user", content: "How is Oslo?" }],
  tools: [tool(), tool({ name: "clock", type: "custom", input_schema: { type: "object" } })],
};
const made = (city: string) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}"}}\n</tool_call>`;
const rig = (answer: string, model: ModelText = toolModels.qwen) => chatRig({ model, answer: () => answer });
const send = (app: ReturnType<typeof chatRig>["app"], body: object, path = "/v1/messages") => post(app, body, { path });

type Block = { type: string; id?: string; name?: string; input?: unknown; text?: string; caller?: object };
interface Message {
  readonly content: readonly Block[];
  readonly stop_reason: string;
  readonly error?: { details: { param: string } };
}
const read = async (response: Response | Promise<Response>) => (await (await response).json()) as Message;

type Event = { type: string; index: number; content_block: Block; delta: Record<string, unknown> };
async function eventsOf(response: Response | Promise<Response>): Promise<Event[]> {
  const frames = (await (await response).text()).split("\n\n").filter((frame) => frame !== "");
  return frames.map((frame) => JSON.parse(frame.slice(frame.indexOf("data: ") + 6)));
}

describe("an answer that uses tools", () => {
  test("has a block for each use, and its own reason to stop", async () => {
    const message = await read(send(rig(`I look.\n${made("Oslo")}\n${made("Rome")}`).app, asked));
    expect(message.stop_reason).toBe("tool_use");
    expect(message.content).toMatchObject([
      { type: "text", text: "I look.", citations: null },
      { type: "tool_use", name: "get_weather", input: { city: "Oslo" }, caller: { type: "direct" } },
      { type: "tool_use", name: "get_weather", input: { city: "Rome" } },
    ]);
    for (const { id } of message.content.slice(1)) expect(id).toMatch(/^toolu_[0-9a-f]{24}$/);
    const alone = await read(send(rig(made("Oslo")).app, asked));
    expect(alone.content.map(({ type }) => type)).toEqual(["tool_use"]);
    const free = await read(send(rig("It is grey.").app, asked));
    expect([free.stop_reason, free.content]).toMatchObject(["end_turn", [{ type: "text", text: "It is grey." }]]);
  });

  test("comes in events: blocks one after the other, the input as JSON in pieces", async () => {
    const events = await eventsOf(
      send(rig(`I look.\n${made("Oslo")}\n${made("Rome")} Done.`).app, { ...asked, stream: true }),
    );
    const blocks = events.filter(({ type }) => type.startsWith("content_block"));
    let open = -1;
    for (const { type, index } of blocks) {
      if (type === "content_block_start") expect(index).toBe(++open);
      expect(index).toBe(open);
    }
    const starts = blocks.filter(({ type }) => type === "content_block_start").map((event) => event.content_block);
    expect(starts).toMatchObject([
      { type: "text", text: "" },
      { type: "tool_use", name: "get_weather", input: {} },
      { type: "tool_use", name: "get_weather", input: {} },
      { type: "text", text: "" },
    ]);
    expect(blocks.filter(({ type }) => type === "content_block_stop").map(({ index }) => index)).toEqual([0, 1, 2, 3]);
    for (const [index, city] of [
      [1, "Oslo"],
      [2, "Rome"],
    ] as const) {
      const deltas = blocks.filter((event) => event.index === index && event.type === "content_block_delta");
      expect(deltas.length).toBeGreaterThan(3);
      expect(deltas.every(({ delta }) => delta.type === "input_json_delta")).toBe(true);
      expect(deltas.map(({ delta }) => delta.partial_json).join("")).toBe(`{"city": "${city}"}`);
    }
    expect(events.find(({ type }) => type === "message_delta")?.delta).toMatchObject({ stop_reason: "tool_use" });
  });

  test("has a block of text where it says nothing, and what was cut off without its input", async () => {
    const none = await eventsOf(send(rig("").app, { ...asked, max_tokens: 1, stream: true }));
    expect(none.filter(({ type }) => type.startsWith("content_block_st")).length).toBe(2);
    const cut = await read(send(rig(made("Oslo")).app, { ...asked, max_tokens: 45 }));
    expect([cut.stop_reason, cut.content]).toMatchObject(["max_tokens", [{ type: "tool_use", input: {} }]]);
  });
});

test("what may be called is what the choice says", async () => {
  const { app, submits } = rig("x");
  const choices = [
    { tool_choice: { type: "any" } },
    { tool_choice: { type: "tool", name: "clock" } },
    { tool_choice: { type: "auto", disable_parallel_tool_use: true } },
    { tools: [tool({ strict: true, input_schema: { ...schema, additionalProperties: false } })] },
    { tool_choice: { type: "auto" } },
    { tool_choice: { type: "none" } },
    {},
  ];
  for (const choice of choices) expect((await send(app, { ...asked, ...choice })).status).toBe(200);
  const grammars = submits().map(({ params }) => params.grammar !== undefined);
  expect(grammars).toEqual([true, true, true, true, false, false, false]);
});

describe("a conversation with results", () => {
  const use = (fields: object = {}) => ({
    type: "tool_use",
    id: "toolu_1",
    name: "get_weather",
    input: { city: "Oslo" },
    ...fields,
  });
  const result = (fields: object = {}) => ({ type: "tool_result", tool_use_id: "toolu_1", content: "grey", ...fields });
  const said = (uses: object[], results: object[]) => ({
    ...asked,
    messages: [...asked.messages, { role: "assistant", content: uses }, { role: "user", content: results }],
  });

  test("goes on with what was answered, as it was given", async () => {
    for (const model of Object.values(toolModels)) {
      const { app } = rig(made("Oslo"), model);
      const { content } = await read(send(rig(made("Oslo")).app, asked));
      const body = said([...content], [result({ tool_use_id: content[0]?.id })]);
      expect((await send(app, body)).status).toBe(200);
      expect((await send(app, { ...body, tools: undefined })).status).toBe(200);
      const counted = await send(app, { ...body, max_tokens: undefined }, "/v1/messages/count_tokens");
      expect(await counted.json()).toEqual({ input_tokens: expect.any(Number) });
    }
  });

  test("shows results as the template writes them: errors named, documents among the documents, then what is asked", async () => {
    const { app, submits, text } = rig("x");
    const found = { type: "search_result", source: "s", title: "Facts", content: [{ type: "text", text: "a fact" }] };
    const results = [
      result({
        content: [{ type: "text", text: "broken" }, found],
        is_error: true,
        cache_control: { type: "ephemeral" },
      }),
      { type: "text", text: "And now?" },
    ];
    await send(app, said([{ type: "text", text: "I look." }, use()], results));
    const runs = submits()[0]?.plan.runs ?? [];
    expect(runs.map(({ kind }) => kind)).toEqual(["main", "span", "main"]);
    const words = (tokenIds: Iterable<number> = []) =>
      new TextDecoder().decode(Uint8Array.from([...tokenIds].flatMap((id) => [...text.tokenBytes.of(id)])));
    expect(words(runs[2]?.tokenIds)).toContain(
      'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}',
    );
    expect(words(runs[2]?.tokenIds)).toContain("<tool_response>\nError: broken\nFound: Facts\n</tool_response>");
    expect(words(runs[2]?.tokenIds)).toContain("user\nAnd now?");
    expect(words(runs[1]?.tokenIds)).toContain("a fact");
  });

  test.each([
    ["a use without a result", said([use()], [{ type: "text", text: "x" }]), "messages[1].content[0]"],
    ["a second result", said([use()], [result(), result()]), "messages[2].content[1].tool_use_id"],
    [
      "a result of another",
      said([use()], [result(), result({ tool_use_id: "b" })]),
      "messages[2].content[1].tool_use_id",
    ],
    ["an id twice", said([use(), use()], [result()]), "messages[1].content[1].id"],
    ["an input that is a text", said([use({ input: "x" })], [result()]), "messages[1].content[0].input"],
    [
      "a use by another caller",
      said([use({ caller: { type: "program" } })], [result()]),
      "messages[1].content[0].caller.type",
    ],
    [
      "a picture in a result",
      said([use()], [result({ content: [{ type: "image" }] })]),
      "messages[2].content[0].content[0].type",
    ],
    ["a user's use", { ...asked, messages: [{ role: "user", content: [use()] }] }, "messages[0].content[0].type"],
    ["a name twice", { ...asked, tools: [tool(), tool()] }, "tools[1].name"],
    [
      "a schema of no object",
      { ...asked, tools: [tool({ input_schema: { type: "array" } })] },
      "tools[0].input_schema.type",
    ],
    ["a tool that is loaded later", { ...asked, tools: [tool({ defer_loading: true })] }, "tools[0].defer_loading"],
    ["a choice of no tool", { ...asked, tool_choice: { type: "tool", name: "x" } }, "tool_choice.name"],
    ["a choice without tools", { ...asked, tools: [], tool_choice: { type: "any" } }, "tool_choice"],
    [
      "a schema that cannot be kept",
      { ...asked, tool_choice: { type: "any" }, tools: [tool({ input_schema: { ...schema, minProperties: 1 } })] },
      "tools[0].input_schema.minProperties",
    ],
  ])("%s is refused with its path", async (_name, body, param) => {
    const { app, submits } = rig("x");
    const response = await send(app, body);
    expect([response.status, (await read(response)).error?.details.param]).toEqual([400, param]);
    expect(submits()).toEqual([]);
  });
});
