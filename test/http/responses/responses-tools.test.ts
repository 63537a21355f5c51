import { describe, expect, test } from "bun:test";
import type { ModelText } from "../../../gateway/text/model-text.ts";
import { toolModels } from "../../text/tool-models.ts";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const schema = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
const tool = (fields: object = {}) => ({
  type: "function",
  name: "get_weather",
  parameters: schema,
  strict: null,
  ...fields,
});
const clock = tool({ name: "clock", parameters: null });
const search = { type: "file_search", vector_store_ids: ["vs_1"] };
const asked = { model: "fake-model", max_output_tokens: 200, input: "How is Oslo?", tools: [tool(), clock] };
const made = (city: string) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}"}}\n</tool_call>`;
const rig = (answer: string, model: ModelText = toolModels.qwen) => chatRig({ model, answer: () => answer });

type Item = Record<string, unknown> & { type: string; id: string; call_id: string; status: string };
interface Answer {
  readonly id: string;
  readonly status: string;
  readonly output: readonly Item[];
  readonly tools: readonly object[];
  readonly error?: { param: string };
}
const path = "/v1/responses";
const read = async (app: ChatRig["app"], body: object) => (await (await post(app, body, { path })).json()) as Answer;

type Event = { type: string; sequence_number: number; output_index?: number; item_id?: string; item?: Item } & {
  response?: Answer;
  delta?: string;
  arguments?: string;
  text?: string;
};
async function eventsOf(app: ChatRig["app"], body: object): Promise<Event[]> {
  const frames = (await (await post(app, { ...body, stream: true }, { path })).text()).split("\n\n");
  return frames.filter((frame) => frame !== "").map((frame) => JSON.parse(frame.slice(frame.indexOf("data: ") + 6)));
}

describe("an answer that calls functions", () => {
  test("has an item for each call, and a message where there is a text", async () => {
    const both = await read(rig(`I look.\n${made("Oslo")}\n${made("Rome")}`).app, asked);
    expect(both).toMatchObject({
      status: "completed",
      tools: [
        { type: "function", name: "get_weather", parameters: schema, strict: false, description: null },
        { type: "function", name: "clock", parameters: null },
      ],
      output: [
        { type: "message", content: [{ text: "I look." }] },
        { type: "function_call", status: "completed", name: "get_weather", arguments: '{"city": "Oslo"}' },
        { type: "function_call", status: "completed", name: "get_weather", arguments: '{"city": "Rome"}' },
      ],
    });
    for (const { id, call_id: callId } of both.output.slice(1)) {
      expect([id, callId]).toEqual([
        expect.stringMatching(/^fc_[a-z0-9]+_\d$/),
        expect.stringMatching(/^call_[0-9a-f]{24}$/),
      ]);
    }
    expect(new Set(both.output.map(({ id }) => id)).size).toBe(3);
    expect((await read(rig(made("Oslo")).app, asked)).output.map(({ type }) => type)).toEqual(["function_call"]);
    expect((await read(rig("Grey.").app, asked)).output.map(({ type }) => type)).toEqual(["message"]);
    const cut = await read(rig(made("Oslo")).app, { ...asked, max_output_tokens: 45 });
    expect([cut.status, cut.output[0]?.status]).toEqual(["incomplete", "incomplete"]);
  });

  test.each([
    ["a text and two calls", `I look.\n${made("Oslo")}\n${made("Rome")}`],
    ["a call alone", made("Oslo")],
    ["a text behind a call", `${made("Oslo")} Done.`],
    ["a text alone", "Grey."],
  ])("comes in events that tell the same: %s", async (_name, answer) => {
    const { app } = rig(answer);
    for (const tools of [asked.tools, [search, ...asked.tools]]) {
      const events = await eventsOf(app, { ...asked, tools });
      expect(events.map((event) => event.sequence_number)).toEqual([...events.keys()]);
      const output = events.at(-1)?.response?.output ?? [];
      expect(events.at(-1)?.type).toBe("response.completed");
      for (const [index, item] of output.entries()) {
        const own = events.filter((event) => event.output_index === index);
        expect([own[0]?.type, own[0]?.item?.id]).toEqual(["response.output_item.added", item.id]);
        expect(own.at(-1)).toMatchObject({
          type: "response.output_item.done",
          item,
        });
        const deltas = own.map((event) => event.delta ?? "").join("");
        if (item.type === "function_call") {
          expect(own[0]?.item).toMatchObject({ arguments: "", status: "in_progress", call_id: item.call_id });
          expect(deltas).toBe(String(item.arguments));
          const done = own.find(({ type }) => type === "response.function_call_arguments.done");
          expect(done).toMatchObject({ arguments: item.arguments, item_id: item.id, name: item.name });
        }
        if (item.type === "message") expect(item).toMatchObject({ content: [{ text: deltas }] });
      }
      expect(new Set(events.flatMap((event) => event.output_index ?? [])).size).toBe(output.length);
    }
  });
});

test("what may be called is what the choice says, and so is what is searched", async () => {
  const cases = [
    [{}, false, 0],
    [{ tool_choice: "required" }, true, 0],
    [{ tool_choice: { type: "function", name: "clock" } }, true, 0],
    [{ tool_choice: "none" }, false, 0],
    [{ parallel_tool_calls: false }, true, 0],
    [{ tools: [tool({ strict: true })] }, true, 0],
    [{ tools: [tool(), search] }, false, 1],
    [{ tools: [tool(), search], tool_choice: "required" }, false, 1],
    [{ tools: [tool(), search], tool_choice: { type: "file_search" } }, false, 1],
    [{ tools: [tool(), search], tool_choice: { type: "function", name: "get_weather" } }, true, 0],
    [
      {
        tools: [tool(), search],
        tool_choice: { type: "allowed_tools", mode: "required", tools: [{ type: "function", name: "get_weather" }] },
      },
      true,
      0,
    ],
    [{ tools: [tool(), search], tool_choice: "none" }, false, 0],
  ] as const;
  for (const [fields, isForced, searchCount] of cases) {
    const { app, submits, queries } = rig("x");
    expect((await post(app, { ...asked, ...fields }, { path })).status).toBe(200);
    const [submit] = submits();
    expect([fields, submit?.params.grammar !== undefined, queries.length]).toEqual([fields, isForced, searchCount]);
  }
});

describe("a conversation with outputs", () => {
  const call = (fields: object = {}) => ({
    type: "function_call",
    call_id: "call_1",
    name: "clock",
    arguments: "{}",
    ...fields,
  });
  const output = (fields: object = {}) => ({
    type: "function_call_output",
    call_id: "call_1",
    output: "noon",
    ...fields,
  });
  const said = (...items: object[]) => ({ ...asked, input: [{ role: "user", content: "How is Oslo?" }, ...items] });

  test("goes on from the response that called, from its items, and from their ids", async () => {
    for (const model of Object.values(toolModels)) {
      const { app } = rig(made("Oslo"), toolModels.qwen);
      const first = await read(app, asked);
      const [made1] = first.output;
      const result = output({ call_id: made1?.call_id, output: [{ type: "input_text", text: "grey" }] });
      const after = await read(app, { ...asked, previous_response_id: first.id, input: [result] });
      expect(after.status).toBe("completed");
      const listed = await app.request(`${path}/${after.id}/input_items?order=asc`, {
        headers: { authorization: "Bearer key-a" },
      });
      const { data } = (await listed.json()) as { data: Item[] };
      expect(data.map(({ type }) => type)).toEqual(["message", "function_call", "function_call_output"]);
      expect(new Set([...data, ...after.output].map(({ id }) => id)).size).toBe(4);
      const byId = said({ type: "item_reference", id: made1?.id }, result);
      expect((await read(app, byId)).status).toBe("completed");
      expect((await read(rig("x", model).app, said(...first.output, result))).status).toBe("completed");
    }
  });

  test("shows each turn as the template writes it", async () => {
    const { app, submits, text } = rig("x");
    await read(
      app,
      said(
        call({ call_id: "a" }),
        call({ call_id: "b", arguments: '{"x": 1}' }),
        output({ call_id: "b" }),
        output({ call_id: "a", output: "late" }),
      ),
    );
    const ids = submits()[0]?.plan.runs.flatMap((run) => [...run.tokenIds]) ?? [];
    const words = new TextDecoder().decode(Uint8Array.from(ids.flatMap((id) => [...text.tokenBytes.of(id)])));
    expect(words).toContain('</tool_call>\n<tool_call>\n{"name": "clock", "arguments": {"x": 1}}\n</tool_call>');
    expect(words).toContain("<tool_response>\nnoon\n</tool_response>\n<tool_response>\nlate\n</tool_response>");
  });

  test.each([
    ["a call without an output", said(call()), "input[1]"],
    ["a call before another message", said(call(), { role: "user", content: "x" }), "input[1]"],
    ["an output of nothing", said(output()), "input[1].call_id"],
    ["a second output", said(call(), output(), output()), "input[3].call_id"],
    ["an id twice", said(call(), call(), output()), "input[2].call_id"],
    ["arguments that are none", said(call({ arguments: "[" }), output()), "input[1].arguments"],
    ["a picture", said(call(), output({ output: [{ type: "input_image" }] })), "input[2].output[0].type"],
    ["a name twice", { ...asked, tools: [search, tool(), tool()] }, "tools[2].name"],
    ["a tool of the server's that is not here", { ...asked, tools: [{ type: "web_search" }] }, "tools[0].type"],
    [
      "a schema of no object",
      { ...asked, tools: [tool({ parameters: { type: "array" } })] },
      "tools[0].parameters.type",
    ],
    ["a choice of no function", { ...asked, tool_choice: { type: "function", name: "x" } }, "tool_choice.name"],
    ["a choice without a search", { ...asked, tool_choice: { type: "file_search" } }, "tool_choice"],
    [
      "a schema that cannot be kept",
      { ...asked, tools: [search, tool({ strict: true, parameters: { ...schema, minProperties: 1 } })] },
      "tools[1].parameters.minProperties",
    ],
    [
      "a store of nobody, behind a function",
      { ...asked, tools: [clock, { ...search, vector_store_ids: ["vs_2"] }] },
      "tools[1].vector_store_ids",
    ],
  ])("%s is refused with its path", async (_name, body, param) => {
    const { app, submits } = rig("x");
    const response = await post(app, body, { path });
    const { error } = (await response.json()) as Answer;
    expect([response.status < 500, error?.param]).toEqual([true, param]);
    expect(submits()).toEqual([]);
  });

  test("an earlier response whose call has no output yet is named", async () => {
    const { app } = rig(made("Oslo"));
    const first = await read(app, asked);
    const { error } = await read(app, { ...asked, previous_response_id: first.id, input: "And now?" });
    expect(error?.param).toBe("previous_response_id");
  });
});
