/** A tree against workers that stand still: how many at the same time, how long, and what becomes of a lost worker. */
import { describe, expect, test } from "bun:test";
import { ApiError } from "../../gateway/base/errors.ts";
import { innerAt } from "../../gateway/execute/prompt-parts.ts";
import { TreeRun } from "../../gateway/execute/run-tree.ts";
import { mergeCompletions } from "../../gateway/generate/completion.ts";
import type { CompletionEvent } from "../../gateway/generate/events.ts";
import { Lowerer } from "../../gateway/lower/plan.ts";
import { QueryLowerer } from "../../gateway/lower/query-lowerer.ts";
import { parseQuery } from "../../gateway/query/parse.ts";
import { TokenBytes } from "../../gateway/text/detokenizer.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { fakeCard } from "../dispatch/fake-core.ts";
import { readyRig } from "../dispatch/rig.ts";
import { models, textSide } from "../text/models.ts";

interface Options {
  readonly concurrency?: number;
  readonly endMs?: number;
  readonly defaultTokens?: number;
  readonly reuse?: boolean;
}

function treeOver(query: unknown, options: Options = {}) {
  const rig = readyRig();
  const text = textSide(models.chatml);
  const spans = new Lowerer({ ...text, card: fakeCard, cacheBytes: 10_000 });
  const ender = new AbortController();
  const tree = new TreeRun(
    {
      dispatcher: rig.dispatcher,
      tokenBytes: new TokenBytes(models.chatml.tokenizer),
      card: fakeCard,
      lowerer: new QueryLowerer({ ...text, card: fakeCard, spans, cacheBytes: 10_000 }),
      concurrency: options.concurrency ?? 64,
      defaultTokens: options.defaultTokens ?? 32,
    },
    {
      requestId: "r",
      tenantId: "tenant_a",
      salt: "c2FsdA==" as CacheSalt,
      fragments: new Map(),
      reuse: options.reuse ?? true,
      restartable: true,
      signal: ender.signal,
      startMs: performance.now(),
      endMs: options.endMs ?? performance.now() + 60_000,
      affinity: "a",
    },
  );
  const root = parseQuery(query);
  if (root.kind !== "generate") throw new Error(root.kind);
  const run = async (): Promise<CompletionEvent[]> => {
    const events: CompletionEvent[] = [];
    try {
      for await (const [, event] of mergeCompletions(() => tree.choices(innerAt(root, "$")))) events.push(event);
      return events;
    } finally {
      ender.abort();
    }
  };
  return { ...rig, tree, run };
}

const g = (input: unknown, fields: object = {}) => ({
  g: { model: "", max_tokens: 3, temperature: 0, ...fields, input },
});
const wide = (count: number, fields: object = {}) =>
  g({
    seq: [{ plus: Array.from({ length: count }, (_, index) => g({ user: `Write ${index}.` }, fields)) }, { user: "?" }],
  });
const turns = async (count = 30): Promise<void> => {
  for (let turn = 0; turn < count; turn++) await new Promise(setImmediate);
};

test("no more requests of a tree run at the same time than allowed, and all come to their turn", async () => {
  const { process, run, tree } = treeOver(wide(5), { concurrency: 2 });
  const running = run();
  let most = 0;
  for (let ended = false; !ended; ) {
    await turns(3);
    most = Math.max(most, process.core.runningCount);
    process.core.tick();
    ended = await Promise.race([running.then(() => true), new Promise<boolean>((go) => setImmediate(() => go(false)))]);
  }
  expect(most).toBe(2);
  expect(tree.report.generates.length).toBe(6);
});

describe("max_tokens 0", () => {
  test("is the server's default, or what room there is", async () => {
    const small = treeOver(wide(1, { max_tokens: 0 }), { defaultTokens: 40 });
    const ending = small.run().catch(() => undefined);
    await turns();
    const [inner] = small.process.submits.filter(({ params }) => params.maxTokens > 0);
    expect(inner?.params.maxTokens).toBe(40);
    const large = treeOver(wide(1, { max_tokens: 0 }), { defaultTokens: 100_000 });
    const endingToo = large.run().catch(() => undefined);
    await turns();
    const [bounded] = large.process.submits.filter(({ params }) => params.maxTokens > 0);
    const prompt = bounded?.plan.runs.reduce((sum, { tokenIds }) => sum + tokenIds.length, 0) ?? 0;
    const close = bounded?.closeTokenIds?.length ?? 0;
    expect((bounded?.params.maxTokens ?? 0) + prompt + close).toBe(fakeCard.contextTokens);
    for (const process of [small.process, large.process]) {
      for (const requestId of process.submittedIds) {
        process.handlers.onMessage({ type: "failed", requestId, code: "internal", message: "enough" });
      }
    }
    await Promise.all([ending, endingToo]);
  });
});

describe("a prompt that can never be", () => {
  const tooLong = { user: "a ".repeat(40 * fakeCard.contextTokens) };
  const judge = g({ seq: [{ plus: [g({ user: "Write." })] }, tooLong] });

  test.each([true, false])("ends the tree before its inner generates have run (reuse: %p)", async (reuse) => {
    const { run } = treeOver(judge, { reuse });
    // The workers stand still: only what is known without them can end it.
    const error = await run().catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "context_length_exceeded", param: "$.g.input" });
  });
});

test("a tree that takes too long ends with the place that it had come to, and is aborted", async () => {
  const { process, run, dispatcher } = treeOver(wide(2), { endMs: performance.now() + 30 });
  const error = await run().then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ApiError)) throw error;
  expect(error.code).toBe("deadline_exceeded");
  expect(error.param).toMatch(/^\$\.g\.input\.seq\[0\]\.plus\[[01]\]$/);
  const aborted = process.core.received.flatMap((one) => (one.type === "abort" ? [one.requestId] : []));
  expect(new Set(aborted)).toEqual(new Set(process.submittedIds));
  expect(dispatcher.stats()).toEqual({ running: 0, unplaced: 0 });
});

test("what a lost worker had generated is generated again, and the tree goes on", async () => {
  const { processes, run, tree } = treeOver(wide(2));
  const running = run();
  await turns();
  processes[0]?.core.tick();
  processes[0]?.die();
  while (processes.length < 2) await Bun.sleep(1);
  processes[1]?.ready();
  for (let turn = 0; turn < 12; turn++) {
    await turns(5);
    processes[1]?.core.tick();
  }
  const events = await running;
  expect(events.at(-1)).toMatchObject({ type: "end", reason: "length", completionTokens: 3 });
  expect(tree.report.generates.map(({ end }) => end.completionTokens)).toEqual([3, 3, 3]);
});
