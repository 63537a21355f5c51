/** K that is moved to where it is used: answers, the moves they take, and offsets of 0. The simulation has the rest. */
import { describe, expect, test } from "bun:test";
import type { Batch, TokenCopies } from "../../worker/contract/batch.ts";
import type { PlanRun, SubmitMessage } from "../../worker/contract/messages.ts";
import { maxMoves } from "../../worker/relocation/relocating-cache.ts";
import { placesOf } from "../../worker/relocation/relocation.ts";
import { eosTokenIds, TinyWorld } from "../engine/harness.ts";
import { blendRuns, countUp, makeRuns, type PlanParts, submitPlan, submitRuns } from "../engine/plans.ts";
import { referenceAnswer } from "../engine/reference.ts";
import { FakeBackend } from "../support/fake-backend.ts";

class WatchedBackend extends FakeBackend {
  readonly launches: TokenCopies[] = [];
  readonly offsets: number[] = [];
  failingCopy = false;

  constructor(blockCount: number) {
    super({ blockCount }, (batch: Batch) => void this.offsets.push(...batch.segmentOffsets), { relative: true });
  }

  override async copyTokens(copies: TokenCopies): Promise<void> {
    if (this.failingCopy) throw new Error("injected");
    this.launches.push(structuredClone(copies));
    await super.copyTokens(copies);
  }

  /** Tokens turned in place, and tokens copied, since the last call. */
  takeMoved(): { turned: number; copied: number } {
    const places = this.launches.flatMap(({ sourceSlots, targetSlots }) =>
      Array.from(sourceSlots, (source, i) => source === targetSlots[i]),
    );
    this.launches.length = 0;
    const turned = places.filter((isInPlace) => isInPlace).length;
    return { turned, copied: places.length - turned };
  }
}

function relocatingWorld(blockCount = 64) {
  const backend = new WatchedBackend(blockCount);
  const limits = { stepTokens: 64, maxRunningRequests: 16, maxWaitingRequests: 64 };
  return { backend, world: new TinyWorld({ backend, limits, positions: "relocate" }) };
}

function expectAnswer(world: TinyWorld, message: SubmitMessage): void {
  const { tokenIds } = referenceAnswer(message, world.backend.shape, eosTokenIds, true);
  expect(world.tokensOf(message.requestId)).toEqual(tokenIds);
}

const documents = [countUp(10, 6), countUp(30, 8), countUp(50, 3)];
const parts = (order: readonly number[], question: number): PlanParts => ({
  system: countUp(1, 3),
  spans: order.map((index) => documents[index]),
  question: countUp(question, 3),
});

async function answer(world: TinyWorld, name: string, order: readonly number[]): Promise<void> {
  const message = submitPlan(name, parts(order, 60 + name.length));
  world.engine.submit(message);
  await world.settle();
  expectAnswer(world, message);
}

describe("one request after another", () => {
  test("spans are turned in place when they stand elsewhere, and left alone when they do not", async () => {
    const { world, backend } = relocatingWorld();
    await answer(world, "a", [0, 1, 2]);
    expect(backend.takeMoved()).toEqual({ turned: 0, copied: 0 });
    await answer(world, "bb", [0, 1, 2]);
    expect(backend.takeMoved()).toEqual({ turned: 0, copied: 0 });
    await answer(world, "ccc", [1, 0, 2]);
    expect(backend.takeMoved()).toEqual({ turned: 14, copied: 0 });
    expect(world.finishedOf("ccc").usage.cachedTokens).toBe(20);
    expect(new Set(backend.offsets)).toEqual(new Set([0]));
  });

  test("what is only prepared stays where it is", async () => {
    const { world, backend } = relocatingWorld();
    await answer(world, "a", [1, 0]);
    world.engine.submit(submitPlan("p", { spans: documents.slice(0, 2) }, { params: { maxTokens: 0 } }));
    await world.settle();
    expect(world.finishedOf("p").usage.cachedTokens).toBe(14);
    expect(backend.takeMoved()).toEqual({ turned: 0, copied: 0 });
  });

  test("K that was moved too often is computed again", async () => {
    const { world } = relocatingWorld();
    for (let round = 0; round <= maxMoves + 2; round++) {
      const message = submitPlan(`r${round}`, {
        system: countUp(round, 1 + round),
        spans: [documents[1]],
        question: countUp(2, 2),
      });
      world.engine.submit(message);
      await world.settle();
      expectAnswer(world, message);
      const isComputed = round === 0 || round === maxMoves + 1;
      expect(world.finishedOf(`r${round}`).usage.cachedTokens).toBe(isComputed ? 0 : 8);
    }
  });
});

describe("requests at the same time", () => {
  test("each has its own copy where the places differ, and they share where they do not", async () => {
    const { world, backend } = relocatingWorld();
    await answer(world, "a", [0, 1, 2]);
    const orders = [
      [1, 0, 2],
      [0, 1, 2],
      [2, 1, 0],
      [1, 0, 2],
      [2, 0, 1],
    ];
    const messages = orders.map((order, i) => submitPlan(`r${i}`, parts(order, 70 + i)));
    for (const message of messages) world.engine.submit(message);
    await world.step();
    // r0 turns 0 and 1 and has 2 where it was; r1 copies 0 and 1; r2 copies all; r3 shares all with r0; r4 shares 2
    // with r2 and copies 0 and 1.
    expect(backend.takeMoved()).toEqual({ turned: 14, copied: 14 + 17 + 14 });
    await world.settle();
    for (const message of messages) expectAnswer(world, message);
    expect(new Set(backend.offsets)).toEqual(new Set([0]));
    expect(world.engine.stats()).toMatchObject({ usedBlocks: 0 });
  });

  test("a span that one request computes is copied to the place of another that waited for it", async () => {
    const { world, backend } = relocatingWorld();
    const messages = [
      [0, 1],
      [1, 0],
    ].map((order, i) => submitPlan(`r${i}`, parts(order, 70 + i)));
    for (const message of messages) world.engine.submit(message);
    await world.settle();
    for (const message of messages) expectAnswer(world, message);
    expect(backend.takeMoved()).toEqual({ turned: 0, copied: 14 });
    expect(world.finishedOf("r1").usage.cachedTokens).toBe(17);
  });

  test("one request may show a span twice", async () => {
    const { world, backend } = relocatingWorld();
    await answer(world, "a", [0]);
    backend.takeMoved();
    await answer(world, "bb", [0, 1, 0]);
    expect(backend.takeMoved().copied).toBe(6);
    expect(new Set(backend.offsets)).toEqual(new Set([0]));
  });

  test("a pool that does not hold the copies makes requests wait, and all get their answers", async () => {
    const { world } = relocatingWorld(14);
    const orders = [
      [0, 1, 2],
      [1, 0, 2],
      [2, 1, 0],
      [1, 2, 0],
      [2, 0, 1],
      [0, 2, 1],
    ];
    const messages = orders.map((order, i) => submitPlan(`r${i}`, parts(order, 70 + i)));
    for (const message of messages) world.engine.submit(message);
    await world.settle();
    for (const message of messages) expectAnswer(world, message);
  });
});

test("after a move that failed nothing of it is found", async () => {
  const { world, backend } = relocatingWorld();
  await answer(world, "a", [0, 1]);
  backend.failingCopy = true;
  world.engine.submit(submitPlan("b", parts([1, 0], 70)));
  await world.settle();
  expect(world.failedOf("b")?.message).toContain("injected");
  backend.failingCopy = false;
  await answer(world, "ccc", [1, 0]);
  expect(world.finishedOf("ccc").usage.cachedTokens).toBe(3);
});

test("a blended run copies from spans that the same step moves, and that it shows elsewhere", async () => {
  const { world } = relocatingWorld();
  await answer(world, "a", [0, 1]);
  const [first, second, blended, question] = blendRuns([{ copied: documents[0] }, { copied: documents[1] }], {
    recomputeRatio: 0,
    question: countUp(80, 3),
  });
  // The question also sees the first document once more, behind the blended text.
  const again = { run: 0, firstToken: 0, tokenCount: 6, offset: 14 };
  const shown = { ...question, position: 20, sees: [...question.sees, again] };
  const message = submitRuns("b", [first, second, blended, shown]);
  world.engine.submit(message);
  await world.settle();
  expectAnswer(world, message);
});

describe("placesOf", () => {
  const run = (position: number, count: number, sees: PlanRun["sees"] = []): PlanRun => ({
    ...makeRuns({ question: countUp(1, count) }, false)[0],
    position,
    sees,
  });
  const see = (index: number, offset: number) => ({ run: index, firstToken: 0, tokenCount: 1, offset });

  test("a chain stands where the last run sees it, with what is nested in it", () => {
    const inner = run(0, 4);
    const outer = run(4, 4, [see(0, 0)]);
    expect([...placesOf([inner, outer, run(40, 3, [see(0, 10), see(1, 10)])], 64)]).toEqual([10, 10, 0]);
    expect([...placesOf([inner, outer, run(40, 3, [see(1, 10)])], 64)]).toEqual([10, 10, 0]);
  });

  test("seen at two places it stands at the last run's first", () => {
    const branches = [run(0, 4), run(4, 2, [see(0, 0)]), run(4, 2, [see(0, 0)])];
    const question = run(20, 3, [see(0, 8), see(1, 8), see(2, 10)]);
    expect([...placesOf([...branches, question], 64)]).toEqual([8, 8, 10, 0]);
  });

  test("what would stand outside of the context stays where it is", () => {
    expect([...placesOf([run(30, 4), run(40, 3, [see(0, -20)])], 64)]).toEqual([-20, 0]);
    expect([...placesOf([run(10, 4), run(40, 3, [see(0, -20)])], 64)]).toEqual([0, 0]);
    expect([...placesOf([run(10, 40), run(40, 3, [see(0, 20)])], 64)]).toEqual([0, 0]);
  });

  test("a plan that no offset below the context can tell is read from where its chains are", () => {
    const chains = [run(0, 4), run(60, 4, [see(0, 0)]), run(63, 1, [see(0, 59), see(1, -60)])];
    expect([...placesOf(chains, 64)]).toEqual([0, 0, 0]);
  });
});
