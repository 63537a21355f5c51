/** A chain that is generated and closed is another prompt's segment: nothing of it is computed again. */
import { describe, expect, test } from "bun:test";
import { rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { PlanRun, SegmentRef, SubmitMessage } from "../../worker/contract/messages.ts";
import type { CacheSalt } from "../../worker/contract/units.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { blockTokens, countUp, type SubmitOptions, submitRuns } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const shape = { blockCount: 64 };
const salt = "c2FsdA==" as CacheSalt;
const closing = Int32Array.of(90, 91);

function closedRun(tokenIds: Int32Array, position: number, root: PlanRun["rootKey"], sees: SegmentRef[]): PlanRun {
  const blockKeys = runBlockKeys(root, tokenIds, blockTokens, true);
  return { kind: "main", tokenIds, position, sees, blockKeys, rootKey: root };
}

function openRun(tokenIds: Int32Array, position: number, sees: SegmentRef[]): PlanRun {
  const root = rootKey("fake", salt, "main");
  const blockKeys = runBlockKeys(root, tokenIds, blockTokens, false);
  return { kind: "main", tokenIds, position, sees, blockKeys, rootKey: root };
}

/** Input chain, closed, then the output's chain with the input as its parent, open. */
function innerRuns(input: Int32Array, header: Int32Array): PlanRun[] {
  const first = closedRun(input, 0, rootKey("fake", salt, "main"), []);
  const root = rootKey("fake", salt, "main", first.blockKeys.at(-1));
  const sees = [{ run: 0, firstToken: 0, tokenCount: input.length, offset: 0 }];
  const blockKeys = runBlockKeys(root, header, blockTokens, false);
  return [first, { kind: "main", tokenIds: header, position: input.length, sees, blockKeys, rootKey: root }];
}

function submitClosing(id: string, runs: PlanRun[], closeTokenIds: Int32Array, options: SubmitOptions): SubmitMessage {
  return { ...submitRuns(id, runs, options), closeTokenIds };
}

/** The inner plan with its whole output: all runs closed. */
function closedInner([input, header]: readonly PlanRun[], output: readonly number[], close: Int32Array): PlanRun[] {
  const whole = Int32Array.from([...header.tokenIds, ...output, ...close]);
  return [input, closedRun(whole, header.position, header.rootKey, [...header.sees])];
}

/** A prompt that shows only the output chain of each inner plan, one after the other from position 3 on. */
function outerRuns(inners: readonly (readonly PlanRun[])[]): PlanRun[] {
  const runs: PlanRun[] = [closedRun(countUp(80, 3), 0, rootKey("fake", salt, "main"), [])];
  const sees: SegmentRef[] = [{ run: 0, firstToken: 0, tokenCount: 3, offset: 0 }];
  let position = 3;
  for (const [input, output] of inners) {
    const at = runs.length;
    runs.push(input, { ...output, sees: output.sees.map((segment) => ({ ...segment, run: at })) });
    const tokenCount = output.tokenIds.length - 1;
    // Without the chain's first token: a sub-run that begins inside a block.
    sees.push({ run: at + 1, firstToken: 1, tokenCount, offset: position - output.position - 1 });
    position += tokenCount;
  }
  return [...runs, openRun(countUp(70, 3), position, sees)];
}

async function generateClosed(world: TinyWorld, name: string, runs: PlanRun[], close: Int32Array, options = {}) {
  world.engine.submit(submitClosing(name, runs, close, options));
  await world.settle();
  return closedInner(runs, world.tokensOf(name), close);
}

describe("a closed chain", () => {
  const runs = innerRuns(countUp(1, 10), countUp(30, 3));
  const free = referenceAnswer(submitRuns("x", runs, { params: { maxTokens: 12 } }), new TinyWorld().backend.shape, []);
  const longest = free.tokenIds.slice(0, 6);

  for (const reason of ["stop", "length"] as const) {
    for (let outputTokens = reason === "stop" ? 0 : 1; outputTokens <= 5; outputTokens++) {
      test.each([0, 1, 2, 4])(`${outputTokens} tokens and ${reason}, closed by %i, is kept whole`, async (count) => {
        const close = countUp(90, count);
        const stop = reason === "stop" ? [longest[outputTokens]] : [];
        const maxTokens = reason === "stop" ? 12 : outputTokens;
        const world = new TinyWorld({ shape });
        const params = { maxTokens, stopTokenIds: stop, ignoreEos: true };
        const inner = await generateClosed(world, "inner", runs, close, { params });
        expect(world.tokensOf("inner")).toEqual(longest.slice(0, outputTokens));
        const completionTokens = outputTokens + (reason === "stop" ? 1 : 0);
        expect(world.finishedOf("inner")).toMatchObject({ reason, usage: { completionTokens } });
        const keys = inner.flatMap((run) => run.blockKeys);
        expect(residentKeys(world.engine).sort()).toEqual(keys.sort());
        // Prompt, output and closing tokens once each; the stop token is no part of the chain.
        expect(world.backend.rowCount).toBe(10 + 3 + outputTokens + count);
        expect(world.engine.stats()).toMatchObject({ usedBlocks: 0, generatedTokens: completionTokens });
      });
    }
  }

  test("stands in another prompt with none of its tokens computed again, before and behind where it was", async () => {
    const world = new TinyWorld({ shape });
    const inners: PlanRun[][] = [];
    for (const [at, inputTokens] of [17, 2, 9].entries()) {
      const inner = innerRuns(countUp(10 * at, inputTokens), countUp(30, 3));
      inners.push(await generateClosed(world, `inner-${at}`, inner, closing, { sampling: { seed: at } }));
    }
    const outer = outerRuns(inners);
    const offsets = (outer.at(-1)?.sees ?? []).map((segment) => Math.sign(segment.offset));
    expect(offsets).toEqual([0, -1, 1, 1]);
    const rowsBefore = world.backend.rowCount;
    const answer = submitRuns("outer", outer, { params: { maxTokens: 6, ignoreEos: true } });
    world.engine.submit(answer);
    await world.settle();
    expect(world.backend.rowCount - rowsBefore).toBe(3 + 3 + 5);
    const innerTokens = inners.flat().reduce((sum, run) => sum + run.tokenIds.length, 0);
    expect(world.finishedOf("outer").usage.cachedTokens).toBe(innerTokens);

    const fresh = new TinyWorld({ shape });
    fresh.engine.submit({ ...answer, reuse: false });
    await fresh.settle();
    expect(world.tokensOf("outer")).toEqual(fresh.tokensOf("outer"));
    expect(world.tokensOf("outer")).toEqual(referenceAnswer(answer, world.backend.shape, eosTokenIds).tokenIds);
  });

  test.each([0, 2])("closed by %i tokens, all of it is told to be kept before its end is told", async (count) => {
    const world = new TinyWorld({ shape });
    await generateClosed(world, "r", runs, countUp(90, count), {
      params: { stopTokenIds: [longest[3]], maxTokens: 12 },
    });
    const types = world.messages.map((message) => message.type);
    expect(types.lastIndexOf("kv")).toBeLessThan(types.indexOf("finished"));
  });

  test("leaves a request without closing tokens as it was: open, its last block not kept", async () => {
    const world = new TinyWorld({ shape });
    world.engine.submit(submitRuns("chat", runs, { params: { maxTokens: 3 } }));
    await world.settle();
    expect(world.backend.rowCount).toBe(10 + 3 + 2);
    expect(residentKeys(world.engine)).toHaveLength(3 + 1);
  });
});

describe("closing under pressure", () => {
  const params = { maxTokens: 6, ignoreEos: true };
  const runs = innerRuns(countUp(1, 5), countUp(30, 2));
  const expected = referenceAnswer(submitRuns("x", runs, { params }), new TinyWorld().backend.shape, []).tokenIds;

  /** Steps until the last token is out and the closing tokens are still to come. */
  async function untilClosing(world: TinyWorld, name: string): Promise<void> {
    while (world.tokensOf(name).length < 6) await world.step();
    expect(world.messages.some((message) => message.type === "finished" && message.requestId === name)).toBe(false);
  }

  test("an abort then ends at once and nothing of the closing is kept", async () => {
    const world = new TinyWorld({ shape });
    world.engine.submit(submitClosing("r", runs, closing, { params }));
    await untilClosing(world, "r");
    const rows = world.backend.rowCount;
    world.engine.abort("r");
    await world.settle();
    expect(world.finishedOf("r").reason).toBe("abort");
    expect(world.backend.rowCount).toBe(rows);
    // Two blocks of the input; of 2 + 5 computed tokens one full block.
    expect(residentKeys(world.engine)).toHaveLength(2 + 1);
    expect(world.engine.stats().usedBlocks).toBe(0);
  });

  test("a request preempted then goes on later, samples nothing more, and is kept whole", async () => {
    // When b has its last token it holds 4 blocks beside a's 3 and later 4, and closing wants one more.
    const world = new TinyWorld({ shape: { blockCount: 7 } });
    const first = [openRun(countUp(1, 8), 0, [])];
    world.engine.submit(submitRuns("a", first, { params: { maxTokens: 24, ignoreEos: true } }));
    world.engine.submit(submitClosing("b", runs, closing, { params }));
    let preemptedWhileClosing = false;
    for (let i = 0; i < 200 && (await world.step()); i++) {
      const waits = world.engine.stats().waitingRequests === 1;
      if (waits && world.tokensOf("b").length === 6) preemptedWhileClosing = true;
    }
    expect(preemptedWhileClosing).toBe(true);
    expect(world.tokensOf("b")).toEqual(expected);
    expect(world.finishedOf("b").reason).toBe("length");
    const [input, output] = closedInner(runs, expected, closing);
    expect(residentKeys(world.engine)).toEqual(expect.arrayContaining([...input.blockKeys, ...output.blockKeys]));
  });

  test("what the pool cannot hold ends with its own reason, unclosed", async () => {
    // 5 tokens take 2 blocks, 2 + 6 take 2, and closing would take one more.
    const world = new TinyWorld({ shape: { blockCount: 4 } });
    world.engine.submit(submitClosing("r", runs, closing, { params: { ...params, stopTokenIds: [expected[5]] } }));
    await world.settle();
    expect(world.finishedOf("r").reason).toBe("stop");
    expect(world.tokensOf("r")).toEqual(expected.slice(0, 5));
    expect(world.engine.stats().usedBlocks).toBe(0);
  });

  test("generation leaves room in the context for the tokens that close it", async () => {
    const world = new TinyWorld({ shape: { ...shape, contextTokens: 12 } });
    const inner = await generateClosed(world, "r", runs, closing, { params: { maxTokens: 12, ignoreEos: true } });
    expect(world.finishedOf("r").reason).toBe("length");
    expect(world.tokensOf("r")).toEqual(expected.slice(0, 12 - 7 - 2));
    expect(inner[1].position + inner[1].tokenIds.length).toBe(12);
    expect(residentKeys(world.engine)).toEqual(expect.arrayContaining([...inner[1].blockKeys]));
  });

  test("closing a block in steps of few rows beside streams that go on", async () => {
    const world = new TinyWorld({ shape, limits: { stepTokens: 4, prefillTokensBesideDecodes: 1 } });
    world.engine.submit(
      submitRuns("a", [openRun(countUp(1, 3), 0, [])], { params: { maxTokens: 40, ignoreEos: true } }),
    );
    const inner = await generateClosed(world, "r", runs, countUp(90, 4), { params });
    expect(world.tokensOf("r")).toEqual(expected);
    expect(residentKeys(world.engine)).toEqual(expect.arrayContaining([...inner[1].blockKeys]));
  });
});

describe("many at once", () => {
  const input = countUp(1, 41);
  const answers = Array.from({ length: 24 }, (_, index) => `sample-${index}`);
  const limits = { maxRunningRequests: 24, maxWaitingRequests: 24, stepTokens: 128 };
  const options = (seed: number) => ({ params: { maxTokens: 5, ignoreEos: true }, sampling: { temperature: 1, seed } });

  test("samples of one prompt compute it once and begin one step after the first", async () => {
    const world = new TinyWorld({ shape: { blockCount: 96 }, limits });
    const runs = innerRuns(input, countUp(30, 3));
    for (const [seed, name] of answers.entries()) {
      world.engine.submit(submitClosing(name, runs, closing, options(seed)));
    }
    await world.settle();
    expect(world.backend.rowCount).toBe(41 + 24 * (3 + 5 + closing.length));
    const begun = answers.map((name) => world.finishedOf(name).timings.ttftMs);
    expect(Math.max(...begun) - Math.min(...begun)).toBe(1);
    for (const [seed, name] of answers.entries()) {
      const expected = referenceAnswer(submitRuns(name, runs, options(seed)), world.backend.shape, eosTokenIds);
      expect(world.tokensOf(name)).toEqual(expected.tokenIds);
    }
  });

  test("of two prompts of which one overtakes the other in the middle of a shared block, only that block is computed twice", async () => {
    // a stops inside a block; b has the same beginning, less to compute, and goes first.
    const world = new TinyWorld({ shape, limits: { stepTokens: 12 } });
    const oldest = [openRun(countUp(50, 46), 0, [])];
    world.engine.submit(submitRuns("oldest", oldest, { params: { maxTokens: 1 } }));
    world.engine.submit(submitRuns("a", [closedRun(input, 0, rootKey("fake", salt, "main"), [])], preparing));
    await world.step();
    const short = closedRun(input.subarray(0, 16), 0, rootKey("fake", salt, "main"), []);
    world.engine.submit(submitRuns("b", [short], preparing));
    await world.settle();
    const shared = world.finishedOf("b").usage.cachedTokens;
    expect(shared).toBe(4);
    // a had begun its second block: that is all that is computed twice.
    expect(world.backend.rowCount).toBe(46 + 41 + blockTokens);
  });
});

const preparing = { params: { maxTokens: 0 } };

test("runs of one span are one report; it was found only if all of them were", async () => {
  const world = new TinyWorld({ shape });
  const spanRuns = (secondTokens: number): PlanRun[] =>
    [countUp(1, 6), countUp(20, secondTokens)].map((tokenIds) => ({
      ...closedRun(tokenIds, 0, rootKey("fake", salt, "span"), []),
      kind: "span",
      spanId: "s",
    }));
  for (const [name, count, source, cachedTokens, cacheWriteTokens] of [
    ["cold", 5, "computed", 0, 11],
    ["warm", 5, "device", 11, 0],
    // The first block of the second run is the same; the one that was partly filled is another.
    ["half", 7, "computed", 10, 3],
  ] as const) {
    world.engine.submit(submitRuns(name, spanRuns(count), preparing));
    await world.settle();
    expect(world.finishedOf(name).spans).toEqual([
      { id: "s", tokens: 6 + count, source, cachedTokens, cacheWriteTokens },
    ]);
  }
});
