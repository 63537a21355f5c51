import { describe, expect, test } from "bun:test";
import type { DispatchRequest, FinishedEvent, GenerationEvent } from "../../gateway/dispatch/request/request.ts";
import { outputTokens } from "../../gateway/execute/output-tokens.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import { request } from "../dispatch/rig.ts";
import { models, textSide } from "../text/models.ts";

const tokenBytes = new TokenBytes(models.chatml.tokenizer);
const idsOf = (text: string): number[] => [...textSide(models.chatml).tokenizer.encodeText(text)];

const finished = (reason: FinishedEvent["reason"], completionTokens: number): FinishedEvent => ({
  type: "finished",
  reason,
  usage: { promptTokens: 3, completionTokens, cachedTokens: 0, cacheWriteTokens: 0 },
  timings: { queueMs: 0, prefillMs: 0, ttftMs: 0 },
  times: { queueMs: 0, firstTokenMs: 0, totalMs: 0 },
  spans: [],
  workerId: "worker-0",
});

/** A dispatcher that gives these tokens one by one, until it is aborted. */
function giving(tokenIds: readonly number[], before: readonly GenerationEvent[] = []) {
  const seen: DispatchRequest[] = [];
  const submit = (one: DispatchRequest): AsyncIterableIterator<GenerationEvent> => {
    seen.push(one);
    return (async function* () {
      yield* before;
      let count = 0;
      for (const tokenId of tokenIds) {
        if (one.signal?.aborted === true) return yield finished("abort", count);
        count += 1;
        yield { type: "tokens" as const, tokenIds: [tokenId] };
      }
      yield finished("stop", count);
    })();
  };
  return { submit, seen };
}

async function output(tokenIds: readonly number[], stops: readonly string[], before: readonly GenerationEvent[] = []) {
  const dispatcher = giving(tokenIds, before);
  const { signal } = new AbortController();
  return await outputTokens(dispatcher, tokenBytes, { ...request("a"), signal, stops });
}

describe("the tokens of an inner generate", () => {
  test("are those that the worker gave", async () => {
    const ids = idsOf("the answer 42.");
    const { tokenIds, end } = await output(ids, []);
    expect([...tokenIds]).toEqual(ids);
    expect(end).toMatchObject({ reason: "stop", completionTokens: ids.length });
  });

  test("end before the token in which a stop string begins", async () => {
    const ids = idsOf("one two\n\nthree");
    const before = idsOf("one two");
    const { tokenIds, end } = await output(ids, ["\n\nth"]);
    expect([...tokenIds]).toEqual(before);
    expect(end.reason).toBe("stop");
    // The stop string was read up to its end, and nothing behind it.
    expect(end.completionTokens).toBeGreaterThan(before.length);
    expect(end.completionTokens).toBeLessThan(ids.length);
  });

  test("go whole: one that holds the end of the text and the stop string's begin is left out", async () => {
    const ids = [...idsOf("a"), ...idsOf("th"), ...idsOf("x")];
    expect(ids.length).toBe(3);
    const { tokenIds } = await output(ids, ["hx"]);
    expect([...tokenIds]).toEqual(idsOf("a"));
  });

  test("of a character that was not finished before the stop are left out", async () => {
    const [first = 0] = idsOf("é");
    const { tokenIds } = await output([...idsOf("a"), first, ...idsOf("STOP")], ["\ufffdSTOP"]);
    expect([...tokenIds]).toEqual(idsOf("a"));
  });

  test("are none when the stop string comes first", async () => {
    expect((await output(idsOf("STOP it"), ["STOP"])).tokenIds.length).toBe(0);
  });

  test("of a lost worker do not count", async () => {
    const lost: GenerationEvent[] = [{ type: "tokens", tokenIds: idsOf("lost STO") }, { type: "restarted" }];
    const { tokenIds, end } = await output(idsOf("Px"), ["STOP"], lost);
    expect([...tokenIds]).toEqual(idsOf("Px"));
    expect(end.completionTokens).toBe(2);
  });

  test("of a worker that gave up are an error: nobody asked it to", async () => {
    const submit = async function* (): AsyncGenerator<GenerationEvent> {
      yield { type: "tokens", tokenIds: idsOf("half an") };
      yield finished("abort", 2);
    };
    const { signal } = new AbortController();
    const outputs = outputTokens({ submit }, tokenBytes, { ...request("a"), signal, stops: [] });
    await expect(outputs).rejects.toMatchObject({ code: "internal" });
  });

  test("an abort of the tree is thrown, not an output", async () => {
    const controller = new AbortController();
    controller.abort();
    const given = outputTokens(giving(idsOf("x")), tokenBytes, {
      ...request("a"),
      signal: controller.signal,
      stops: [],
    });
    expect(given).rejects.toBe(controller.signal.reason);
  });
});
