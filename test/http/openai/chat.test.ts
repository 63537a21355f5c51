import { describe, expect, test } from "bun:test";
import { chatRig, post, question } from "../chat-rig.ts";

interface Answer {
  id: string;
  object: string;
  model: string;
  choices: { index: number; message: { role: string; content: string }; finish_reason: string; logprobs: unknown }[];
  usage: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details: Record<string, number> };
  spangate: {
    request_id: string;
    worker: string;
    spans: { id: string; tokens: number; source: string }[];
    retrieved?: { id: string; score: number }[];
  };
}
const read = async (response: Response | Promise<Response>): Promise<Answer> =>
  (await (await response).json()) as Answer;

describe("an answer", () => {
  test("has the text, usage and what became of each span", async () => {
    const { app } = chatRig();
    const body = { ...question, documents: [{ id: "a", title: "T", text: "in the row" }, { text: "another" }] };
    const response = await post(app, body);
    expect(response.headers.get("x-request-id")).toStartWith("req_");
    const first = await read(response);
    expect(first).toMatchObject({ object: "chat.completion", model: "fake-model" });
    expect(first.choices).toHaveLength(1);
    // The worker echoes the last run, whose first token is <|im_start|>: special tokens have no text.
    expect(first.choices[0]).toMatchObject({
      message: { role: "assistant", content: "user\nth" },
      finish_reason: "length",
    });
    expect(first.spangate.spans.map(({ id, source }) => [id, source])).toEqual([
      ["a", "computed"],
      ["document-1", "computed"],
    ]);
    expect(first.usage.completion_tokens).toBe(4);
    expect(first.usage.prompt_tokens_details).toMatchObject({ cached_tokens: 0 });
    const second = await read(post(app, { ...body, documents: [...body.documents].reverse() }));
    expect(second.spangate.spans.map((span) => span.source)).toEqual(["device", "device"]);
    expect(second.usage.prompt_tokens_details.cached_tokens).toBe(
      second.spangate.spans.reduce((sum, span) => sum + span.tokens, 0),
    );
  });

  test("another tenant, or another cache_salt, finds nothing of it", async () => {
    const { app } = chatRig();
    const body = { ...question, documents: [{ text: "in the row" }] };
    await post(app, body);
    expect((await read(post(app, body))).spangate.spans[0]?.source).toBe("device");
    expect((await read(post(app, body, { key: "key-b" }))).spangate.spans[0]?.source).toBe("computed");
    expect((await read(post(app, { ...body, cache_salt: "mine" }))).spangate.spans[0]?.source).toBe("computed");
  });

  test("n choices draw from their own seeds and share the prompt", async () => {
    const { app, submits } = chatRig();
    const answer = await read(post(app, { ...question, n: 3, seed: 7 }));
    expect(answer.choices.map((choice) => choice.index)).toEqual([0, 1, 2]);
    expect(answer.usage.completion_tokens).toBe(12);
    expect(submits().map((submit) => submit.params.sampling.seed)).toEqual([7, 8, 9]);
  });

  test("what a request leaves open its model's folder decides, and then OpenAI's API", async () => {
    const { app, submits } = chatRig({ samplingDefaults: { temperature: 0.6, topK: 20, repetitionPenalty: 1.05 } });
    await post(app, question);
    await post(app, { ...question, temperature: 0, top_k: -1, top_p: 0.5, min_p: 0.1, repetition_penalty: 1 });
    await post(app, { ...question, temperature: null });
    const open = { temperature: 0.6, topP: 1, topK: 20, minP: 0, repetitionPenalty: 1.05 };
    const [first, asked, nulls] = submits().map(({ params }) => params.sampling);
    expect(first).toMatchObject(open);
    expect(asked).toMatchObject({ temperature: 0, topP: 0.5, topK: 0, minP: 0.1, repetitionPenalty: 1 });
    expect(nulls).toMatchObject(open);
  });

  test("when one of n choices is refused, none of the others goes on", async () => {
    const { app, dispatcher } = chatRig({ ticking: false, requestsPerTenant: 16 });
    // The worker takes 72, 64 of them wait, for this tenant: all but one of them.
    const total = () => dispatcher.stats().running + dispatcher.stats().unplaced;
    for (const n of [16, 16, 16, 16, 16, 16, 16, 16]) void post(app, { ...question, n });
    while (total() < 128) await Bun.sleep(0);
    void post(app, { ...question, n: 7 });
    while (total() < 135) await Bun.sleep(0);
    const refused = await post(app, { ...question, n: 2 });
    expect([refused.status, refused.headers.get("retry-after")]).toEqual([429, "2"]);
    expect(dispatcher.stats()).toEqual({ running: 72, unplaced: 63 });
  });

  test("a stop string ends it and the worker is told", async () => {
    const { app, processes } = chatRig();
    const answer = await read(post(app, { ...question, max_tokens: 1_000, stop: ["thing"] }));
    expect(answer.choices[0]).toMatchObject({ message: { content: "user\nthe " }, finish_reason: "stop" });
    expect(answer.usage.completion_tokens).toBeLessThan(20);
    expect(processes[0]?.core.received.some((message) => message.type === "abort")).toBe(true);
  });

  test("every sampling field reaches the worker", async () => {
    const { app, submits } = chatRig();
    await post(app, {
      ...question,
      temperature: 0.5,
      top_p: 0.9,
      top_k: 40,
      min_p: 0.1,
      presence_penalty: 0.2,
      frequency_penalty: -0.3,
      repetition_penalty: 1.1,
      seed: -5,
      logit_bias: { "17": -100 },
      logprobs: true,
      top_logprobs: 2,
      min_tokens: 1,
      stop_token_ids: [5],
      ignore_eos: true,
      spangate: { reuse: false },
    });
    const submit = submits()[0];
    expect(submit?.reuse).toBe(false);
    expect(submit?.params).toEqual({
      maxTokens: 4,
      minTokens: 1,
      ignoreEos: true,
      stopTokenIds: [5],
      sampling: {
        temperature: 0.5,
        topP: 0.9,
        topK: 40,
        minP: 0.1,
        presencePenalty: 0.2,
        frequencyPenalty: -0.3,
        repetitionPenalty: 1.1,
        seed: -5,
        logitBias: [[17, -100]],
        topLogprobs: 2,
      },
    });
  });

  test("without max_tokens the context's room is the bound; seeds differ from request to request", async () => {
    const { app, submits } = chatRig({ ticking: false });
    const { max_tokens: _, ...open } = question;
    const ender = new AbortController();
    const answers = [1, 2].map(() => post(app, open, { signal: ender.signal }));
    while (submits().length < 2) await Bun.sleep(0);
    const [one, two] = submits();
    const promptTokens = one?.plan.runs[0]?.tokenIds.length ?? 0;
    expect(one?.params.maxTokens).toBe(2048 - promptTokens);
    expect(one?.params.sampling.seed).not.toBe(two?.params.sampling.seed as number);
    ender.abort();
    await Promise.allSettled(answers);
  });

  test("a worker lost in mid-answer is made good without a word when nothing was shown", async () => {
    const { app, processes } = chatRig({ ticking: false });
    const answer = read(post(app, { ...question, max_tokens: 6, logprobs: true }));
    const running = (life: number): number => processes[life]?.core.runningCount ?? 0;
    while (running(0) === 0) await Bun.sleep(0);
    for (let tick = 0; tick < 4; tick++) processes[0]?.core.tick();
    processes[0]?.die();
    while (processes.length < 2) await Bun.sleep(1);
    processes[1]?.ready();
    while (running(1) > 0) processes[1]?.core.tick();
    const { choices, usage } = await answer;
    expect(choices[0]?.message.content).toBe("user\nthe ");
    expect(usage.completion_tokens).toBe(6);
  });

  test("null means not set, as clients send it", async () => {
    const nulls = ["temperature", "top_p", "seed", "stop", "n", "logprobs", "logit_bias", "stream", "tools", "user"];
    const body = { ...question, ...Object.fromEntries(nulls.map((name) => [name, null])) };
    expect((await post(chatRig().app, body)).status).toBe(200);
  });

  test("content may come in text parts", async () => {
    const { app, submits } = chatRig();
    const parts = [
      { type: "text", text: "the " },
      { type: "text", text: "thing" },
    ];
    await post(app, question);
    await post(app, { ...question, messages: [{ role: "user", content: parts }] });
    const [whole, inParts] = submits();
    expect(inParts?.plan.runs[0]?.blockKeys).toEqual(whole?.plan.runs[0]?.blockKeys ?? []);
  });
});

describe("file_search", () => {
  const search = { vector_store_ids: ["vs_1"] };

  test("asks with the last user message; the fragments become spans and are named", async () => {
    const { app, queries, used, submits } = chatRig();
    const messages = [
      { role: "user", content: "first" },
      { role: "assistant", content: "answer" },
      { role: "user", content: " Who is Anna's manager? " },
    ];
    const answer = await read(post(app, { ...question, messages, file_search: search }));
    expect(queries).toEqual(["Who is Anna's manager?"]);
    expect(answer.spangate.spans.map((span) => span.id)).toEqual(["frag_1", "frag_2"]);
    expect(answer.spangate.retrieved).toMatchObject([
      { id: "frag_1", file_id: "file-1", filename: "people.md", vector_store_id: "vs_1", score: 0.9 },
      { id: "frag_2" },
    ]);
    expect(used).toEqual(["frag_1", "frag_2"]);
    // Both tenants' questions over the corpus share its KV: the span hangs on the corpus's salt.
    const other = await read(post(app, { ...question, file_search: search }, { key: "key-b" }));
    expect(other.spangate.spans.map((span) => span.source)).toEqual(["device", "device"]);
    expect(submits()).toHaveLength(2);
  });

  test("is given up when the client goes", async () => {
    const { app, signals } = chatRig();
    const client = new AbortController();
    await read(post(app, { ...question, file_search: search }, { signal: client.signal }));
    expect(signals.map(({ aborted }) => aborted)).toEqual([false]);
    client.abort();
    expect(signals.map(({ aborted }) => aborted)).toEqual([true]);
  });

  test("a store that is not there is 404 before anything runs", async () => {
    const { app, submits } = chatRig();
    const response = await post(app, { ...question, file_search: { vector_store_ids: ["vs_2"] } });
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({
      error: { code: "not_found", param: "file_search.vector_store_ids" },
    });
    expect(submits()).toEqual([]);
  });

  test("without a question there is nothing to search for", async () => {
    const messages = [{ role: "system", content: "x" }];
    const response = await post(chatRig().app, { ...question, messages, file_search: search });
    expect(response.status).toBe(400);
  });
});
