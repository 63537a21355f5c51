/** What callers ask of the prompt cache reaches the worker; what cannot be is refused by name. */
import { describe, expect, test } from "bun:test";
import { retentionOf } from "../../../worker/contract/owners.ts";
import { chatRig, post, question } from "../chat-rig.ts";

const part = (breakpoint?: object) => ({
  type: "text",
  text: "the thing",
  ...(breakpoint && { prompt_cache_breakpoint: breakpoint }),
});
const chat = (fields: object, ...parts: object[]) => ({
  ...question,
  ...(parts.length > 0 && { messages: [{ role: "user", content: parts }] }),
  ...fields,
});
const response = (fields: object, ...parts: object[]) => ({
  model: question.model,
  input: parts.length > 0 ? [{ role: "user", content: parts }] : "the thing",
  ...fields,
});
const inputPart = (breakpoint?: object) => ({ ...part(breakpoint), type: "input_text" });
const explicit = { mode: "explicit" };

type Wanted = keyof typeof retentionOf | undefined;

/** What the worker was told. */
async function toldOf(
  path: string,
  body: object,
): Promise<{ retention: number | undefined; reuse: boolean | undefined }> {
  const rig = chatRig();
  const answer = await post(rig.app, body, { path });
  expect([answer.status, answer.status === 200 ? "" : await answer.text()]).toEqual([200, ""]);
  const [submit] = rig.submits();
  return { retention: submit?.retention, reuse: submit?.reuse };
}

async function expectKept(path: string, body: object, wanted: Wanted): Promise<void> {
  const retention = wanted === undefined ? undefined : retentionOf[wanted];
  expect(await toldOf(path, body)).toEqual({ retention, reuse: true });
}

describe.each([
  ["/v1/chat/completions", chat, part],
  ["/v1/responses", response, inputPart],
] as const)("%s", (path, body, text) => {
  test.each<[string, object, Wanted]>([
    ["nothing", body({}), undefined],
    ["a key alone", body({ prompt_cache_key: "k" }), undefined],
    ["a time", body({ prompt_cache_options: { ttl: "12h" } }), "12h"],
    ["the implicit breakpoint", body({ prompt_cache_options: { mode: "implicit" } }), "30m"],
    ["the old field", body({ prompt_cache_retention: "24h" }), "24h"],
    ["the old field's other value", body({ prompt_cache_retention: "in_memory" }), undefined],
    ["null", body({ prompt_cache_retention: null, prompt_cache_options: null }), undefined],
    ["a breakpoint", body({}, text(explicit), text()), "30m"],
    ["a breakpoint's own time", body({}, text({ ...explicit, ttl: "12h" })), "12h"],
    [
      "the request's time for a breakpoint",
      body({ prompt_cache_options: { ...explicit, ttl: "12h" } }, text(explicit)),
      "12h",
    ],
    ["the longest of all", body({ prompt_cache_options: { ttl: "30m" } }, text({ ...explicit, ttl: "12h" })), "12h"],
  ])("%s", (_name, sent, wanted) => expectKept(path, sent, wanted));

  test("explicit breakpoints alone, and none: nothing is found, nothing is kept", async () => {
    const told = await toldOf(path, body({ prompt_cache_options: explicit }));
    expect(told).toEqual({ retention: undefined, reuse: false });
  });

  test.each<[object, string]>([
    [body({ prompt_cache_options: { ttl: "5m" } }), "prompt_cache_options.ttl"],
    [body({ prompt_cache_options: { ttl: 30 } }), "prompt_cache_options.ttl"],
    [body({ prompt_cache_options: { mode: "always" } }), "prompt_cache_options.mode"],
    [body({ prompt_cache_retention: "1h" }), "prompt_cache_retention"],
    [body({}, text({ mode: "implicit" })), "content"],
  ])("%j is refused", async (sent, param) => {
    const answer = await post(chatRig().app, sent, { path });
    expect(answer.status).toBe(400);
    const { error } = (await answer.json()) as { error: { param: string } };
    expect(error.param).toContain(param);
  });
});

describe("/v1/messages", () => {
  const message = (fields: object, control?: object) => ({
    model: question.model,
    max_tokens: 4,
    messages: [
      { role: "user", content: [{ type: "text", text: "the thing", ...(control && { cache_control: control }) }] },
    ],
    ...fields,
  });

  test.each<[string, object, Wanted]>([
    ["nothing", message({}), undefined],
    ["ephemeral", message({}, { type: "ephemeral" }), "5m"],
    ["an hour", message({}, { type: "ephemeral", ttl: "1h" }), "1h"],
    ["the whole request", message({ cache_control: { type: "ephemeral", ttl: "1h" } }, { type: "ephemeral" }), "1h"],
  ])("%s", (_name, sent, wanted) => expectKept("/v1/messages", sent, wanted));
});

test("a response tells what it was asked", async () => {
  const options = { mode: "implicit", ttl: "12h" };
  const answer = await post(
    chatRig().app,
    response({ prompt_cache_options: options, prompt_cache_retention: "24h", prompt_cache_key: "k" }),
    { path: "/v1/responses" },
  );
  expect(await answer.json()).toMatchObject({
    prompt_cache_key: "k",
    prompt_cache_retention: "24h",
    prompt_cache_options: options,
  });
});

test("breakpoints are no part of what is said", async () => {
  const rig = chatRig();
  await post(rig.app, chat({}, part(explicit), part()));
  await post(rig.app, chat({}, part(), part()));
  const [first, second] = rig.submits().map(({ plan }) => plan.runs.map(({ tokenIds }) => [...tokenIds]));
  expect(first).toEqual(second as number[][]);
});
