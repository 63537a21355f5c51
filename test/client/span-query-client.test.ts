import { afterAll, beforeEach, describe, expect, test } from "bun:test";
import { piecesOf, type QueryChunk, q, SpanQueryClient, SpanQueryError, textsOf } from "spangate/query";
import { readLines } from "../../gateway/client/lines.ts";
import { fc } from "../support/fast-check.ts";

interface Seen {
  readonly method: string;
  readonly path: string;
  readonly headers: Headers;
  readonly body: string;
  readonly signal: AbortSignal;
}

/** The server answers what the test says, and notes what it was asked. */
const seen: Seen[] = [];
let answer: (request: Request) => Response | Promise<Response>;
const server = Bun.serve({
  port: 0,
  async fetch(request) {
    const { pathname, search } = new URL(request.url);
    const { method, headers, signal } = request;
    seen.push({ method, path: pathname + search, headers, body: await request.text(), signal });
    return await answer(request);
  },
});
afterAll(() => server.stop(true));
beforeEach(() => {
  seen.length = 0;
  answer = () => Response.json({});
});

const client = new SpanQueryClient({ url: `${server.url.origin}/`, apiKey: "sk-test" });
const query = q.g({ model: "m" }, q.user("hello"));

function streamed(parts: readonly string[], type = "text/event-stream"): Response {
  return new Response(
    new ReadableStream({
      start(controller) {
        for (const part of parts) controller.enqueue(new TextEncoder().encode(part));
        controller.close();
      },
    }),
    { headers: { "content-type": type } },
  );
}

const caught = async (work: Promise<unknown>): Promise<unknown> =>
  await work.then(
    () => undefined,
    (error: unknown) => error,
  );

test("execute, prepare and explain post the query as JSON, with the key", async () => {
  answer = () => Response.json({ object: "chat.completion", choices: [] });
  expect(await client.execute(query)).toMatchObject({ object: "chat.completion" });
  await client.prepare(query);
  await client.explain(JSON.stringify(query));
  expect(seen.map(({ method, path }) => `${method} ${path}`)).toEqual([
    "POST /v1/query/execute?stream=false",
    "POST /v1/query/prepare",
    "POST /v1/query/explain",
  ]);
  for (const { headers, body } of seen) {
    expect(headers.get("authorization")).toBe("Bearer sk-test");
    expect(headers.get("content-type")).toBe("application/json");
    expect(JSON.parse(body)).toEqual(query);
  }
});

describe("stream", () => {
  const chunk = (index: number, content: string): string =>
    `data: ${JSON.stringify({ object: "chat.completion.chunk", choices: [{ index, delta: { content }, finish_reason: index === 1 ? "stop" : null }] })}\n\n`;
  const read = async (): Promise<QueryChunk[]> => await Array.fromAsync(client.stream(query));

  test("gives chunks until the end", async () => {
    answer = () =>
      streamed([chunk(0, "a"), ": ping\n\n", chunk(1, "b").slice(0, 9), chunk(1, "b").slice(9), "data: [DONE]\n\n"]);
    expect((await read()).flatMap(piecesOf)).toEqual([
      { index: 0, text: "a", isLast: false },
      { index: 1, text: "b", isLast: true },
    ]);
    await Array.fromAsync(client.stream(query, { reuse: false }));
    expect(seen.map(({ path }) => path)).toEqual([
      "/v1/query/execute?stream=true",
      "/v1/query/execute?stream=true&reuse=false",
    ]);
  });

  test("throws the server's error in mid-stream", async () => {
    const error = { message: "$.g.input: lost", code: "worker_lost", param: "$.g.input" };
    answer = () => streamed([chunk(0, "a"), `data: ${JSON.stringify({ error })}\n\n`]);
    expect(await caught(read())).toMatchObject({ message: error.message, code: "worker_lost", path: "$.g.input" });
  });

  test("throws when the stream closes before its end", async () => {
    answer = () => streamed([chunk(0, "a")]);
    expect(await caught(read())).toMatchObject({ code: "stream_ended" });
  });

  test("leaving it early ends the request", async () => {
    const gone = Promise.withResolvers<void>();
    answer = ({ signal }) => {
      signal.addEventListener("abort", () => gone.resolve());
      const body = new ReadableStream<Uint8Array>({
        start: (controller) => controller.enqueue(new TextEncoder().encode(chunk(0, "a"))),
      });
      return new Response(body, { headers: { "content-type": "text/event-stream" } });
    };
    for await (const _ of client.stream(query)) break;
    await gone.promise;
  });
});

describe("failures", () => {
  test("a refusal has the server's words, code and path", async () => {
    const error = {
      message: "$.g.max_tokens: no.",
      type: "invalid_request_error",
      param: "$.g.max_tokens",
      code: "invalid_value",
    };
    answer = () => Response.json({ error }, { status: 400 });
    const thrown = await caught(client.execute(query));
    expect(thrown).toBeInstanceOf(SpanQueryError);
    expect(thrown).toMatchObject({
      status: 400,
      code: "invalid_value",
      path: "$.g.max_tokens",
      message: error.message,
    });
  });

  test("what is not the server's own answer is shown in part", async () => {
    answer = () => new Response("<html>bad gateway</html>", { status: 502 });
    expect(await caught(client.execute(query))).toMatchObject({ status: 502, message: "<html>bad gateway</html>" });
  });

  test("the caller's signal and the time-out end a call", async () => {
    answer = () => new Promise(() => undefined);
    const abort = new AbortController();
    const call = caught(client.execute(query, { signal: abort.signal }));
    abort.abort();
    expect(await call).toMatchObject({ name: "AbortError" });
    expect(await caught(client.execute(query, { timeoutMs: 1 }))).toMatchObject({ name: "TimeoutError" });
  });

  test("a URL must be one", () => {
    expect(() => new SpanQueryClient({ url: "nowhere", apiKey: "" })).toThrow(TypeError);
  });
});

describe("bulk", () => {
  const summary = (status: string): string =>
    `${JSON.stringify({ bulk: { id: "bulk_1", status, counts: { total: 1, completed: 1, failed: 0 } } })}\n`;
  const result = `${JSON.stringify({ id: "a", index: 0, response: { choices: [] } })}\n`;
  const read = async (options = {}) => await Array.fromAsync(client.bulk([{ id: "a", query }], options));

  test("sends lines, reads lines", async () => {
    answer = () =>
      streamed(
        [summary("running"), "\n", result.slice(0, 5), result.slice(5), summary("completed")],
        "application/x-ndjson",
      );
    const lines = await read({ order: "ingestion", concurrency: 2 });
    expect(lines.map((line) => ("bulk" in line ? line.bulk.status : line.id))).toEqual(["running", "a", "completed"]);
    expect(seen[0]?.path).toBe("/v1/query/bulk?order=ingestion&concurrency=2");
    expect(seen[0]?.headers.get("content-type")).toBe("application/x-ndjson");
    expect(seen[0]?.body).toBe(`${JSON.stringify({ id: "a", query })}\n`);
  });

  test("a line's error is a line, the answer's error is thrown", async () => {
    const error = { message: "no", code: "internal" };
    const line = `${JSON.stringify({ id: "a", index: 0, error })}\n`;
    answer = () => streamed([summary("running"), line, summary("completed")], "application/x-ndjson");
    expect((await read())[1]).toEqual({ id: "a", index: 0, error });
    answer = () => streamed([summary("running"), `${JSON.stringify({ error })}\n`], "application/x-ndjson");
    expect(await caught(read())).toMatchObject({ code: "internal" });
  });

  test("throws when the last line is missing", async () => {
    for (const parts of [[], [summary("running")], [summary("running"), result]]) {
      answer = () => streamed(parts, "application/x-ndjson");
      expect(await caught(read())).toMatchObject({ code: "stream_ended" });
    }
  });
});

test("texts stand in the order of their choices", () => {
  const head = { id: "x", created: 0, model: "m" };
  const usage = {
    prompt_tokens: 1,
    completion_tokens: 1,
    total_tokens: 2,
    prompt_tokens_details: { cached_tokens: 0 },
  };
  const spangate = {
    request_id: "r",
    worker: "w",
    queue_ms: 0,
    prefill_ms: 0,
    ttft_ms: 0,
    spans: [],
    generates: [],
    prepared: { tokens: 0, computed_tokens: 0 },
  };
  const choices = [1, 0].map((index) => ({ index, text: `t${index}`, finish_reason: "stop" }));
  expect(textsOf({ ...head, object: "text_completion", choices, usage, spangate })).toEqual(["t0", "t1"]);
});

test("lines do not depend on where the bytes are cut", async () => {
  const line = fc.string({ unit: "grapheme" }).map((text) => `x${text.replaceAll("\n", " ")}`);
  const property = fc.asyncProperty(fc.array(line), fc.integer({ min: 1, max: 7 }), async (lines, size) => {
    const bytes = new TextEncoder().encode(lines.join("\n"));
    const parts = Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) =>
      bytes.slice(i * size, (i + 1) * size),
    );
    const body = new ReadableStream<Uint8Array>({
      start(controller) {
        for (const part of parts) controller.enqueue(part);
        controller.close();
      },
    });
    expect(await Array.fromAsync(readLines(body))).toEqual(lines);
  });
  await fc.assert(property, { numRuns: 100 });
});

test("a character that was cut off at the end is shown as one", async () => {
  const body = new Response(new Uint8Array([0x61, 0xc3])).body;
  if (body === null) throw new Error("no body");
  expect(await Array.fromAsync(readLines(body))).toEqual(["a\ufffd"]);
});
