/** What a request took is told also when its reader did not wait for the end. */
import { describe, expect, test } from "bun:test";
import type { FinishedEvent } from "../../gateway/dispatch/request/request.ts";
import { generate } from "../../gateway/generate/completion.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import { models } from "../text/models.ts";
import { greedy, readyRig, request } from "./rig.ts";

function started(options = {}) {
  const rig = readyRig(1, options);
  const abandoned: FinishedEvent[] = [];
  const asked = request("r", { params: greedy(3), onAbandoned: (end) => void abandoned.push(end) });
  return { ...rig, abandoned, events: rig.dispatcher.submit(asked) };
}

describe("the end of a request whose reader left", () => {
  test("is told when the worker tells it", async () => {
    const { events, process, abandoned } = started();
    process.core.tick();
    await events.next();
    await events.return?.();
    expect(abandoned).toHaveLength(1);
    expect(abandoned[0]).toMatchObject({ reason: "abort", usage: { promptTokens: 3, completionTokens: 1 } });
  });

  test("is told without a prompt's tokens when no worker was given it, and takes nothing from limits", async () => {
    const { dispatcher, abandoned } = started({ maxRunningPerWorker: 1 });
    const settled: number[] = [];
    const onEnd = (tokens: number): void => void settled.push(tokens);
    const onAbandoned = (end: FinishedEvent): void => void abandoned.push(end);
    const waiting = dispatcher.submit(request("waiting", { params: greedy(3), onAbandoned, onEnd }));
    await waiting.return?.();
    const usage = { promptTokens: 0, completionTokens: 0, cachedTokens: 0, cacheWriteTokens: 0 };
    expect(abandoned).toMatchObject([{ reason: "abort", usage }]);
    expect(settled).toEqual([0]);
  });

  test("is told when it had come and was not read", async () => {
    const { events, process, abandoned } = started();
    for (let tick = 0; tick < 3; tick++) process.core.tick();
    await events.next();
    expect(abandoned).toEqual([]);
    await events.return?.();
    expect(abandoned).toMatchObject([{ reason: "length", usage: { completionTokens: 3 } }]);
  });

  test("is not told to who has read it, and not of what failed", async () => {
    const read = started();
    for (let tick = 0; tick < 3; tick++) read.process.core.tick();
    for await (const _ of read.events);
    const failed = started();
    failed.process.core.tick();
    await failed.events.next();
    failed.process.die();
    await expect(failed.events.next()).rejects.toThrow();
    await failed.events.return?.();
    expect([read.abandoned, failed.abandoned]).toEqual([[], []]);
  });
});

test("a completion's end is told once: as it is read, or to nobody", async () => {
  for (const reads of [0, 1, 4]) {
    const { dispatcher, process } = readyRig();
    const ends: number[] = [];
    const signal = new AbortController().signal;
    const input = { ...request("r", { params: greedy(3) }), affinity: "", restartable: false, stops: [], signal };
    const completion = generate(dispatcher, new TokenBytes(models.chatml.tokenizer), {
      ...input,
      onEnd: undefined,
      onRunEnd: ({ completionTokens }) => void ends.push(completionTokens),
    } as Parameters<typeof generate>[2]);
    for (let tick = 0; tick < 3; tick++) process.core.tick();
    for (let read = 0; read < reads; read++) await completion.next();
    await completion.return();
    // A generator that was never begun cannot leave its events: what it left is aborted with its request.
    expect(ends).toEqual(reads === 0 ? [] : [3]);
  }
});
