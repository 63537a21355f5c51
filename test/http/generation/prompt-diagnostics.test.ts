/** What answers say of prompts that were not found: by span, and against an earlier prompt in the packages' own words. */
import { describe, expect, test } from "bun:test";
import { type Comparison, PromptHistory } from "../../../gateway/generate/prompt-history.ts";
import { messageDiagnostics, responseDiagnostics } from "../../../gateway/http/generation/prompt-diagnostics.ts";
import { type ChatRig, chatRig, post } from "../chat-rig.ts";
import { ask, readyRig } from "../query-rig.ts";

type Part = "tools" | "system" | "documents";
type Fields = Record<string, unknown>;
interface Row {
  readonly id: string | null;
  readonly tokens: number;
  readonly cached_tokens: number;
  readonly reason: string | null;
}
interface Answer {
  readonly id: string;
  readonly diagnostics?: unknown;
  readonly prompt_cache_diagnostics?: unknown;
  readonly spangate: { readonly prompt_cache_diagnostics?: readonly Row[]; readonly spans: readonly { id: string }[] };
}

const user = (content: string) => ({ role: "user", content });
const asked = { spangate: { prompt_cache_diagnostics: true } };
const documents = [{ id: "d", text: "a document of some length, which is a span" }];
const send = async (app: ChatRig["app"], path: string, body: Fields, key = "key-a"): Promise<Answer> => {
  const response = await post(app, { model: "fake-model", ...body }, { path, key });
  if (response.status !== 200) throw new Error(await response.text());
  return (await response.json()) as Answer;
};
const reasonsOf = ({ spangate }: Answer) => spangate.prompt_cache_diagnostics?.map(({ id, reason }) => [id, reason]);

describe("by span", () => {
  const routes: readonly (readonly [string, Fields])[] = [
    ["/v1/chat/completions", { messages: [user("who?")], documents, max_tokens: 2 }],
    ["/v1/responses", { input: "who?", documents, max_output_tokens: 2 }],
    [
      "/v1/messages",
      {
        max_tokens: 2,
        messages: [
          {
            role: "user",
            content: [
              { type: "document", source: { type: "text", media_type: "text/plain", data: documents[0]?.text } },
              { type: "text", text: "who?" },
            ],
          },
        ],
      },
    ],
  ];
  test.each(routes)("%s", async (path, body) => {
    const { app } = chatRig();
    expect((await send(app, path, body)).spangate).not.toHaveProperty("prompt_cache_diagnostics");
    const other = await send(app, path, { ...body, ...asked }, "key-b");
    const id = other.spangate.spans[0]?.id ?? "";
    expect(reasonsOf(other)).toContainEqual([id, "never_computed"]);
    const found = await send(app, path, { ...body, ...asked });
    expect(reasonsOf(found)).toContainEqual([id, null]);
    const rows = found.spangate.prompt_cache_diagnostics ?? [];
    expect(rows.find((row) => row.id === id)?.cached_tokens).toBe(rows.find((row) => row.id === id)?.tokens ?? -1);
    expect(rows.at(-1)?.id ?? null).toBeNull();
    const salted = await send(app, path, { ...body, ...asked, cache_salt: "other" });
    expect(reasonsOf(salted)).toContainEqual([id, "salt_changed"]);
  });

  test("completions: one row for each prompt", async () => {
    const { app } = chatRig();
    const body = { prompt: ["one", "two and more"], max_tokens: 2, n: 2, ...asked };
    const { spangate } = await send(app, "/v1/completions", body);
    expect(spangate.prompt_cache_diagnostics?.map(({ tokens }) => tokens)).toEqual([3, 11]);
    const without = await send(app, "/v1/completions", { ...body, spangate: {} });
    expect(without.spangate).not.toHaveProperty("prompt_cache_diagnostics");
  });

  test("in a stream's last chunk", async () => {
    const { app } = chatRig();
    const body = { model: "fake-model", messages: [user("who?")], max_tokens: 2, stream: true, ...asked };
    const response = await post(app, { ...body, stream_options: { include_usage: true } });
    expect(await response.text()).toContain('"prompt_cache_diagnostics":[{"id":null,');
  });
});

describe("of a query", () => {
  const g = (input: unknown) => ({ g: { model: "", max_tokens: 4, temperature: 0, input } });
  const asks = "?prompt_cache_diagnostics=true";
  const rowsOf = ({ spangate }: object & { spangate: object }) =>
    "prompt_cache_diagnostics" in spangate ? (spangate.prompt_cache_diagnostics as readonly Row[]) : undefined;
  const fragments = { plus: [{ fragment: { id: "frag_1" } }, { fragment: { id: "frag_2" } }] };

  test("only when it is asked for, of the outermost prompt", async () => {
    const rig = await readyRig();
    const query = g({ seq: [fragments, { user: "Who?" }] });
    expect(rowsOf(await ask(rig, query))).toBeUndefined();
    const found = rowsOf(await ask(rig, query, asks)) ?? [];
    expect(Object.fromEntries(found.map(({ id, reason }) => [id ?? "prompt", reason]))).toEqual({
      frag_1: null,
      frag_2: null,
      prompt: "below_block",
    });
  });

  test("what the query itself computed ahead was not found either", async () => {
    const rig = await readyRig();
    const inner = g({ seq: [{ user: "one" }] });
    const query = g({ seq: [fragments, { plus: [inner] }, { user: "Who?" }] });
    const rows = rowsOf(await ask(rig, query, asks)) ?? [];
    for (const id of ["frag_1", "frag_2"]) {
      expect(rows.find((row) => row.id === id)).toMatchObject({ cached_tokens: 0, reason: "never_computed" });
    }
    const again = rowsOf(await ask(rig, query, asks)) ?? [];
    for (const id of ["frag_1", "frag_2"]) expect(again.find((row) => row.id === id)?.reason).toBeNull();
  });
});

describe("a message compared with an earlier one", () => {
  const message = { max_tokens: 2, system: "Be short.", messages: [user("who?")] };
  const compare = (app: ChatRig["app"], body: Fields, key = "key-a") =>
    send(app, "/v1/messages", { ...message, ...body }, key);

  test("is told what changed first", async () => {
    const { app } = chatRig();
    const first = await compare(app, { diagnostics: { previous_message_id: null } });
    expect(first.diagnostics).toBeNull();
    expect(first.spangate).toHaveProperty("prompt_cache_diagnostics");
    const against = { diagnostics: { previous_message_id: first.id } };
    const reason = (type: string) => ({ cache_miss_reason: { type, cache_missed_input_tokens: expect.any(Number) } });
    expect((await compare(app, { ...against, system: "Be long." })).diagnostics).toEqual(reason("system_changed"));
    expect((await compare(app, { ...against, messages: [user("where?")] })).diagnostics).toEqual(
      reason("messages_changed"),
    );
    const goesOn = [...message.messages, { role: "assistant", content: "He." }, user("why?")];
    // The worker of this test finds spans alone, so the same prompt is missed too, and nothing changed.
    expect((await compare(app, { ...against, messages: goesOn })).diagnostics).toEqual({
      cache_miss_reason: { type: "unavailable" },
    });
  });

  test("that is another tenant's is as unknown as none", async () => {
    const { app } = chatRig();
    const theirs = await compare(app, { diagnostics: {} }, "key-b");
    for (const id of [theirs.id, "msg_never"]) {
      const { diagnostics } = await compare(app, { diagnostics: { previous_message_id: id } });
      expect(diagnostics).toEqual({ cache_miss_reason: { type: "previous_message_not_found" } });
    }
  });

  test("who did not ask is told null, and is not compared with later", async () => {
    const { app } = chatRig();
    const { id, diagnostics } = await compare(app, {});
    expect(diagnostics).toBeNull();
    const later = await compare(app, { diagnostics: { previous_message_id: id } });
    expect(later.diagnostics).toEqual({ cache_miss_reason: { type: "previous_message_not_found" } });
  });

  test("in a stream: pending at its start, known at its end", async () => {
    const { app } = chatRig();
    const body = { model: "fake-model", ...message, stream: true, diagnostics: { previous_message_id: "msg_never" } };
    const events = (await (await post(app, body, { path: "/v1/messages" })).text()).split("\n\n");
    const of = (name: string) => events.find((event) => event.startsWith(`event: ${name}`)) ?? "";
    expect(of("message_start")).toContain('"diagnostics":{"cache_miss_reason":null}');
    expect(of("message_delta")).toContain('"diagnostics":{"cache_miss_reason":{"type":"previous_message_not_found"}}');
  });
});

describe("a response compared with an earlier one", () => {
  const compare = (app: ChatRig["app"], body: Fields, key = "key-a") =>
    send(app, "/v1/responses", { input: "who?", max_output_tokens: 2, ...body }, key);
  const with_ = (id: string) => ({ prompt_cache_options: { comparison_response_id: id } });

  test("is told in the words of OpenAI's package", async () => {
    const { app } = chatRig();
    const first = await compare(app, { store: false });
    expect(first).not.toHaveProperty("prompt_cache_diagnostics");
    const changed = await compare(app, { ...with_(first.id), input: "where?" });
    expect(changed.prompt_cache_diagnostics).toEqual({
      type: "cache_miss",
      reason: "input_changed",
      cache_missed_tokens: expect.any(Number),
      comparison_reusable_tokens: expect.any(Number),
    });
    expect((await compare(app, with_(first.id))).prompt_cache_diagnostics).toEqual({ type: "unavailable" });
    for (const id of [(await compare(app, {}, "key-b")).id, "resp_never"]) {
      const { prompt_cache_diagnostics } = await compare(app, with_(id));
      expect(prompt_cache_diagnostics).toEqual({ type: "comparison_response_not_found" });
    }
  });
});

describe("the comparison", () => {
  const usage = (cachedTokens: number, cacheWriteTokens = 0) => ({ cachedTokens, cacheWriteTokens });
  const facts = (system: string, ...turns: string[]) => ({ parts: { tools: undefined, system, documents: [] }, turns });
  const compared = new PromptHistory(8);
  compared.note("tenant_t", "a", facts("s", "one", "two"), usage(16, 32));

  test("counts what the earlier prompt left and this one did not find", () => {
    const of = (found: number, now = facts("s", "one", "two", "three")) =>
      compared.compare<Part>("tenant_t", "a", now, usage(found));
    expect(of(16)).toEqual({ found: true, missedTokens: 32, reusableTokens: 48, changed: undefined });
    expect(of(48)).toMatchObject({ missedTokens: 0 });
    expect(of(64, facts("s", "other"))).toMatchObject({ missedTokens: 0, changed: "turns" });
    expect(of(0, facts("x", "other"))).toMatchObject({ changed: "system" });
    expect(of(0, facts("s", "one"))).toMatchObject({ changed: "turns" });
  });

  test("says nothing was missed where all was found, whatever changed", () => {
    const found: Comparison<Part> = { found: true, missedTokens: 0, reusableTokens: 48, changed: "system" };
    expect(messageDiagnostics(found)).toBeNull();
    expect(responseDiagnostics(found)).toEqual({ type: "cache_hit" });
    const missed: Comparison<Part> = { ...found, missedTokens: 8, changed: "tools" };
    expect(messageDiagnostics(missed)).toEqual({
      cache_miss_reason: { type: "tools_changed", cache_missed_input_tokens: 8 },
    });
    expect(responseDiagnostics(missed)).toMatchObject({ reason: "tools_changed", cache_missed_tokens: 8 });
  });

  test("is bounded by the turns of all prompts together", () => {
    compared.note("tenant_t", "b", facts("s", "1", "2", "3", "4", "5"), usage(0));
    expect(compared.compare("tenant_t", "a", facts("s"), usage(0))).toEqual({ found: false });
    compared.note("tenant_t", "huge", facts("s", ..."123456789"), usage(0));
    expect(compared.compare("tenant_t", "huge", facts("s"), usage(0))).toEqual({ found: false });
  });
});
