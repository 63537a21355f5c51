/** Steps begun while the one before runs: the same answers as one after the other, and nothing given away too early. */
import { describe, expect, test } from "bun:test";
import { DeviceLost } from "../../worker/backend/backend.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { SubmitMessage } from "../../worker/contract/messages.ts";
import { residentKeys } from "../support/resident-keys.ts";
import { eosTokenIds, type TinyWorld } from "./harness.ts";
import { pipelinedWorld as worldOf } from "./pipelined-world.ts";
import {
  blendRuns,
  blockTokens,
  countUp,
  makeRuns,
  type PlanParts,
  type SubmitOptions,
  submitPlan,
  submitRuns,
} from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

const long = { params: { maxTokens: 12, ignoreEos: true } };
const parts: PlanParts = { system: countUp(1, 5), spans: [countUp(20, 6)], question: countUp(60, 9) };

function answerOf(message: ReturnType<typeof submitPlan>, { world }: { world: TinyWorld }): readonly number[] {
  return referenceAnswer(message, world.backend.shape, eosTokenIds).tokenIds;
}

describe("a step in flight", () => {
  test("rows take the token that is being drawn; the longest answer computes no row more", async () => {
    const rows: number[][] = [];
    for (const pipelined of [true, false]) {
      const made = worldOf({ pipelined });
      made.world.engine.submit(submitPlan("r", parts, long));
      await made.world.settle();
      expect(made.world.tokensOf("r")).toEqual([...answerOf(submitPlan("r", parts, long), made)]);
      rows.push([made.device.rowCount, made.device.stepCount, made.device.namedRows]);
    }
    expect(rows).toEqual([
      [5 + 6 + 9 + 11, 12, 11],
      [5 + 6 + 9 + 11, 12, 0],
    ]);
  });

  test("the end of the context is known ahead too", async () => {
    const made = worldOf({ contextTokens: 24 });
    const endless = { params: { maxTokens: 100, ignoreEos: true } };
    made.world.engine.submit(submitPlan("r", parts, endless));
    await made.world.settle();
    expect(made.world.tokensOf("r")).toHaveLength(4);
    expect(made.device.rowCount).toBe(20 + 3);
  });

  test("a stop token drops the row that went on from it, and frees its blocks when that step is done", async () => {
    const made = worldOf();
    const { world, device } = made;
    const [, , stop] = answerOf(submitPlan("r", parts, long), made);
    world.engine.submit(submitPlan("r", parts, { params: { ...long.params, stopTokenIds: [stop] } }));
    world.engine.submit(submitPlan("other", { question: countUp(30, 3) }, long));
    for (let i = 0; i < 3; i++) await world.step();
    expect(world.finishedOf("r")).toMatchObject({ reason: "stop", usage: { completionTokens: 3 } });
    const held = world.engine.stats().usedBlocks;
    await world.step();
    expect(held - world.engine.stats().usedBlocks).toBe(2 + 2 + 3);
    await world.settle();
    expect(world.tokensOf("r")).toHaveLength(2);
    expect(world.tokensOf("other")).toEqual([
      ...answerOf(submitPlan("other", { question: countUp(30, 3) }, long), made),
    ]);
    expect(device.rowCount).toBe(20 + 3 + 3 + 11);
  });

  test("an abort ends the request at once; its blocks come back when the steps that have them are done", async () => {
    for (let steps = 1; steps < 6; steps++) {
      const { world, device } = worldOf();
      world.engine.submit(submitPlan("r", parts, long));
      for (let i = 0; i < steps; i++) await world.step();
      const emitted = world.tokensOf("r").length;
      world.engine.abort("r");
      world.engine.checkInvariants();
      expect(world.finishedOf("r").reason).toBe("abort");
      expect(world.engine.stats()).toMatchObject({ runningRequests: 0, usedBlocks: steps < 4 ? 7 : 8 });
      world.engine.submit(submitPlan("next", { spans: [countUp(1, 120)] }, { params: { maxTokens: 0 } }));
      await world.settle();
      expect(world.tokensOf("r")).toHaveLength(emitted);
      expect(world.finishedOf("next").reason).toBe("prepared");
      expect(device.faults).toEqual([]);
    }
  });

  test("an abort while both steps are in flight", async () => {
    const { world, device } = worldOf({
      onForward: () => {
        if (device.stepCount === 3) world.engine.abort("r");
      },
    });
    world.engine.submit(submitPlan("r", parts, long));
    await world.settle();
    expect(world.tokensOf("r")).toHaveLength(3);
    expect(world.engine.stats()).toMatchObject({ usedBlocks: 0, steps: 5 });
    expect(device.faults).toEqual([]);
  });

  test("what is in flight is computed by nobody else, and found when it is done", async () => {
    const { world, device } = worldOf({ stepTokens: 8 });
    const prepared = { params: { maxTokens: 0 } };
    world.engine.submit(submitPlan("a", { spans: [countUp(20, 24)] }, prepared));
    world.engine.submit(submitPlan("b", { spans: [countUp(20, 24), countUp(50, 2)] }, prepared));
    await world.step();
    const kept = residentKeys(world.engine).length;
    await world.settle();
    expect(world.finishedOf("b").usage).toMatchObject({ cachedTokens: 24, cacheWriteTokens: 2 });
    expect(kept).toBe(8 / 4);
    expect(device.rowCount).toBe(26);
    expect(device.stepsAhead).toBeGreaterThan(0);
  });
});

describe("the step waits", () => {
  const cases: Record<string, SubmitOptions> = {
    "for a draw that depends on the tokens before it": { ...long, sampling: { frequencyPenalty: 0.5 } },
    "for nothing when a bias is the same at every token": { ...long, sampling: { logitBias: [[7, 3]] } },
  };
  for (const [name, options] of Object.entries(cases)) {
    test(name, async () => {
      const made = worldOf();
      made.world.engine.submit(submitPlan("r", parts, options));
      await made.world.settle();
      expect(made.world.tokensOf("r")).toEqual([...answerOf(submitPlan("r", parts, options), made)]);
      expect(made.device.namedRows > 0).toBe(options.sampling?.logitBias !== undefined);
    });
  }

  test("for blended runs, whose copies and probes are calls of their own", async () => {
    const { world, device } = worldOf();
    const runs = blendRuns([{ copied: countUp(1, 6) }, { copied: countUp(30, 5) }], {
      recomputeRatio: 0.5,
      question: countUp(60, 3),
    });
    world.engine.submit(
      submitPlan("stream", { question: countUp(80, 4) }, { params: { maxTokens: 20, ignoreEos: true } }),
    );
    await world.step();
    const before = device.namedRows;
    world.engine.submit(submitRuns("r", runs, long));
    await world.settle();
    expect(world.tokensOf("r")).toEqual(
      referenceAnswer(submitRuns("r", runs, long), device.shape, eosTokenIds).tokenIds,
    );
    expect(device.namedRows).toBeGreaterThan(before);
    expect(device.faults).toEqual([]);
  });

  test("rather than take blocks from a request that is in flight", async () => {
    const made = worldOf({ blockCount: 8 });
    const all = { params: { maxTokens: 24, ignoreEos: true } };
    const prompts = { a: { question: countUp(1, 8) }, b: { question: countUp(20, 8) } };
    for (const [name, prompt] of Object.entries(prompts)) made.world.engine.submit(submitPlan(name, prompt, all));
    await made.world.settle();
    expect(made.world.engine.stats().preemptions).toBeGreaterThan(0);
    expect(made.device.faults).toEqual([]);
    for (const [name, prompt] of Object.entries(prompts)) {
      expect(made.world.tokensOf(name)).toEqual([...answerOf(submitPlan(name, prompt, all), made)]);
    }
  });

  test("for a block that lies below another tenant's floor, which rose while the step was planned", async () => {
    const made = worldOf({ blockCount: 24, stepTokens: 128 });
    const { world, device } = made;
    const submit = (message: SubmitMessage, owner: number): void => {
      const owners = { owners: [{ number: owner }], ofRun: new Uint16Array(message.plan.runs.length) };
      world.engine.submit({ ...message, owners });
    };
    const prepared = { params: { maxTokens: 0 } };
    submit(submitPlan("other", { question: countUp(1, 6 * blockTokens) }, prepared), 2);
    const evicted = submitPlan("evicted", { question: countUp(40, blockTokens) }, prepared);
    submit(evicted, 3);
    await world.settle();
    // Both fill the 17 blocks that are left, and lack one each for the third token that they draw.
    const first = submitPlan("first", { question: countUp(10, 8 * blockTokens - 1) }, long);
    const second = submitPlan("second", { question: countUp(50, 9 * blockTokens - 1) }, long);
    submit(first, 1);
    submit(second, 1);
    await world.step();
    // The floor is 5.5 blocks while three tenants hold 6, 1 and 17 of 24, and 6 when the first request takes a block:
    // then the 6 free blocks that are left are all below the other tenant's floor.
    world.engine.evict(evicted.plan.runs[0].blockKeys);
    await world.step();
    expect(world.engine.stats()).toMatchObject({ preemptions: 0, runningRequests: 2, usedBlocks: 18 });
    // The step that holds the first request alone is done, and then nothing is in flight.
    await world.step();
    expect(world.engine.stats().preemptions).toBe(0);
    await world.step();
    expect(world.engine.stats()).toMatchObject({ preemptions: 1, runningRequests: 1 });
    await world.settle();
    for (const message of [first, second]) {
      expect(world.tokensOf(message.requestId)).toEqual([...answerOf(message, made)]);
    }
    expect(device.faults).toEqual([]);
  });

  test("for nothing when all it would bring is the end of a request that outgrew the pool", async () => {
    const outgrowing = { spans: [countUp(20, 12), countUp(20, 12)], question: countUp(60, 1) };
    for (let maxTokens = 8; maxTokens < 14; maxTokens++) {
      const { world } = worldOf({ blockCount: 8 });
      world.engine.submit(submitPlan("a", { question: countUp(70, 1) }, { params: { maxTokens, ignoreEos: true } }));
      world.engine.submit(submitPlan("b", outgrowing, { params: { maxTokens: 60, ignoreEos: true } }));
      await world.settle();
      expect(world.finishedOf("a").usage.completionTokens).toBe(maxTokens);
      expect(world.finishedOf("b").reason).toBe("length");
    }
  });

  test("behind a long step, so that who comes meanwhile is in the next one", async () => {
    for (const [promptTokens, stepsAhead] of [
      [513, 0],
      [512, 1],
    ] as const) {
      const { world, device } = worldOf({ blockCount: 300, contextTokens: 2_048, stepTokens: 1_024 });
      world.engine.submit(submitPlan("r", { question: countUp(1, promptTokens) }, long));
      await world.step();
      expect(device.stepsAhead).toBe(stepsAhead);
      await world.settle();
      expect(world.tokensOf("r")).toHaveLength(12);
    }
  });
});

describe("failures", () => {
  test("a draw that fails ends its request alone; the row that went on from it is dropped", async () => {
    const made = worldOf();
    const { world, device } = made;
    device.spoil = (draws) => (device.stepCount === 3 ? [undefined, ...draws.slice(1)] : draws);
    world.engine.submit(submitPlan("bad", parts, long));
    world.engine.submit(submitPlan("good", { question: countUp(30, 3) }, long));
    await world.settle();
    expect(world.failedOf("bad")?.message).toContain("sampling failed");
    expect(world.tokensOf("bad")).toHaveLength(2);
    expect(world.tokensOf("good")).toEqual([...answerOf(submitPlan("good", { question: countUp(30, 3) }, long), made)]);
    const kept = makeRuns(parts, true).flatMap((run) => run.blockKeys);
    expect(residentKeys(world.engine).filter((key) => kept.includes(key))).toEqual([]);
  });

  for (const moment of ["begins", "is computed"] as const) {
    test(`a step that fails when it ${moment} fails what runs, and what was begun behind it is nothing`, async () => {
      const fail = (batch: Batch): void => {
        if (batch.positions.includes(22)) throw new Error("injected");
      };
      const { world, device } = worldOf(moment === "begins" ? { onBegin: fail } : { onForward: fail });
      world.engine.submit(submitPlan("r", parts, long));
      await world.settle();
      expect(world.failedOf("r")?.message).toBe("a step failed: injected");
      // Of positions 20, 21 and 22 the first two were computed; the last one's token was drawn with the second.
      expect(world.tokensOf("r")).toHaveLength(3);
      expect(world.engine.stats().usedBlocks).toBe(0);
      world.engine.submit(submitPlan("next", { question: countUp(30, 3) }, { params: { maxTokens: 2 } }));
      await world.settle();
      expect(world.finishedOf("next").reason).toBe("length");
      expect(device.faults).toEqual([]);
    });
  }

  test("a device that is lost with a step behind it ends the engine, and nobody is told of a failure", async () => {
    const { world } = worldOf({
      onForward: (batch) => {
        if (batch.positions.includes(22)) throw new DeviceLost("gone");
      },
    });
    world.engine.submit(submitPlan("r", parts, long));
    await expect(world.engine.run()).rejects.toThrow("gone");
    expect(world.messages.filter(({ type }) => type === "failed" || type === "finished")).toEqual([]);
  });

  test("evicted keys do not come back from steps in flight", async () => {
    const { world } = worldOf({ stepTokens: 8 });
    world.engine.submit(submitPlan("r", parts, long));
    await world.step();
    const keys = makeRuns(parts, true).flatMap((run) => run.blockKeys);
    world.engine.evict(keys);
    await world.settle();
    expect(world.finishedOf("r").reason).toBe("length");
    expect(residentKeys(world.engine)).toEqual([]);
  });
});

test("drain and stop wait for nothing that a step in flight does not answer", async () => {
  const { world } = worldOf();
  const running = world.engine.run();
  world.engine.submit(submitPlan("r", parts, long));
  await world.engine.drain();
  expect(world.finishedOf("r").reason).toBe("length");
  world.engine.stop();
  await running;
});
