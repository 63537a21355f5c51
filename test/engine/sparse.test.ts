/** Sparse decoding in the engine: rows that choose, what of it gets keys, and what it holds. */
import { describe, expect, test } from "bun:test";
import type { BackendShape, SparseShape } from "../../worker/backend/backend.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { choiceFlags, choiceModes, type SparseParams } from "../../worker/contract/sparse.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { FakeDevice } from "../support/fake-device.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { blockTokens, chainKeys, countUp, makeRuns, type PlanParts, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";
import { sparseAnswer } from "./sparse-reference.ts";

const sparseShape: SparseShape = { seats: 2, listTokens: 256, shadowBytesPerBlock: 4, modes: choiceModes };
const [tailTokens, askTokens] = [8, 8];
/** Choosing is always worth it, from the first token on. */
const always = { fromTokens: 0, tailTokens, askTokens, mostCost: Number.POSITIVE_INFINITY };

interface Options {
  readonly pipelined?: boolean;
  readonly shape?: Partial<BackendShape>;
  readonly seats?: number;
  readonly mostCandidates?: number;
  readonly limits?: Partial<typeof always>;
  readonly onForward?: (batch: Batch) => void;
}

function worldOf({ pipelined = false, shape, seats = 2, mostCandidates, limits, onForward }: Options = {}) {
  const most = mostCandidates === undefined ? {} : { mostCandidates };
  const all = { blockCount: 64, contextTokens: 256, ...shape, sparse: { ...sparseShape, seats, ...most } };
  const backend = pipelined ? new FakeDevice({ shape: all }) : new FakeBackend(all, onForward);
  const world = new TinyWorld({ backend, limits: { stepTokens: 64 }, sparse: { ...always, ...limits } });
  return { world, backend };
}

const parts: PlanParts = { system: countUp(1, 9), spans: [countUp(20, 10), countUp(40, 7)], question: countUp(60, 9) };

function submitted(
  requestId: string,
  sparse: Partial<SparseParams> = {},
  { maxTokens = 60, of = parts }: { readonly maxTokens?: number; readonly of?: PlanParts } = {},
): SubmitMessage {
  const message = submitPlan(requestId, of, { params: { maxTokens, ignoreEos: true } });
  return { ...message, sparse: { mode: "now", tokens: 6, ...sparse } };
}

const denseAnswer = (message: SubmitMessage, { backend }: { backend: FakeBackend }): readonly number[] =>
  referenceAnswer(message, backend.shape, eosTokenIds).tokenIds;

describe("answers", () => {
  for (const pipelined of [false, true]) {
    for (const rectifyTokens of [0, 1, 5, 16, 64]) {
      test(`are as defined, ${pipelined ? "steps ahead" : "plain"}, ${rectifyTokens} tokens are rectified`, async () => {
        const made = worldOf({ pipelined });
        const message = submitted("r", { rectifyTokens });
        made.world.engine.submit(message);
        await made.world.settle();
        const { tokenIds, steps, rectifiedTokens } = sparseAnswer(message, made.backend.shape, tailTokens);
        expect(made.world.tokensOf("r")).toEqual(tokenIds);
        expect(tokenIds.join() === denseAnswer(message, made).join()).toBe(rectifyTokens === 1);
        const { sparse } = made.world.finishedOf("r");
        expect(sparse).toMatchObject({ mode: "now", tokens: 6, steps, denseSteps: 60 - steps, rectifiedTokens });
        expect(sparse?.lists).toBe(steps);
        if (made.backend instanceof FakeDevice) expect(made.backend.faults).toEqual([]);
      });
    }
  }

  test("of a plan without spans: the prompt's first tokens are forced", async () => {
    const made = worldOf();
    const message = submitted("r", { rectifyTokens: 0 }, { of: { question: countUp(5, 30) } });
    made.world.engine.submit(message);
    await made.world.settle();
    expect(made.world.tokensOf("r")).toEqual(sparseAnswer(message, made.backend.shape, tailTokens).tokenIds);
  });

  test("with room for the whole context are dense ones", async () => {
    const made = worldOf({ pipelined: true });
    const message = submitted("r", { tokens: 200, rectifyTokens: 0 });
    made.world.engine.submit(message);
    await made.world.settle();
    expect(made.world.tokensOf("r")).toEqual([...denseAnswer(message, made)]);
    expect(made.world.finishedOf("r").sparse).toMatchObject({ steps: 59, denseSteps: 1 });
  });

  test("beside dense ones: each as if it were alone", async () => {
    const made = worldOf({ pipelined: true });
    const messages = [submitted("a"), submitted("b", { tokens: 9 }), submitted("d", {}, { maxTokens: 20 })];
    const dense = submitPlan("c", { question: countUp(30, 12) }, { params: { maxTokens: 40, ignoreEos: true } });
    for (const message of [...messages.slice(0, 2), dense]) made.world.engine.submit(message);
    await made.world.settle();
    made.world.engine.submit(messages[2]);
    await made.world.settle();
    for (const message of messages) {
      const { tokenIds } = sparseAnswer(message, made.backend.shape, tailTokens);
      expect(made.world.tokensOf(message.requestId)).toEqual(tokenIds);
    }
    expect(made.world.tokensOf("c")).toEqual([...denseAnswer(dense, made)]);
    expect(made.world.finishedOf("c").sparse).toBeUndefined();
  });

  test("modes that look at earlier queries are told of the prompt's end, others of nothing before they choose", async () => {
    for (const [mode, told] of [
      ["last", [[choiceFlags.fresh | choiceFlags.watch], [choiceFlags.stale], [0]]],
      ["now", [undefined, [choiceFlags.fresh], [0]]],
    ] as const) {
      const flags: (number[] | undefined)[] = [];
      const made = worldOf({ onForward: ({ choices }) => void flags.push(choices && [...choices.flags]) });
      made.world.engine.submit(submitted("r", { mode, rectifyTokens: 0 }, { maxTokens: 3 }));
      await made.world.settle();
      expect(flags).toEqual(told.map((flag) => flag && [...flag]));
    }
  });

  test("modes that look at earlier queries are told of every row", async () => {
    for (const mode of ["ahead", "tova"] as const) {
      const made = worldOf({ pipelined: true, limits: { mostCost: 0.9 } });
      made.world.engine.submit(submitted("r", { mode, rectifyTokens: 5 }));
      await made.world.settle();
      expect(made.world.tokensOf("r")).toHaveLength(60);
      expect(made.backend instanceof FakeDevice && made.backend.faults).toEqual([]);
      expect(made.world.finishedOf("r").sparse?.steps).toBeGreaterThan(0);
    }
  });
});

describe("when rows choose", () => {
  const stepsOf = async (limits: Options["limits"], messages: readonly SubmitMessage[]) => {
    const { world } = worldOf({ limits, shape: { blockCount: 128 } });
    for (const message of messages) world.engine.submit(message);
    await world.settle();
    return messages.map(({ requestId }) => world.finishedOf(requestId).sparse?.steps);
  };

  test("from so many tokens of context on, and before that as if nothing had been asked", async () => {
    const made = worldOf({ limits: { fromTokens: 100 } });
    const [short, long] = [submitted("short"), submitted("long", {}, { of: { ...parts, question: countUp(3, 60) } })];
    for (const message of [short, long]) made.world.engine.submit(message);
    await made.world.settle();
    // 35 tokens of prompt and 60 of answer; 86 and 60, of which the row that makes it 100 is the fourteenth.
    expect(made.world.finishedOf("short").sparse).toMatchObject({ steps: 0, denseSteps: 60, lists: 0 });
    expect(made.world.tokensOf("short")).toEqual([...denseAnswer(short, made)]);
    expect(made.world.finishedOf("long").sparse).toMatchObject({ steps: 59 - 13, denseSteps: 14 });
  });

  test("while there are no more tokens to choose from than the backend counts", async () => {
    // 26 tokens of what the question sees, and of 10 to 68 own ones all but a tail of 8 to 11.
    for (const [mostCandidates, steps] of [
      [86, 59],
      [60, 34],
      [20, 0],
    ] as const) {
      const { world } = worldOf({ mostCandidates });
      world.engine.submit(submitted("r", { rectifyTokens: 0 }));
      await world.settle();
      expect(world.finishedOf("r").sparse?.steps).toBe(steps);
    }
  });

  test("where that reads less than the row alone adds: not over what others read", async () => {
    const long = { of: { spans: [countUp(1, 96)], question: countUp(60, 3) } };
    const other = { of: { spans: [countUp(2, 96)], question: countUp(60, 3) } };
    const tokens = 16;
    expect(await stepsOf({ mostCost: 0.8 }, [submitted("a", { tokens }, long)])).toEqual([59]);
    expect(
      await stepsOf({ mostCost: 0.8 }, [submitted("a", { tokens }, long), submitted("b", { tokens }, long)]),
    ).toEqual([0, 0]);
    expect(
      await stepsOf({ mostCost: 0.8 }, [submitted("a", { tokens }, long), submitted("b", { tokens }, other)]),
    ).toEqual([59, 59]);
    expect(await stepsOf({ mostCost: 0.8 }, [submitted("a", { tokens: 80 }, long)])).toEqual([0]);
  });

  test("it is asked again after some tokens, when the other reader has gone", async () => {
    const long = { of: { spans: [countUp(1, 96)], question: countUp(60, 3) } };
    const messages = [submitted("a", { tokens: 16 }, long), submitted("b", { tokens: 16 }, { ...long, maxTokens: 12 })];
    const [steps] = await stepsOf({ mostCost: 0.8 }, messages);
    expect(steps).toBeWithin(59 - 12 - askTokens - 1, 59 - 12 + 1);
  });
});

describe("keys", () => {
  test("are of exact KV alone, and what was rectified has them", async () => {
    for (const pipelined of [false, true]) {
      for (const rectifyTokens of [0, 16]) {
        const made = worldOf({ pipelined });
        const message = submitted("r", { rectifyTokens });
        made.world.engine.submit(message);
        await made.world.settle();
        const { tokenIds, exactTokens } = sparseAnswer(message, made.backend.shape, tailTokens);
        const open = makeRuns(parts, true)[3];
        const keys = chainKeys(open.rootKey, Int32Array.from([...open.tokenIds, ...tokenIds]));
        const kept = Math.floor(exactTokens / blockTokens);
        expect(kept).toBe(rectifyTokens === 0 ? 2 : Math.floor((9 + 48) / 4));
        const resident = new Set(residentKeys(made.world.engine));
        expect(keys.map((key) => resident.has(key))).toEqual(keys.map((_, index) => index < kept));
      }
    }
  });

  test("a chain that others read is computed anew first, whatever it ends with", async () => {
    for (const pipelined of [false, true]) {
      for (const rectifyTokens of [0, 16]) {
        const made = worldOf({ pipelined });
        const plain = submitted("r", { rectifyTokens }, { maxTokens: 30 });
        const [stop] = sparseAnswer(plain, made.backend.shape, tailTokens).tokenIds.slice(22);
        for (const stopTokenIds of [[], [stop]]) {
          const params = { ...plain.params, stopTokenIds };
          const closeTokenIds = countUp(90, 3);
          const message = { ...plain, requestId: `r${stopTokenIds.length}`, params, closeTokenIds };
          made.world.engine.submit(message);
          await made.world.settle();
          const tokenIds = made.world.tokensOf(message.requestId);
          expect(tokenIds.length).toBe(stopTokenIds.length === 0 ? 30 : tokenIds.length);
          const { sparse } = made.world.finishedOf(message.requestId);
          const computed = tokenIds.length - (stopTokenIds.length === 0 ? 1 : 0);
          expect(sparse?.rectifiedTokens).toBe(rectifyTokens === 0 ? computed : sparse?.rectifiedTokens);
          await assertExact(made, [...tokenIds, ...closeTokenIds]);
        }
      }
    }
  });

  /** Every block of the answer is found, and holds what a dense chain would have put there. */
  async function assertExact({ world, backend }: ReturnType<typeof worldOf>, answer: readonly number[]): Promise<void> {
    const [, , , open] = makeRuns(parts, true);
    const chain = Int32Array.from([...open.tokenIds, ...answer]);
    const keys = chainKeys(open.rootKey, chain);
    const dense = new FakeBackend(backend.shape);
    const whole = new TinyWorld({ backend: dense, limits: { stepTokens: 64 } });
    whole.engine.submit(submitPlan("w", { ...parts, question: chain }, { params: { maxTokens: 0 } }));
    await whole.settle();
    for (const key of keys) {
      const [mine, theirs] = [world, whole].map(({ engine }) => engine.cache.blockOf(key));
      expect(mine).toBeDefined();
      expect(backend.contentOf(mine as number).states).toEqual(dense.contentOf(theirs as number).states);
    }
  }
});

describe("what it holds", () => {
  test("a seat and a buffer, until the request ends", async () => {
    const { world } = worldOf();
    const long = submitted("r", { tokens: 20, rectifyTokens: 0 });
    world.engine.submit(long);
    for (let i = 0; i < 3; i++) await world.step();
    // 3 + 3 + 2 blocks of the prompt, 3 of the question and what is drawn, and 4 + 2 + 2 + 20 tokens of a buffer.
    expect(world.engine.stats().usedBlocks).toBe(3 + 3 + 2 + 3 + 7);
    world.engine.abort("r");
    expect(world.engine.stats().usedBlocks).toBe(0);
    expect(world.finishedOf("r").sparse).toMatchObject({ steps: 2, denseSteps: 1, lists: 2 });
  });

  test("who finds no seat reads all, and gets one when it is free", async () => {
    const made = worldOf({ seats: 1 });
    const [first, second] = [submitted("a", {}, { maxTokens: 20 }), submitted("b")];
    for (const message of [first, second]) made.world.engine.submit(message);
    await made.world.settle();
    expect(made.world.finishedOf("a").sparse?.steps).toBe(19);
    expect(made.world.finishedOf("b").sparse?.steps).toBeWithin(59 - 20 - askTokens - 1, 59 - 20 + 1);
  });

  test("no blocks for a buffer: dense, and nobody is preempted", async () => {
    // 11 blocks of the prompt and 15 of the answer; a buffer would be 18 more.
    const made = worldOf({ shape: { blockCount: 26 } });
    const message = submitted("r", { tokens: 64 });
    made.world.engine.submit(message);
    await made.world.settle();
    expect(made.world.finishedOf("r").sparse).toMatchObject({ steps: 0, lists: 0 });
    expect(made.world.tokensOf("r")).toEqual([...denseAnswer(message, made)]);
    expect(made.world.engine.stats().preemptions).toBe(0);
  });

  test("a buffer is given up before anybody is preempted", async () => {
    for (const pipelined of [false, true]) {
      const made = worldOf({ pipelined, shape: { blockCount: 40 } });
      const sparse = submitted("s", { tokens: 30, rectifyTokens: 0 }, { of: { question: countUp(1, 20) } });
      const dense = submitPlan("d", { question: countUp(50, 20) }, { params: { maxTokens: 60, ignoreEos: true } });
      made.world.engine.submit(sparse);
      made.world.engine.submit(dense);
      await made.world.settle();
      expect(made.world.engine.stats().preemptions).toBe(0);
      expect(made.world.tokensOf("d")).toEqual([...denseAnswer(dense, made)]);
      const { steps = 0, denseSteps = 0 } = made.world.finishedOf("s").sparse ?? {};
      expect(steps).toBeGreaterThan(10);
      expect(denseSteps).toBeGreaterThan(10);
      if (made.backend instanceof FakeDevice) expect(made.backend.faults).toEqual([]);
    }
  });

  test("a preempted request loses seat and buffer, and is computed anew", async () => {
    const made = worldOf({ shape: { blockCount: 30 } });
    const prompts = [countUp(1, 30), countUp(50, 30)].map((question, i) =>
      submitted(`r${i}`, {}, { of: { question } }),
    );
    for (const message of prompts) made.world.engine.submit(message);
    await made.world.settle();
    expect(made.world.engine.stats()).toMatchObject({ usedBlocks: 0 });
    expect(made.world.engine.stats().preemptions).toBeGreaterThan(0);
    for (const { requestId } of prompts) expect(made.world.tokensOf(requestId)).toHaveLength(60);
  });

  test("a seat that nobody used yet has not the counts of who had it before", async () => {
    const { world, backend } = worldOf({ pipelined: true, seats: 1 });
    world.engine.submit(submitted("a", {}, { maxTokens: 10 }));
    await world.settle();
    const counts = backend.choiceCounts(0);
    expect(counts.lists).toBe(9);
    world.engine.submit(submitted("b"));
    for (let i = 0; i < 2; i++) await world.step();
    world.engine.abort("b");
    await world.settle();
    expect(world.finishedOf("b").sparse?.lists).toBeLessThan(9);
  });
});

test("what a worker cannot do is refused by name", () => {
  expect(() => new TinyWorld({ shape: { sparse: sparseShape }, positions: "relocate" })).toThrow("where K is moved");
  const cases: [string, Partial<SubmitMessage>, BackendShape["sparse"]?][] = [
    ["sparse.mode is now, and this worker has none", {}, undefined],
    ["sparse.mode is ahead, and this worker has now", { sparse: { mode: "ahead", tokens: 4 } }],
    ["sparse.tokens is 0", { sparse: { mode: "now", tokens: 0 } }],
    ["sparse.tokens is -3", { sparse: { mode: "now", tokens: -3 } }],
    ["sparse.refreshSteps is 0", { sparse: { mode: "now", tokens: 3, refreshSteps: 0 } }],
    ["sparse.leastCosine is 2", { sparse: { mode: "now", tokens: 3, leastCosine: 2 } }],
    ["nothing is generated", { params: { ...submitted("r").params, maxTokens: 0 } }],
  ];
  for (const [index, [message, changes]] of cases.entries()) {
    const sparse = index === 0 ? undefined : { ...sparseShape, modes: ["now"] as const };
    const world = new TinyWorld({ shape: { blockCount: 64, ...(sparse && { sparse }) } });
    const plan = changes.params === undefined ? {} : { plan: { runs: makeRuns(parts, false) } };
    world.engine.submit({ ...submitted("r"), ...plan, ...changes });
    expect(world.failedOf("r")).toMatchObject({ code: "bad_plan" });
    expect(world.failedOf("r")?.message).toContain(message);
  }
});
