import { expect, spyOn, test } from "bun:test";
import { mergeCompletions } from "../../gateway/generate/completion.ts";
import type { CompletionEvent } from "../../gateway/generate/events.ts";

async function* texts(...parts: readonly string[]): AsyncGenerator<CompletionEvent, void> {
  for (const text of parts) yield { type: "text", text, logprobs: [] };
}

async function* failing(): AsyncGenerator<CompletionEvent, void> {
  yield* texts("before");
  throw new Error("it failed");
}

async function readAll(completions: readonly AsyncGenerator<CompletionEvent, void>[]): Promise<readonly string[]> {
  const read: string[] = [];
  for await (const [index, event] of mergeCompletions(() => completions)) {
    if (event.type === "text") read.push(`${index} ${event.text}`);
  }
  return read;
}

test("completions are merged as they come, each in its own order", async () => {
  const read = await readAll([texts("a", "b", "c"), texts(), texts("d", "e")]);
  expect(read.toSorted()).toEqual(["0 a", "0 b", "0 c", "2 d", "2 e"]);
  expect(read.filter((line) => line.startsWith("0"))).toEqual(["0 a", "0 b", "0 c"]);
  expect(read.indexOf("2 d")).toBeLessThan(read.indexOf("0 c"));
  expect(await readAll([])).toEqual([]);
});

test("one that fails ends all", async () => {
  let ended = false;
  async function* endless(): AsyncGenerator<CompletionEvent, void> {
    try {
      for (;;) yield* texts("on");
    } finally {
      ended = true;
    }
  }
  await expect(readAll([endless(), failing()])).rejects.toThrow("it failed");
  await new Promise(setImmediate);
  expect(ended).toBe(true);
});

test("an event costs nothing for each completion that waits", async () => {
  const waiting = Promise.withResolvers<void>();
  async function* patient(): AsyncGenerator<CompletionEvent, void> {
    await waiting.promise;
    yield* texts();
  }
  async function* busy(): AsyncGenerator<CompletionEvent, void> {
    yield* texts(...Array.from({ length: 100 }, () => "x"));
    waiting.resolve();
  }
  const reactions = spyOn(Promise.prototype, "then");
  try {
    const read = await readAll([busy(), ...Array.from({ length: 100 }, patient)]);
    expect(read.length).toBe(100);
    expect(reactions.mock.calls.length).toBeLessThan(1_000);
  } finally {
    reactions.mockRestore();
  }
});
