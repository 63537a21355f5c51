import { describe, expect, test } from "bun:test";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";

const question = { model: "fake-model", max_tokens: 4, messages: [{ role: "user", content: "the thing" }] };
const send = (app: ChatRig["app"], body: unknown, headers: Record<string, string> = {}) =>
  post(app, body, { path: "/v1/messages", headers });
const documentBlock = (data: string, fields: object = {}) => {
  return { type: "document", source: { type: "text", media_type: "text/plain", data }, ...fields };
};
const text = (content: string, fields: object = {}) => ({ type: "text", text: content, ...fields });

interface Message {
  content: { type: string; text: string }[];
  stop_reason: string;
  stop_sequence: string | null;
  usage: Record<string, number> & { cache_creation: Record<string, number> };
  spangate: { spans: { id: string; tokens: number; source: string }[] };
}
const read = async (response: Response | Promise<Response>) => (await (await response).json()) as Message;

interface StreamEvent {
  readonly event: string;
  readonly data: Record<string, unknown> & { readonly type: string };
}

async function eventsOf(response: Response): Promise<StreamEvent[]> {
  const frames = (await response.text()).split("\n\n").filter((frame) => frame !== "");
  return frames.map((frame) => {
    const [event = "", data = ""] = frame.split("\n");
    return { event: event.replace("event: ", ""), data: JSON.parse(data.replace("data: ", "")) };
  });
}

describe("a message", () => {
  test("has the text, the reason of its end, and usage that adds up", async () => {
    const { app } = chatRig();
    const content = [documentBlock("in the row"), text("the thing")];
    const body = { ...question, messages: [{ role: "user", content }] };
    const first = await read(send(app, body));
    expect(first).toMatchObject({
      type: "message",
      role: "assistant",
      model: "fake-model",
      content: [{ type: "text", text: "user\nth" }],
      stop_reason: "max_tokens",
      stop_sequence: null,
    });
    expect(first.usage).toMatchObject({ output_tokens: 4, cache_read_input_tokens: 0 });
    const second = await read(send(app, body));
    const span = second.spangate.spans[0]?.tokens ?? 0;
    expect(second.usage.cache_read_input_tokens).toBe(span);
    const sum = ({ usage }: Message): number =>
      (usage.input_tokens ?? 0) + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0);
    expect(sum(second)).toBe(sum(first));
    const counted = await post(
      app,
      { model: body.model, messages: body.messages },
      { path: "/v1/messages/count_tokens" },
    );
    expect(await counted.json()).toEqual({ input_tokens: sum(first) });
  });

  test("a stop sequence is named", async () => {
    const { app } = chatRig();
    const message = await read(send(app, { ...question, max_tokens: 1_000, stop_sequences: ["nothing", "thing"] }));
    expect(message).toMatchObject({ stop_reason: "stop_sequence", stop_sequence: "thing" });
    expect(message.content).toEqual([{ type: "text", text: "user\nthe ", citations: null }] as never);
  });

  test("every sampling field reaches the worker", async () => {
    const { app, submits } = chatRig();
    const spangate = { reuse: false };
    await send(app, { ...question, temperature: 0.5, top_p: 0.9, top_k: 40, spangate });
    expect(submits()[0]).toMatchObject({
      reuse: false,
      params: { maxTokens: 4, sampling: { temperature: 0.5, topP: 0.9, topK: 40 } },
    });
  });

  test("what is written counts under the ttl that was asked for", async () => {
    const { app } = chatRig();
    const asked = async (control: object | undefined) => {
      const content = [
        documentBlock(`row ${JSON.stringify(control)} ${"word ".repeat(20)}`),
        text("x", { cache_control: control }),
      ];
      return (await read(send(app, { ...question, messages: [{ role: "user", content }] }))).usage;
    };
    const [none, short, long] = [
      await asked(undefined),
      await asked({ type: "ephemeral" }),
      await asked({ type: "ephemeral", ttl: "1h" }),
    ];
    expect(long.cache_creation_input_tokens).toBeGreaterThan(0);
    expect(long.cache_creation).toEqual({
      ephemeral_5m_input_tokens: 0,
      ephemeral_1h_input_tokens: long.cache_creation_input_tokens as number,
    });
    for (const usage of [none, short]) {
      expect(usage.cache_creation.ephemeral_5m_input_tokens).toBe(usage.cache_creation_input_tokens as number);
    }
  });
});

describe("what a request becomes", () => {
  const plans = async (...bodies: readonly [path: string, body: object][]) => {
    const { app, submits } = chatRig();
    for (const [path, body] of bodies) expect((await post(app, body, { path })).status).toBe(200);
    return submits().map((submit) => submit.plan.runs.map((run) => run.blockKeys.join(" ")));
  };

  test("the same prompt as chat's: system, documents, turns", async () => {
    const search = {
      type: "search_result",
      source: "http://a.example/b",
      title: "T",
      content: [text("one"), text("two")],
    };
    const [message, chat] = await plans(
      [
        "/v1/messages",
        {
          ...question,
          system: [text("Be brief."), text("Be kind.", { cache_control: { type: "ephemeral" } })],
          messages: [
            { role: "user", content: [documentBlock("in the row", { title: "A\n title", context: "Of 1999." })] },
            { role: "user", content: [text("the"), search, text("thing", { citations: null })] },
            { role: "assistant", content: [text("yes", { citations: null })] },
            { role: "user", content: "more" },
          ],
        },
      ],
      [
        "/v1/chat/completions",
        {
          ...question,
          messages: [
            { role: "system", content: "Be brief.\nBe kind." },
            { role: "user", content: "the\nthing" },
            { role: "assistant", content: "yes" },
            { role: "user", content: "more" },
          ],
          documents: [
            { title: "A title", text: "Context: Of 1999.\nin the row" },
            { title: "T", text: "Source: http://a.example/b\none\ntwo" },
          ],
        },
      ],
    );
    expect(message).toEqual(chat);
    expect(message).toHaveLength(4);
  });

  test("a document in blocks is its blocks' text", async () => {
    const whole = { ...question, messages: [{ role: "user", content: [documentBlock("a\nb"), text("x")] }] };
    const source = { type: "content", content: [text("a"), text("b")] };
    const parts = { ...question, messages: [{ role: "user", content: [{ type: "document", source }, text("x")] }] };
    const [one, two] = await plans(["/v1/messages", whole], ["/v1/messages", parts]);
    expect(one).toEqual(two);
  });

  test("file_search works as it does for chat", async () => {
    const { app, queries } = chatRig();
    const message = await read(send(app, { ...question, file_search: { vector_store_ids: ["vs_1"] } }));
    expect(queries).toEqual(["the thing"]);
    expect(message.spangate.spans.map((span) => span.id)).toEqual(["frag_1", "frag_2"]);
  });
});

describe("a stream", () => {
  test("has the events in their order, and the usage of the whole answer", async () => {
    const { app } = chatRig();
    const whole = await read(send(app, question));
    const streamed = await send(chatRig().app, { ...question, stream: true });
    expect(streamed.headers.get("content-type")).toStartWith("text/event-stream");
    const events = await eventsOf(streamed);
    for (const { event, data } of events) expect(data.type).toBe(event);
    const kinds = events.map(({ event }) => event);
    expect(kinds.slice(0, 3)).toEqual(["message_start", "content_block_start", "ping"]);
    expect(kinds.slice(-3)).toEqual(["content_block_stop", "message_delta", "message_stop"]);
    const deltas = events.slice(3, -3);
    expect(new Set(deltas.map(({ event }) => event))).toEqual(new Set(["content_block_delta"]));
    const texts = deltas.map(({ data }) => (data.delta as { text: string }).text);
    expect(texts.join("")).toBe(whole.content[0]?.text ?? "");
    const last = events.at(-2)?.data;
    expect(last).toMatchObject({ delta: { stop_reason: "max_tokens", stop_sequence: null } });
    const { input_tokens, output_tokens, cache_read_input_tokens, cache_creation_input_tokens } = whole.usage;
    expect(last?.usage).toMatchObject({
      input_tokens,
      output_tokens,
      cache_read_input_tokens,
      cache_creation_input_tokens,
    });
    const start = events[0]?.data.message as Message;
    expect(start).toMatchObject({ content: [], stop_reason: null, usage: { output_tokens: 0 } });
    expect(start.usage.input_tokens).toBe((input_tokens ?? 0) + (cache_creation_input_tokens ?? 0));
  });

  test("a worker that is lost ends it with an error event, and nothing after", async () => {
    const { app, processes } = chatRig({ ticking: false });
    const response = send(app, { ...question, max_tokens: 6, stream: true });
    while ((processes[0]?.core.runningCount ?? 0) === 0) await Bun.sleep(0);
    for (let tick = 0; tick < 4; tick++) processes[0]?.core.tick();
    const stream = await response;
    processes[0]?.die();
    const events = await eventsOf(stream);
    expect(events.at(-1)).toMatchObject({
      event: "error",
      data: { type: "error", error: { type: "api_error", details: { error_code: "worker_lost" } } },
    });
    expect(events.map(({ event }) => event)).not.toContain("message_stop");
  });
});

describe("a format", () => {
  const schema = { type: "object", properties: { a: { enum: ["yes", "no"] } }, required: ["a"] };

  test("is a grammar for the worker, whole and streamed, and changes nothing of the prompt", async () => {
    const { app, submits } = chatRig();
    await read(send(app, question));
    for (const stream of [false, true]) {
      const body = { ...question, stream, output_config: { format: { type: "json_schema", schema }, effort: null } };
      const response = await send(app, body);
      expect(response.status).toBe(200);
      await response.text();
    }
    const [plain, whole, streamed] = submits();
    expect([plain?.params.grammar, whole?.params.grammar === undefined]).toEqual([undefined, false]);
    expect(streamed?.params.grammar).toEqual(whole?.params.grammar as never);
    expect(whole?.plan.runs.map(({ blockKeys }) => blockKeys)).toEqual(
      plain?.plan.runs.map(({ blockKeys }) => blockKeys) as never,
    );
    const { model, messages } = question;
    const counted = { model, messages, output_config: { format: { type: "json_schema", schema } } };
    expect((await post(app, counted, { path: "/v1/messages/count_tokens" })).status).toBe(200);
  });

  test("null is as if nothing were said, also of what is not supported", async () => {
    const unset = { container: null, inference_geo: null, speed: null, thinking: null, output_config: null };
    expect((await send(chatRig().app, { ...question, ...unset })).status).toBe(200);
  });
});
