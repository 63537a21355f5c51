import { describe, expect, test } from "bun:test";
import { chatRig, post, question } from "../chat-rig.ts";

/** Events of a stream; the last one may be the word [DONE]. */
async function events(response: Response): Promise<(Record<string, unknown> | "[DONE]")[]> {
  const text = await response.text();
  const data = text.split("\n\n").filter((event) => event.startsWith("data: "));
  return data.map((event) =>
    event === "data: [DONE]" ? "[DONE]" : (JSON.parse(event.slice(6)) as Record<string, unknown>),
  );
}

describe("a stream", () => {
  test("role, text, finish, usage, [DONE]", async () => {
    const { app } = chatRig();
    const body = { ...question, stream: true, stream_options: { include_usage: true }, documents: [{ text: "in" }] };
    const response = await post(app, body);
    expect(response.headers.get("content-type")).toStartWith("text/event-stream");
    const all = await events(response);
    expect(all[0]).toMatchObject({
      object: "chat.completion.chunk",
      choices: [{ index: 0, delta: { role: "assistant", content: "" }, finish_reason: null }],
      usage: null,
    });
    const chunks = all.filter((event) => event !== "[DONE]") as { choices: { delta: { content?: string } }[] }[];
    expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("")).toBe("user\nth");
    expect(all.at(-3)).toMatchObject({ choices: [{ delta: {}, finish_reason: "length" }] });
    expect(all.at(-2)).toMatchObject({
      choices: [],
      usage: { completion_tokens: 4 },
      spangate: { spans: [{ id: "document-0", source: "computed" }] },
    });
    expect(all.at(-1)).toBe("[DONE]");
  });

  test("without include_usage no chunk speaks of usage", async () => {
    const all = await events(await post(chatRig().app, { ...question, stream: true }));
    expect(all.some((event) => event !== "[DONE]" && "usage" in event)).toBe(false);
  });

  test("a failure before the first token is an HTTP error", async () => {
    const { app, processes } = chatRig({ ticking: false });
    const answer = post(app, { ...question, stream: true });
    for (let life = 0; life < 3; life++) {
      while (processes.length <= life) await Bun.sleep(1);
      if (life > 0) processes[life]?.ready();
      while ((processes[life]?.core.runningCount ?? 0) === 0) await Bun.sleep(0);
      processes[life]?.die();
    }
    const response = await answer;
    expect(response.status).toBe(503);
    expect(await response.json()).toMatchObject({ error: { code: "worker_lost", type: "server_error" } });
  });

  test("a failure after the first token is the last event, and no [DONE] follows", async () => {
    const { app, processes, limiter } = chatRig({ ticking: false });
    const answer = post(app, { ...question, messages: [{ role: "user", content: "abc" }], stream: true });
    while ((processes[0]?.core.runningCount ?? 0) === 0) await Bun.sleep(0);
    processes[0]?.core.tick();
    processes[0]?.core.tick();
    const response = await answer;
    processes[0]?.die();
    const all = await events(response);
    expect(response.status).toBe(200);
    expect(all.at(-1)).toMatchObject({ error: { code: "worker_lost" } });
    expect(limiter.running("tenant_a")).toBe(0);
  });

  test("a reader that leaves ends the request on the worker", async () => {
    const { app, processes, limiter } = chatRig({ ticking: false });
    const answer = post(app, { ...question, max_tokens: 500, stream: true });
    while ((processes[0]?.core.runningCount ?? 0) === 0) await Bun.sleep(0);
    processes[0]?.core.tick();
    processes[0]?.core.tick();
    const response = await answer;
    const reader = response.body?.getReader();
    await reader?.read();
    await reader?.cancel();
    while (processes[0]?.core.runningCount !== 0) await Bun.sleep(0);
    while (limiter.running("tenant_a") !== 0) await Bun.sleep(0);
  });
});
