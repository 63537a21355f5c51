/** Trees of generates over the real engine, whose every token depends on all that it may see. */
import { describe, expect, test } from "bun:test";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { fakeLinks } from "../dispatch/fake-link.ts";
import { ask, post, type QueryAnswer, type QueryRig, queryRig, readyRig } from "../http/query-rig.ts";

const user = (text: string) => ({ user: text });
const system = (text: string) => ({ system: text });
const g = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 8, temperature: 0, ...fields, input },
});
const writers = (texts: readonly string[], fields: object = {}) =>
  texts.map((text) => g(user(`Write ${text}.`), fields));
const judge = (children: readonly unknown[], fields: object = {}) =>
  g({ seq: [system("You judge."), { plus: children }, user("Which is the best?")] }, { max_tokens: 6, ...fields });

const textOf = (answer: QueryAnswer): string | undefined => answer.choices[0]?.message?.content;
const outerOf = ({ spangate: { generates } }: QueryAnswer) => {
  const outer = generates.at(-1);
  if (outer === undefined) throw new Error("nothing ran");
  return outer;
};
const computedOf = ({ prompt_tokens, cached_tokens }: ReturnType<typeof outerOf>) => prompt_tokens - cached_tokens;
const generating = (rig: QueryRig): readonly SubmitMessage[] =>
  rig.submits().filter(({ params }) => params.maxTokens > 0);

describe("a judge over writers", () => {
  test("computes its own messages only; what the writers read and wrote is found", async () => {
    const rig = await readyRig();
    const answer = await ask(rig, judge(writers(["one", "two", "three"], { temperature: 0.5 })));
    // Its last message and the start of its answer; the system message was computed while the writers wrote.
    const opening = rig.text.template.messages.opening ?? "";
    const tail = rig.text.tokenizer.encode([{ kind: "template", text: opening }], false).length;
    const layout = rig.text.template.messages.inside("user");
    const own = rig.text.tokenizer.encode(
      [
        { kind: "template", text: layout?.before ?? "" },
        { kind: "content", text: "Which is the best?" },
        { kind: "template", text: layout?.after ?? "" },
      ],
      false,
    ).length;
    expect(computedOf(outerOf(answer))).toBe(own + tail);
    expect(answer.spangate.spans.map(({ source }) => source)).toEqual(["device", "device", "device"]);
  });

  test("writers run before the judge and close their chains; the judge's stays open", async () => {
    const rig = await readyRig();
    await ask(rig, judge(writers(["one", "two", "three"])));
    const submits = generating(rig);
    expect(submits.map(({ closeTokenIds }) => closeTokenIds !== undefined)).toEqual([true, true, true, false]);
  });

  test("the judge reads the very tokens that were sampled", async () => {
    const rig = await readyRig();
    await ask(rig, judge(writers(["one", "two"], { temperature: 1.2, seed: 5 })));
    const submits = generating(rig);
    const outer = submits.at(-1);
    for (const { requestId } of submits.slice(0, -1)) {
      const sampled = rig.tokensOf(requestId);
      expect(sampled.length).toBe(8);
      const runs = outer?.plan.runs.map(({ tokenIds }) => tokenIds.join()) ?? [];
      expect(runs.filter((run) => run.includes(sampled.join())).length).toBe(1);
    }
  });

  test("answers as one that computes everything, greedily", async () => {
    const rig = await readyRig();
    const query = judge(writers(["one", "two", "three", "four"]));
    const reused = await ask(rig, query);
    const computed = await ask(rig, query, "?reuse=false");
    expect(textOf(computed)).toBe(textOf(reused) ?? "");
    expect(outerOf(computed).cached_tokens).toBe(0);
    expect(outerOf(computed).prompt_tokens).toBe(outerOf(reused).prompt_tokens);
    expect(rig.submits().filter(({ reuse }) => !reuse).length).toBe(1);
    // Another judge over other writings answers otherwise: the comparison can fail.
    expect(textOf(await ask(rig, judge(writers(["five", "six", "three", "four"]))))).not.toBe(textOf(reused) ?? "");
  });

  test("asked again in another order is one hit to the end, with the same answer", async () => {
    const rig = await readyRig();
    const texts = ["one", "two", "three", "four"];
    const first = await ask(rig, judge(writers(texts)));
    const again = await ask(rig, judge(writers(texts.toReversed())));
    expect(textOf(again)).toBe(textOf(first) ?? "");
    // All of the prompt but the open start of the answer.
    const text = rig.text.template.messages.opening ?? "";
    const opening = rig.text.tokenizer.encode([{ kind: "template", text }], false);
    expect(computedOf(outerOf(again))).toBe(opening.length);
  });

  test("sees the output alone where that is all that is exposed", async () => {
    const rig = await readyRig();
    const both = await ask(rig, judge(writers(["one", "two"], { expose: "both" })));
    const output = await ask(rig, judge(writers(["one", "two"], { expose: "output" })));
    expect(textOf(output)).not.toBe(textOf(both) ?? "");
    expect(computedOf(outerOf(output))).toBeLessThanOrEqual(computedOf(outerOf(both)));
    const computed = await ask(rig, judge(writers(["one", "two"], { expose: "output" })), "?reuse=false");
    expect(textOf(computed)).toBe(textOf(output) ?? "");
  });

  test("runs of a repeat share the prompt and draw from different streams", async () => {
    const rig = await readyRig();
    const repeat = { repeat: { n: 3, ...g(user("Write."), { temperature: 1.5, seed: 40 }) } };
    const answer = await ask(rig, judge([repeat]));
    const seeds = generating(rig).map(({ params }) => params.sampling.seed);
    expect(seeds.slice(0, 3)).toEqual([40, 41, 42]);
    const outputs = generating(rig)
      .slice(0, 3)
      .map(({ requestId }) => rig.tokensOf(requestId).join());
    expect(new Set(outputs).size).toBe(3);
    expect(answer.spangate.generates.map(({ path, index }) => [path, index])).toEqual([
      ["$.g.input.seq[1].plus[0].repeat", 0],
      ["$.g.input.seq[1].plus[0].repeat", 1],
      ["$.g.input.seq[1].plus[0].repeat", 2],
      ["$", 0],
    ]);
  });
});

describe("a tree", () => {
  test("of any depth runs from the leaves", async () => {
    const rig = await readyRig();
    const deep = g({ seq: [user("Improve:"), g({ seq: [user("Improve:"), g(user("Write."))] })] });
    const answer = await ask(rig, deep);
    expect(answer.spangate.generates.map(({ path }) => path)).toEqual([
      "$.g.input.seq[1].g.input.seq[1]",
      "$.g.input.seq[1]",
      "$",
    ]);
    expect(answer.usage.completion_tokens).toBe(24);
    expect(answer.usage.prompt_tokens).toBe(answer.spangate.generates.reduce((sum, one) => sum + one.prompt_tokens, 0));
  });

  test("runs a generate that stands twice once", async () => {
    const rig = await readyRig();
    await ask(
      rig,
      g({ zip: { first: g(user("Write."), { temperature: 1 }), second: { seq: [user("a"), user("b")] } } }),
    );
    expect(generating(rig).length).toBe(2);
  });

  test("runs a generate once that stands in two prompts, which read the same output", async () => {
    const rig = await readyRig();
    // The judge is shown what the writer read: the draft, too.
    const draft = g(user("Draft."), { temperature: 1.2 });
    await ask(rig, judge([g({ seq: [user("Improve:"), draft] }, { temperature: 1.2 })]));
    const [first, ...readers] = generating(rig);
    expect(readers.length).toBe(2);
    const sampled = rig.tokensOf(first?.requestId ?? "").join();
    for (const { plan } of readers) {
      expect(plan.runs.some(({ tokenIds }) => tokenIds.join().includes(sampled))).toBe(true);
    }
  });

  test("runs two generates that are only alike twice, with seeds of their own", async () => {
    const rig = await readyRig();
    await ask(rig, judge([g(user("Write."), { temperature: 1 }), g(user("Write."), { temperature: 1 })]));
    const seeds = generating(rig).map(({ params }) => params.sampling.seed);
    expect(seeds.length).toBe(3);
    expect(new Set(seeds).size).toBe(3);
  });

  test("runs monads for their effect: a chain is warm, and nothing of it is in the prompt", async () => {
    const rig = await readyRig();
    const document = "Oslo is a town by the sea. ".repeat(8);
    const warm = { monad: { plus: [g(user(document), { max_tokens: 1 })] } };
    const bare = await ask(await readyRig(), g({ seq: [{ plus: [user(document)] }, user("Where?")] }));
    const answer = await ask(rig, g({ seq: [warm, { plus: [user(document)] }, user("Where?")] }));
    expect(outerOf(answer).prompt_tokens).toBe(outerOf(bare).prompt_tokens);
    expect(textOf(answer)).toBe(textOf(bare) ?? "");
    expect(answer.spangate.spans.map(({ source }) => source)).toEqual(["device"]);
    expect(bare.spangate.spans.map(({ source }) => source)).toEqual(["computed"]);
    expect(rig.submits().map(({ params }) => params.maxTokens)).toEqual([0, 8]);
    // What was computed ahead does not pass for found.
    expect(answer.usage.prompt_tokens_details.cached_tokens).toBe(0);
  });

  test("a monad's longer generate runs whole", async () => {
    const rig = await readyRig();
    const answer = await ask(rig, g({ seq: [{ monad: g(user("Think.")) }, user("Where?")] }));
    expect(answer.spangate.generates.map(({ path }) => path)).toEqual(["$.g.input.seq[0].monad", "$"]);
  });

  test("stays on one worker", async () => {
    const rig = await readyRig({ devices: ["cpu", "cpu"] });
    while (rig.registry.ready().length < 2) await new Promise(setImmediate);
    const answer = await ask(rig, judge(writers(["one", "two", "three", "four", "five", "six"])));
    expect(new Set(rig.workersSent()).size).toBe(1);
    expect(answer.spangate.spans.every(({ source }) => source === "device")).toBe(true);
  });
});

describe("what ends a tree", () => {
  /** Workers that take everything and never answer. */
  const still = async () => {
    const links = fakeLinks();
    const rig = queryRig({ openLink: links.openLink });
    links.processes[0]?.ready();
    return rig;
  };
  const until = async (holds: () => boolean): Promise<void> => {
    for (let turn = 0; !holds(); turn++) {
      if (turn > 2_000) throw new Error("it never came to be");
      await new Promise(setImmediate);
    }
  };
  const unfinished = (rig: QueryRig) =>
    rig
      .submits()
      .map(({ requestId }) => requestId)
      .toSorted();

  test("a generate that fails: all others are aborted, the error names it", async () => {
    const rig = await still();
    const answering = post(rig, "execute", judge([...writers(["one", "two"]), g(user("x"), { max_tokens: 100_000 })]));
    const response = await answering;
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as { error: { code: string; param: string } };
    expect(error).toMatchObject({ code: "context_length_exceeded", param: "$.g.input.seq[1].plus[2].g.max_tokens" });
    expect(rig.aborts().toSorted()).toEqual(unfinished(rig));
    expect(rig.dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
    expect(rig.limiter.running("tenant_a")).toBe(0);
  });

  test("a worker that refuses one of them", async () => {
    const links = fakeLinks();
    const rig = queryRig({ openLink: links.openLink });
    const [process] = links.processes;
    process?.ready();
    const answering = post(rig, "execute", judge(writers(["one", "two", "three"])));
    await until(() => generating(rig).length === 3);
    const failing = generating(rig)[1]?.requestId ?? "";
    process?.handlers.onMessage({ type: "failed", requestId: failing, code: "overloaded", message: "no room" });
    const response = await answering;
    expect(response.status).toBe(503);
    const { error } = (await response.json()) as { error: { code: string; param: string; message: string } };
    expect(error.code).toBe("overloaded");
    expect(error.param).toMatch(/^\$\.g\.input\.seq\[1\]\.plus\[\d\]$/);
    expect(error.message).toContain(error.param);
    expect(rig.aborts().toSorted()).toEqual(unfinished(rig).filter((id) => id !== failing));
  });

  test("the client's leaving: the worker sees an abort of everything", async () => {
    const rig = await still();
    const client = new AbortController();
    const answering = post(rig, "execute", judge(writers(["one", "two", "three"])), { signal: client.signal });
    await until(() => generating(rig).length === 3);
    client.abort();
    await answering;
    expect(rig.aborts().toSorted()).toEqual(unfinished(rig));
    expect(rig.aborts().length).toBeGreaterThanOrEqual(3);
    expect(rig.limiter.running("tenant_a")).toBe(0);
  });

  test("the reader's leaving a stream", async () => {
    const rig = await still();
    const response = post(rig, "execute?stream=true", judge(writers(["one", "two"])));
    await until(() => generating(rig).length === 2);
    const stream = (await response).body;
    await stream?.cancel();
    await until(() => rig.aborts().length >= 2 && rig.limiter.running("tenant_a") === 0);
    expect(rig.aborts().toSorted()).toEqual(unfinished(rig));
  });
});
