/** Sparse decoding as callers ask for it, over the real engine and a backend that chooses in plain loops. */
import { describe, expect, test } from "bun:test";
import { sparseEngineLink } from "../../contract/engine-link.ts";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";
import { queryRig } from "../query-rig.ts";

const text = "Anna works in Oslo, and Tom lives by the sea with a small dog and an old boat. ".repeat(2);
const messages = [{ role: "user", content: text }];
const bodies: Readonly<Record<string, object>> = {
  "/v1/chat/completions": { messages, max_tokens: 6 },
  "/v1/completions": { prompt: text, max_tokens: 6 },
  "/v1/responses": { input: text, max_output_tokens: 6 },
  "/v1/messages": { messages, max_tokens: 6 },
};

interface Answered {
  readonly spangate?: { readonly sparse?: Readonly<Record<string, unknown>> };
  readonly error?: { readonly param?: string; readonly message: string };
}

async function ask(app: ChatRig["app"], path: string, sparse: unknown, more: object = {}) {
  const spangate = sparse === undefined ? {} : { spangate: { sparse } };
  const response = await post(app, { model: "fake-model", ...bodies[path], ...spangate, ...more }, { path });
  return { status: response.status, answer: (await response.json()) as Answered };
}

describe.each(Object.keys(bodies))("POST %s", (path) => {
  const sparseRig = chatRig({ openLink: sparseEngineLink });

  test("an answer says what was done", async () => {
    for (const [sparse, mode, tokens] of [
      [undefined, "now", 64],
      [true, "now", 64],
      [{}, "now", 64],
      [{ tokens: 16 }, "now", 16],
      [{ tokens: 20, mode: "ahead" }, "ahead", 20],
    ] as const) {
      const { status, answer } = await ask(sparseRig.app, path, sparse);
      expect(status).toBe(200);
      expect(answer.spangate?.sparse).toEqual({
        ...{ mode, selected_tokens: tokens, steps: 5, dense_steps: 1, refreshes: 5, chosen_again: 0 },
        ...{ changed: expect.any(Number), rectified_tokens: 0, mass: null, overlap: null },
      });
    }
  });

  test("false: it is dense, and nothing is said", async () => {
    const { status, answer } = await ask(sparseRig.app, path, false);
    expect(status).toBe(200);
    expect(answer.spangate).toBeDefined();
    expect(answer.spangate).not.toHaveProperty("sparse");
  });

  test.each([
    [0, "spangate.sparse"],
    ["now", "spangate.sparse"],
    [{ tokens: 0 }, "spangate.sparse.tokens"],
    [{ tokens: -4 }, "spangate.sparse.tokens"],
    [{ tokens: 20.5 }, "spangate.sparse.tokens"],
    [{ tokens: 65 }, "spangate.sparse.tokens"],
    [{ tokens: 1_000_000 }, "spangate.sparse.tokens"],
    [{ mode: "paper" }, "spangate.sparse.mode"],
    [{ mode: "exact" }, "spangate.sparse.mode"],
    [{ rate: 4 }, "spangate.sparse.rate"],
  ])("%j is refused by name", async (sparse, param) => {
    const { status, answer } = await ask(sparseRig.app, path, sparse);
    expect(status).toBe(400);
    expect(answer.error?.message).toContain(`'${param}'`);
    if (path !== "/v1/messages") expect(answer.error?.param).toBe(param);
  });

  test("a server that reads everything refuses it, and takes false", async () => {
    const dense = chatRig();
    for (const sparse of [true, {}, { tokens: 64 }]) {
      const { status, answer } = await ask(dense.app, path, sparse);
      expect(status).toBe(400);
      expect(answer.error?.message).toContain(
        "'spangate.sparse': this server decodes densely (SPANGATE_SPARSE is off)",
      );
    }
    expect(await ask(dense.app, path, false)).toMatchObject({ status: 200 });
  });
});

test("all choices of an answer are counted together", async () => {
  const { app } = chatRig({ openLink: sparseEngineLink });
  const { answer } = await ask(app, "/v1/chat/completions", true, { n: 3, temperature: 1 });
  expect(answer.spangate?.sparse).toMatchObject({ steps: 15, dense_steps: 3, refreshes: 15 });
});

test("log-probabilities go with it", async () => {
  const { app } = chatRig({ openLink: sparseEngineLink });
  const { status, answer } = await ask(app, "/v1/chat/completions", true, { logprobs: true, top_logprobs: 2 });
  expect(status).toBe(200);
  expect(answer.spangate?.sparse).toMatchObject({ steps: 5 });
});

test("a streamed answer says it at its end", async () => {
  const { app } = chatRig({ openLink: sparseEngineLink });
  const body = { model: "fake-model", ...bodies["/v1/chat/completions"], stream: true };
  const response = await post(app, { ...body, stream_options: { include_usage: true } });
  expect(await response.text()).toContain('"sparse":{"mode":"now","selected_tokens":64,"steps":5');
});

describe("a span query", () => {
  const g = (options: object, input: object = { user: text }) => ({ g: { max_tokens: 6, ...options, input } });
  const rig = () => queryRig({ openLink: sparseEngineLink });
  const send = async (query: object, made = rig()) => {
    const response = await made.app.request("/v1/query/execute", {
      method: "POST",
      headers: { authorization: "Bearer key-a", "content-type": "application/json" },
      body: JSON.stringify(query),
    });
    return { status: response.status, answer: (await response.json()) as Answered };
  };

  test("has it in a g, also in an inner one, whose output is exact before it is read", async () => {
    const inner = { plus: [g({ sparse: { tokens: 16 } }), { user: "the thing" }] };
    const { status, answer } = await send(g({ sparse: true }, { seq: [inner, { user: text }] }));
    expect(status).toBe(200);
    expect(answer.spangate?.sparse).toMatchObject({ steps: 10, dense_steps: 2, rectified_tokens: 5 });
    expect((await send(g({ sparse: false }))).answer.spangate).not.toHaveProperty("sparse");
  });

  test("is refused by the place of what cannot be", async () => {
    const cases: [object, string][] = [
      [g({ sparse: { tokens: 65 } }), "$.g.sparse.tokens"],
      [g({ sparse: true, reuse: "blend" }), "$.g.sparse"],
      [g({}, { seq: [g({ sparse: { tokens: 65 } }), { user: "a" }] }), "$.g.input.seq[0].g.sparse.tokens"],
      [{ map: { metadata: { sparse: { tokens: 65 } }, inputs: ["a"] } }, "$.map.metadata.sparse.tokens"],
    ];
    for (const [query, param] of cases) {
      expect(await send(query)).toMatchObject({ status: 400, answer: { error: { param } } });
    }
    expect(await send(g({ sparse: true }), queryRig())).toMatchObject({
      status: 400,
      answer: { error: { param: "$.g.sparse" } },
    });
  });

  test("with blended parts is dense where the server alone has it on", async () => {
    const { status, answer } = await send(g({ reuse: "blend" }, { seq: [{ user: text }] }));
    expect(status).toBe(200);
    expect(answer.spangate).toBeDefined();
  });
});
