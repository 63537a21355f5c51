import { describe, expect, test } from "bun:test";
import { engineLink } from "../../contract/engine-link.ts";
import { until } from "../../support/until.ts";
import { ask, post, readyRig, refusalOf } from "../query-rig.ts";

const user = (text: string) => ({ user: text });
const g = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 4, temperature: 0, ...fields, input },
});
const judge = g({ seq: [{ plus: [g(user("a")), g(user("b"))] }, user("Which?")] });
const retrieve = (store: string) => ({ retrieve: { vector_store_ids: [store], query: "Anna", max_num_results: 2 } });

describe("bodies", () => {
  const yaml =
    "g:\n  model: ''\n  max_tokens: 4\n  temperature: 0\n  input:\n    seq:\n      - system: Be brief.\n      - user: the thing\n";
  const same = g({ seq: [{ system: "Be brief." }, user("the thing")] });

  test("JSON, JSON as text, and YAML under its three names are the same query", async () => {
    const rig = await readyRig();
    const texts = new Set<string>();
    for (const type of ["application/json", "text/plain", "text/plain; charset=utf-8"]) {
      const response = await post(rig, "execute", JSON.stringify(same), { type });
      expect(response.status).toBe(200);
      texts.add(JSON.stringify(((await response.json()) as { choices: unknown }).choices));
    }
    for (const type of ["application/yaml", "application/x-yaml", "text/yaml"]) {
      const response = await post(rig, "execute", yaml, { type });
      expect(response.status).toBe(200);
      texts.add(JSON.stringify(((await response.json()) as { choices: unknown }).choices));
    }
    expect(texts.size).toBe(1);
  });

  test("of other types are 415", async () => {
    const rig = await readyRig();
    for (const type of ["application/xml", "text/html", "multipart/form-data", "constructor", ""]) {
      const { status, code } = await refusalOf(post(rig, "execute", same, { type }));
      expect([status, code]).toEqual([415, "unsupported_media_type"]);
    }
  });
});

describe("answers", () => {
  test("of a generate and a chat: a chat completion; of a repeat: n choices", async () => {
    const rig = await readyRig();
    const one = await ask(rig, judge);
    expect(one).toMatchObject({
      object: "chat.completion",
      model: "fake-model",
      choices: [{ index: 0, finish_reason: "length" }],
    });
    expect(one.choices[0]?.message?.content).toEqual(expect.any(String));
    const many = await ask(rig, { repeat: { n: 3, ...g(user("the thing"), { temperature: 1.5, seed: 1 }) } });
    expect(many.choices.map(({ index }) => index)).toEqual([0, 1, 2]);
    expect(new Set(many.choices.map(({ message }) => message?.content)).size).toBeGreaterThan(1);
    expect((await ask(rig, { repeat: { n: 1, ...g(user("x")) } })).choices.length).toBe(1);
    const chat = await ask(rig, { chat: [user("the thing")] });
    expect(chat.object).toBe("chat.completion");
    expect(chat.usage.completion_tokens).toBe(1_024);
  });

  test("of a map: a text completion with one choice for each input, as if each was asked alone", async () => {
    const rig = await readyRig();
    const metadata = { model: "", max_tokens: 4, temperature: 0 };
    const answer = await ask(rig, { map: { metadata, inputs: ["one", "two", "three"] } });
    expect(answer.object).toBe("text_completion");
    const alone = await ask(rig, g(user("two")));
    expect(answer.choices.map(({ index }) => index)).toEqual([0, 1, 2]);
    expect(answer.choices[1]?.text).toBe(alone.choices[0]?.message?.content ?? "");
    expect(answer.spangate.generates.map(({ path }) => path)).toEqual(
      [0, 1, 2].map((index) => `$.map.inputs[${index}]`),
    );
    expect(answer.usage.completion_tokens).toBe(12);
  });

  test("of a plus of generates: one choice for each, whether or not it is a map", async () => {
    const rig = await readyRig();
    const options = { max_tokens: 4, temperature: 0 };
    const alike = await ask(rig, { plus: [g(user("one"), options), g(user("two"), options)] });
    const mixed = await ask(rig, { plus: [g(user("one"), options), g({ seq: [user("a"), user("b")] }, options)] });
    for (const answer of [alike, mixed]) {
      expect(answer.object).toBe("text_completion");
      expect(answer.choices.map(({ index }) => index)).toEqual([0, 1]);
      expect(answer.usage.completion_tokens).toBe(8);
    }
    expect(mixed.choices[0]?.text).toBe(alike.choices[0]?.text ?? "");
    expect(mixed.spangate.generates.map(({ path }) => path)).toEqual(["$.plus[0]", "$.plus[1]"]);
  });

  test("usage and counters are those of the whole tree", async () => {
    const rig = await readyRig();
    const { usage, spangate } = await ask(rig, judge);
    const sum = (field: "prompt_tokens" | "completion_tokens" | "cached_tokens") =>
      spangate.generates.reduce((total, one) => total + one[field], 0);
    expect(usage.prompt_tokens).toBe(sum("prompt_tokens"));
    expect(usage.completion_tokens).toBe(12);
    expect(usage.total_tokens).toBe(usage.prompt_tokens + 12);
    expect(usage.prompt_tokens_details.cached_tokens).toBe(sum("cached_tokens") - spangate.prepared.computed_tokens);
    const metrics = rig.metrics.render();
    expect(metrics).toContain('vllm:request_success_total{finished_reason="length"} 3');
    expect(metrics).toContain('vllm:generation_tokens_total{worker="worker-0"} 12');
  });

  test("fragments keep their ids, and what was read is named when the query has ended", async () => {
    const rig = await readyRig();
    const answer = await ask(rig, g({ seq: [retrieve("vs_1"), user("Who?")] }));
    expect(answer.spangate.spans.map(({ id }) => id).toSorted()).toEqual(["frag_1", "frag_2"]);
    expect(rig.used).toEqual(["frag_1", "frag_2"]);
    const again = await ask(
      rig,
      g({ seq: [{ plus: [{ fragment: { id: "frag_2" } }, { fragment: { id: "frag_1" } }] }, user("Where?")] }),
    );
    expect(again.spangate.spans.map(({ source }) => source)).toEqual(["device", "device"]);
  });

  test("blended: how many tokens were copied and how many of them computed again", async () => {
    const rig = await readyRig();
    const stored = { seq: [{ fragment: { id: "frag_1" } }, { fragment: { id: "frag_2" } }, user("Who?")] };
    expect((await ask(rig, g(stored))).spangate.blend).toBeUndefined();
    const { blend } = (await ask(rig, g(stored, { reuse: "blend", recompute_ratio: 0.2 }))).spangate;
    expect(blend?.tokens).toBeGreaterThan(0);
    expect(blend?.recomputed_tokens).toBeGreaterThan(0);
    expect(blend?.recomputed_tokens).toBeLessThan(blend?.tokens ?? 0);
  });
});

describe("a stream", () => {
  const eventsOf = async (response: Response): Promise<{ data: string[]; chunks: Record<string, unknown>[] }> => {
    const data = (await response.text())
      .split("\n\n")
      .flatMap((event) => (event.startsWith("data: ") ? [event.slice(6)] : []));
    return {
      data,
      chunks: data.filter((text) => text !== "[DONE]").map((text) => JSON.parse(text) as Record<string, unknown>),
    };
  };
  type Chunk = {
    choices: { index: number; delta?: { content?: string }; text?: string; finish_reason: string | null }[];
  };

  test("has the answer's text, then usage, then [DONE]", async () => {
    const rig = await readyRig();
    const whole = await ask(rig, judge);
    const response = await post(rig, "execute?stream=true", judge);
    expect(response.headers.get("content-type")).toContain("text/event-stream");
    const { data, chunks } = await eventsOf(response);
    const typed = chunks as unknown as Chunk[];
    expect(typed.flatMap(({ choices }) => choices.map(({ delta }) => delta?.content ?? "")).join("")).toBe(
      whole.choices[0]?.message?.content ?? "",
    );
    expect(chunks[0]).toMatchObject({ object: "chat.completion.chunk", choices: [{ delta: { role: "assistant" } }] });
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: 12 } });
    expect(chunks.at(-1)).toHaveProperty("spangate.generates.length", 3);
    expect(data.at(-1)).toBe("[DONE]");
  });

  test("of a map has text completions", async () => {
    const rig = await readyRig();
    const metadata = { model: "", max_tokens: 4, temperature: 0 };
    const { chunks } = await eventsOf(
      await post(rig, "execute?stream=true", { map: { metadata, inputs: ["one", "two"] } }),
    );
    const typed = chunks as unknown as Chunk[];
    expect(new Set(chunks.map(({ object }) => object))).toEqual(new Set(["text_completion"]));
    const alone = await ask(rig, g(user("two")));
    const second = typed.flatMap(({ choices }) => choices.filter(({ index }) => index === 1).map(({ text }) => text));
    expect(second.join("")).toBe(alone.choices[0]?.message?.content ?? "");
  });

  test("that fails after it has begun ends with an error and no [DONE]", async () => {
    let fail: ((requestId: string) => void) | undefined;
    const rig = await readyRig({
      openLink: (command, handlers) => {
        const link = engineLink(command, handlers);
        fail = (requestId) => handlers.onMessage({ type: "failed", requestId, code: "internal", message: "broken" });
        // Inner generates never answer.
        return { ...link, send: (message) => message.type === "submit" || link.send(message) };
      },
    });
    const answering = post(rig, "execute?stream=true", judge);
    const response = await answering;
    expect(response.status).toBe(200);
    const innerOf = () => rig.submits().find(({ closeTokenIds }) => closeTokenIds !== undefined);
    await until(() => innerOf() !== undefined, "the inner generation is sent");
    fail?.(innerOf()?.requestId ?? "");
    const { data } = await eventsOf(response);
    expect(data.at(-1)).toContain('"code":"internal"');
    expect(data.at(-1)).toContain("$.g.input.seq[0].plus");
    expect(data).not.toContain("[DONE]");
    expect(rig.limiter.running("tenant_a")).toBe(0);
  });
});
