import { describe, expect, test } from "bun:test";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const question = { model: "fake-model", max_output_tokens: 4, input: "the thing" };
const path = "/v1/responses";
const search = { type: "file_search", vector_store_ids: ["vs_1"] };

interface OutputText {
  text: string;
  annotations: { type: string; file_id: string; filename: string; index: number }[];
}
interface ResponseAnswer {
  id: string;
  status: string;
  output: { type: string; id: string; queries?: string[]; results?: unknown; content?: OutputText[] }[];
  usage: Record<string, unknown>;
}
const send = async (app: ChatRig["app"], body: object, key = "key-a"): Promise<ResponseAnswer> => {
  const response = await post(app, body, { path, key });
  expect(response.status).toBe(200);
  return (await response.json()) as ResponseAnswer;
};
const get = (app: ChatRig["app"], rest: string, { key = "key-a", method = "GET" } = {}) =>
  app.request(`${path}/${rest}`, { method, headers: { authorization: `Bearer ${key}` } });
const errorOf = async (response: Response) => {
  const { error } = (await response.json()) as { error: { code: string; param: string | null; message: string } };
  return { status: response.status, code: error.code, param: error.param };
};

interface StreamEvent {
  readonly event: string;
  readonly data: Record<string, unknown> & { readonly type: string; readonly sequence_number: number };
}
async function eventsOf(response: Response): Promise<StreamEvent[]> {
  const frames = (await response.text()).split("\n\n").filter((frame) => frame !== "");
  return frames.map((frame) => {
    const [event = "", data = ""] = frame.split("\n");
    return { event: event.replace("event: ", ""), data: JSON.parse(data.replace("data: ", "")) };
  });
}

describe("a response", () => {
  test("has its text, its end and usage", async () => {
    const { app } = chatRig();
    const answer = await send(app, question);
    expect(answer).toMatchObject({
      object: "response",
      model: "fake-model",
      status: "incomplete",
      incomplete_details: { reason: "max_output_tokens" },
      error: null,
      store: true,
      output: [{ type: "message", role: "assistant", content: [{ type: "output_text", text: "user\nth" }] }],
      usage: { output_tokens: 4, input_tokens_details: { cached_tokens: 0 } },
    });
    const stopped = await send(app, { ...question, max_output_tokens: 1_000, stop: "thing" });
    expect(stopped).toMatchObject({ status: "completed", incomplete_details: null });
  });

  test("the same prompt as chat's: instructions, turns, documents", async () => {
    const { app, submits } = chatRig();
    const documents = [{ title: "T", text: "in the row" }];
    const input = [
      { role: "developer", content: "Be kind." },
      { type: "message", role: "user", content: [{ type: "input_text", text: "the thing" }] },
      { type: "file_search_call", id: "fs_1", queries: ["x"], status: "completed", results: null },
      {
        type: "message",
        id: "m",
        status: "completed",
        role: "assistant",
        content: [{ type: "output_text", text: "yes", annotations: [] }],
      },
      { role: "user", content: "more" },
    ];
    await send(app, { ...question, instructions: "Be brief.", input, documents, temperature: 0.5, seed: 3 });
    const messages = [
      { role: "system", content: "Be brief." },
      { role: "system", content: "Be kind." },
      { role: "user", content: "the thing" },
      { role: "assistant", content: "yes" },
      { role: "user", content: "more" },
    ];
    await post(app, { model: "fake-model", max_tokens: 4, messages, documents, temperature: 0.5, seed: 3 });
    const [response, chat] = submits();
    expect(response?.plan.runs.map((run) => run.blockKeys)).toEqual(chat?.plan.runs.map((run) => run.blockKeys) ?? []);
    expect(response?.params).toEqual(chat?.params as never);
  });

  test("tells what it was sampled with, the model's own defaults too", async () => {
    const { app } = chatRig({ samplingDefaults: { temperature: 0.6, topP: 0.9 } });
    const shown = await send(app, { ...question, input: "the thing", top_p: 0.5 });
    expect(shown).toMatchObject({ temperature: 0.6, top_p: 0.5 });
  });
});

describe("file_search", () => {
  test("is told as a call, with its results when they are asked for", async () => {
    const { app, queries } = chatRig();
    const answer = await send(app, { ...question, tools: [search] });
    expect(queries).toEqual(["the thing"]);
    expect(answer.output.map(({ type }) => type)).toEqual(["file_search_call", "message"]);
    expect(answer.output[0]).toMatchObject({ status: "completed", queries: ["the thing"], results: null });
    const told = await send(app, { ...question, tools: [search], include: ["file_search_call.results"] });
    expect(told.output[0]?.results).toMatchObject([
      { file_id: "file-1", filename: "people.md", score: 0.9, text: "The manager of Anna is Tom." },
      { file_id: "file-1", score: 0.4 },
    ]);
  });

  test("a choice of none does not search", async () => {
    const { app, queries } = chatRig();
    const answer = await send(app, { ...question, tools: [search], tool_choice: "none" });
    expect(queries).toEqual([]);
    expect(answer.output.map(({ type }) => type)).toEqual(["message"]);
  });
});

describe("a stream", () => {
  test("has typed events in their order, numbered without a gap, and ends with the whole response", async () => {
    const { app } = chatRig();
    const events = await eventsOf(await post(app, { ...question, tools: [search], stream: true }, { path }));
    for (const { event, data } of events) expect(data.type).toBe(event);
    expect(events.map(({ data }) => data.sequence_number)).toEqual(events.map((_, index) => index));
    const kinds = events.map(({ event }) => event.replace("response.", ""));
    const [first, last] = [kinds.indexOf("output_text.delta"), kinds.lastIndexOf("output_text.delta")];
    expect(kinds.slice(0, first)).toEqual([
      ...["created", "in_progress", "output_item.added", "file_search_call.in_progress", "file_search_call.searching"],
      ...["file_search_call.completed", "output_item.done", "output_item.added", "content_part.added"],
    ]);
    expect(new Set(kinds.slice(first, last + 1))).toEqual(new Set(["output_text.delta"]));
    expect(kinds.slice(last + 1)).toEqual(["output_text.done", "content_part.done", "output_item.done", "incomplete"]);
    const deltas = events.filter(({ event }) => event === "response.output_text.delta").map(({ data }) => data.delta);
    const response = events.at(-1)?.data.response as ResponseAnswer;
    expect(deltas.join("")).toBe(response.output[1]?.content?.[0]?.text ?? "");
    // What is told last can be asked for again.
    expect(await (await get(app, response.id)).json()).toEqual(response);
  });

  test("a worker that is lost ends it with an error event, numbered like the others; nothing is stored", async () => {
    const { app, processes } = chatRig({ ticking: false });
    const answer = post(app, { ...question, max_output_tokens: 6, stream: true }, { path });
    while ((processes[0]?.core.runningCount ?? 0) === 0) await Bun.sleep(0);
    for (let tick = 0; tick < 4; tick++) processes[0]?.core.tick();
    const stream = await answer;
    processes[0]?.die();
    const events = await eventsOf(stream);
    expect(events.at(-1)?.data).toMatchObject({
      type: "error",
      code: "worker_lost",
      sequence_number: events.length - 1,
    });
    const begun = events[0]?.data.response as ResponseAnswer;
    expect((await get(app, begun.id)).status).toBe(404);
  });
});

describe("stored responses", () => {
  test("are answered as they were, without the files' text, and deleted for good", async () => {
    const { app } = chatRig();
    const body = { ...question, tools: [search], include: ["file_search_call.results"], metadata: { a: "b" } };
    const answer = await send(app, body);
    const again = (await (await get(app, answer.id)).json()) as ResponseAnswer;
    const [call, message] = answer.output;
    expect(again).toEqual({ ...answer, output: [{ ...call, results: null }, message] } as never);
    expect(await (await get(app, answer.id, { method: "DELETE" })).json()).toEqual({
      id: answer.id,
      object: "response",
      deleted: true,
    });
    expect((await get(app, answer.id)).status).toBe(404);
    expect((await get(app, answer.id, { method: "DELETE" })).status).toBe(404);
  });

  test("another tenant's answer as those that never were", async () => {
    const { app } = chatRig();
    const { id } = await send(app, question);
    const unknown = id.replace(/.{4}$/, "zzzz");
    for (const [method, rest] of [
      ["GET", ""],
      ["DELETE", ""],
      ["GET", "/input_items"],
      ["POST", "/cancel"],
    ] as const) {
      const [theirs, nobodys] = await Promise.all(
        [id, unknown].map(async (name) => {
          const response = await get(app, name + rest, { key: "key-b", method });
          return [response.status, await response.text()];
        }),
      );
      expect(theirs).toEqual(nobodys as never);
      expect(theirs?.[0]).toBe(404);
    }
    const followed = await post(app, { ...question, previous_response_id: id }, { path, key: "key-b" });
    expect(await errorOf(followed)).toEqual({ status: 404, code: "not_found", param: "previous_response_id" });
    expect((await get(app, id)).status).toBe(200);
  });

  test("the newest stay, for a time", async () => {
    const { app, state } = chatRig();
    const ids: string[] = [];
    for (let count = 0; count < 4; count++) ids.push((await send(app, question)).id);
    const other = (await send(app, question, "key-b")).id;
    const found = async () => await Promise.all(ids.map(async (id) => (await get(app, id)).status));
    expect(await found()).toEqual([404, 200, 200, 200]);
    expect((await get(app, other, { key: "key-b" })).status).toBe(200);
    state.nowMs += 60_001;
    expect(await found()).toEqual([404, 404, 404, 404]);
  });

  test("the next one goes on with the conversation, and its input is listed in pages", async () => {
    const { app, submits } = chatRig();
    const first = await send(app, { ...question, instructions: "Be brief.", tools: [search] });
    const next = await send(app, { ...question, input: "more", previous_response_id: first.id });
    const said = first.output[1]?.content?.[0]?.text ?? "";
    await send(app, {
      ...question,
      input: [
        { role: "user", content: "the thing" },
        { role: "assistant", content: said },
        { role: "user", content: "more" },
      ],
    });
    const [, followed, whole] = submits();
    expect(followed?.plan.runs[0]?.blockKeys).toEqual(whole?.plan.runs[0]?.blockKeys ?? []);
    const page = async (query: string) =>
      (await (await get(app, `${next.id}/input_items?${query}`)).json()) as {
        data: { id: string; type: string; content?: { text: string }[] }[];
        has_more: boolean;
        last_id: string;
      };
    const all = await page("order=asc");
    expect(all.data.map(({ type, content }) => content?.[0]?.text ?? type)).toEqual([
      ...["the thing", "file_search_call", said, "more"],
    ]);
    expect(new Set(all.data.map(({ id }) => id)).size).toBe(4);
    const head = await page("limit=3");
    expect(head.has_more).toBe(true);
    const tail = await page(`limit=3&after=${head.last_id}`);
    expect(tail.has_more).toBe(false);
    expect([...head.data, ...tail.data].map(({ id }) => id)).toEqual(all.data.map(({ id }) => id).reverse());
  });

  test("one that has ended cannot be cancelled", async () => {
    const { app } = chatRig();
    const { id } = await send(app, question);
    expect(await errorOf(await get(app, `${id}/cancel`, { method: "POST" }))).toMatchObject({ status: 400 });
  });
});

describe("bad input", () => {
  const rig = chatRig();
  const item = (fields: object) => ({ ...question, input: [fields] });
  test.each<[string, object, string, string]>([
    ["no input", { ...question, input: undefined }, "invalid_value", "input"],
    [
      "an image",
      item({ role: "user", content: [{ type: "input_image" }] }),
      "invalid_value",
      "input[0].content[0].type",
    ],
    ["an item of no kind", item({ type: "computer_call_output", output: "" }), "invalid_value", "input[0].type"],
    ["a role", item({ role: "tool", content: "x" }), "invalid_value", "input[0].role"],
    ["another tool", { ...question, tools: [{ type: "web_search" }] }, "invalid_value", "tools[0].type"],
    ["two searches", { ...question, tools: [search, search] }, "invalid_value", "tools[1]"],
    ["a choice without a tool", { ...question, tool_choice: "required" }, "invalid_value", "tool_choice"],
    [
      "no stores",
      { ...question, tools: [{ ...search, vector_store_ids: [] }] },
      "invalid_value",
      "tools[0].vector_store_ids",
    ],
    [
      "an unknown store",
      { ...question, tools: [{ ...search, vector_store_ids: ["vs_2"] }] },
      "not_found",
      "tools[0].vector_store_ids",
    ],
    ["background", { ...question, background: true }, "invalid_value", "background"],
    ["an item of nobody", item({ type: "item_reference", id: "msg_nobody" }), "not_found", "input[0].id"],
    ["an id that is none", item({ type: "item_reference", id: "nobody" }), "not_found", "input[0].id"],
    ["a conversation", { ...question, conversation: "conv_1" }, "unsupported_field", "conversation"],
    ["a format", { ...question, text: { format: { type: "xml" } } }, "invalid_value", "text.format.type"],
    [
      "a schema",
      { ...question, text: { format: { type: "json_schema", name: "a", schema: { allOf: [] } } } },
      "invalid_value",
      "text.format.schema.allOf",
    ],
    ["too many tokens", { ...question, max_output_tokens: 1_000_000 }, "context_length_exceeded", "max_output_tokens"],
    ["a long prompt", { ...question, input: "amber ".repeat(50_000) }, "context_length_exceeded", "input"],
    ["an id of nothing", { ...question, previous_response_id: "resp_1" }, "not_found", "previous_response_id"],
  ])("%s", async (_name, body, code, param) => {
    expect(await errorOf(await post(rig.app, body, { path }))).toMatchObject({ code, param });
  });

  test("queries of routes", async () => {
    const { id } = await send(rig.app, question);
    const asked = async (rest: string) => await errorOf(await get(rig.app, `${id}${rest}`));
    expect(await asked("?stream=true")).toMatchObject({ status: 400, param: "stream" });
    expect(await asked("/input_items?limit=0")).toMatchObject({ status: 400, param: "limit" });
    expect(await asked("/input_items?after=msg_nobody")).toMatchObject({ status: 404, param: "after" });
  });
});
