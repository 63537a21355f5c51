/** Each fault is named; the engine answers it as `bad_plan` and goes on. */
import { describe, expect, test } from "bun:test";
import type { PlanRun, SubmitMessage } from "../../worker/contract/messages.ts";
import { planFault } from "../../worker/contract/validate.ts";
import { TinyWorld } from "../engine/harness.ts";
import { blendRuns, countUp, makeRuns, submitRuns } from "../engine/plans.ts";
import { fakeShape } from "../support/fake-backend.ts";
import { fc } from "../support/fast-check.ts";

const parts = { system: countUp(1, 5), spans: [countUp(20, 6)], question: countUp(60, 5) };
const runs = makeRuns(parts, true);
const good = submitRuns("r", runs);

function withRun(index: number, change: Record<string, unknown>): SubmitMessage {
  return submitRuns(
    "r",
    runs.map((run, i) => (i === index ? ({ ...run, ...change } as PlanRun) : run)),
  );
}

function withSegment(change: Record<string, unknown>): SubmitMessage {
  return withRun(2, { sees: [runs[2].sees[0], { ...runs[2].sees[1], ...change }] });
}

function withClosing(closeTokenIds: unknown): unknown {
  return { ...good, closeTokenIds };
}

const blended = blendRuns([{ plain: countUp(1, 3) }, { copied: countUp(20, 6) }, { copied: countUp(40, 4) }], {
  recomputeRatio: 0.5,
  question: countUp(60, 5),
});

function withBlend(change: Record<string, unknown>): SubmitMessage {
  const blend = { ...blended[2].blend, ...change } as PlanRun["blend"];
  return submitRuns(
    "r",
    blended.map((run, i) => (i === 2 ? ({ ...run, blend } as PlanRun) : run)),
  );
}

function withCopy(change: Record<string, unknown>): SubmitMessage {
  const [first, second] = blended[2].blend?.copies ?? [];
  return withBlend({ copies: [first, { ...second, ...change }] });
}

function withParams(change: Record<string, unknown>): SubmitMessage {
  return { ...good, params: { ...good.params, ...change } };
}

function withSampling(change: Record<string, unknown>): SubmitMessage {
  return withParams({ sampling: { ...good.params.sampling, ...change } });
}

const faults: readonly [name: string, message: unknown, fault: string][] = [
  ["no plan", { ...good, plan: undefined }, "the message is malformed"],
  ["no runs", submitRuns("r", []), "plan.runs is empty"],
  ["runs not a list", { ...good, plan: { runs: "no" } }, "plan.runs is not a list"],
  ["too many runs", submitRuns("r", new Array(4_097).fill(runs[0])), "plan.runs has 4097 entries, more than 4096"],
  ["empty id", { ...good, requestId: "" }, "requestId is not a string of 1 to 64 characters"],
  ["long id", { ...good, requestId: "x".repeat(65) }, "requestId is not a string"],
  ["reuse missing", { ...good, reuse: undefined }, "reuse is not true or false"],
  ["kind", withRun(0, { kind: "other" }), 'plan.runs[0].kind is neither "span" nor "main"'],
  ["token list type", withRun(0, { tokenIds: [1, 2, 3, 4, 5] }), "plan.runs[0].tokenIds is not an Int32Array"],
  ["no tokens", withRun(0, { tokenIds: new Int32Array(0) }), "plan.runs[0].tokenIds is empty"],
  ["token id", withRun(0, { tokenIds: Int32Array.of(1, 97, 3, 4, 5) }), "a token id of plan.runs[0] is 97"],
  ["negative token id", withRun(0, { tokenIds: Int32Array.of(-1) }), "a token id of plan.runs[0] is -1"],
  ["position", withRun(0, { position: -1 }), "plan.runs[0].position is -1"],
  ["fraction", withRun(0, { position: 0.5 }), "plan.runs[0].position is 0.5"],
  ["context", withRun(2, { position: 254 }), "ends at position 259, past the context of 256 tokens"],
  ["keys of a closed run", withRun(1, { blockKeys: runs[1].blockKeys.slice(1) }), "has 1 block keys, not 2"],
  ["keys of an open run", withRun(2, { blockKeys: runs[1].blockKeys }), "has 2 block keys, not 1"],
  ["malformed key", withRun(2, { blockKeys: ["short"] }), "a block key of plan.runs[2] is malformed"],
  ["root key", withRun(2, { rootKey: undefined }), "a block key of plan.runs[2] is malformed"],
  ["sees itself", withSegment({ run: 2 }), "plan.runs[2].sees[1].run is 2, not an integer from 0 to 1"],
  ["sees past a run", withSegment({ tokenCount: 7 }), "sees[1].tokenCount is 7, not an integer from 1 to 6"],
  ["sees nothing", withSegment({ tokenCount: 0 }), "sees[1].tokenCount is 0"],
  ["starts past a run", withSegment({ firstToken: 6 }), "sees[1].firstToken is 6, not an integer from 0 to 5"],
  ["sees what comes later", withSegment({ offset: 6 }), "ends at position 12, after the run that sees it begins"],
  ["sees before the start", withSegment({ offset: -1 }), "stands before position 0"],
  ["offset", withSegment({ offset: 256 }), "sees[1].offset is 256, not an integer from -255 to 255"],
  ["closing tokens' type", withClosing([1]), "closeTokenIds is not an Int32Array"],
  ["a closing token", withClosing(Int32Array.of(97)), "a token id of closeTokenIds is 97"],
  [
    "too many closing tokens",
    withClosing(new Int32Array(5)),
    "length of closeTokenIds is 5, not an integer from 0 to 4",
  ],
  [
    "closing what is only prepared",
    { ...submitRuns("r", makeRuns(parts, false), { params: { maxTokens: 0 } }), closeTokenIds: Int32Array.of(1) },
    "closeTokenIds are given, but nothing is generated",
  ],
  [
    "no room to close",
    { ...withRun(2, { position: 247 }), closeTokenIds: Int32Array.of(1, 2, 3, 4) },
    "a generated token and closeTokenIds end at position 257, past the context of 256 tokens",
  ],
  ["blending an open run", withRun(2, { blend: { recomputeRatio: 0, copies: [] } }), "blend is of an open run"],
  ["blend of nothing", withRun(0, { blend: null }), "the message is malformed"],
  ["ratio", withBlend({ recomputeRatio: Number.NaN }), "plan.runs[2].blend.recomputeRatio is NaN, not a number from 0"],
  ["ratio above 1", withBlend({ recomputeRatio: 1.01 }), "blend.recomputeRatio is 1.01"],
  ["copies not a list", withBlend({ copies: "all" }), "plan.runs[2].blend.copies is not a list"],
  ["copies itself", withCopy({ run: 2 }), "blend.copies[1].run is 2, not an integer from 0 to 1"],
  ["copies past a run", withCopy({ tokenCount: 5 }), "copies[1].tokenCount is 5, not an integer from 1 to 4"],
  ["copies from past a run", withCopy({ firstToken: 4 }), "copies[1].firstToken is 4, not an integer from 0 to 3"],
  ["copies overlap", withCopy({ at: 8 }), "copies[1].at is 8, not an integer from 9 to 9"],
  ["copies past the end", withCopy({ at: 10 }), "copies[1].at is 10, not an integer from 9 to 9"],
  ["copies other tokens", withCopy({ run: 0 }), "blend.copies[1] copies another token than stands at 9"],
  ["maxTokens", withParams({ maxTokens: -1 }), "maxTokens is -1"],
  ["minTokens", withParams({ minTokens: 5 }), "minTokens is 5, not an integer from 0 to 4"],
  ["request size", withParams({ maxTokens: 131_072 }), "prompt and maxTokens make 131088, more than 131072"],
  [
    "request size with what closes it",
    { ...withParams({ maxTokens: 131_056 }), closeTokenIds: Int32Array.of(1) },
    "prompt and maxTokens make 131073, more than 131072",
  ],
  ["stop tokens", withParams({ stopTokenIds: new Array(65).fill(1) }), "stopTokenIds has 65 entries"],
  ["stop token", withParams({ stopTokenIds: [97] }), "a stop token id is 97"],
  ["temperature", withSampling({ temperature: Number.NaN }), "temperature is NaN, not a number from 0 to 100"],
  ["topP", withSampling({ topP: 1.1 }), "topP is 1.1"],
  ["topK", withSampling({ topK: -1 }), "topK is -1"],
  ["minP", withSampling({ minP: "0" }), "minP is 0, not a number"],
  ["repetitionPenalty", withSampling({ repetitionPenalty: 0 }), "repetitionPenalty is 0"],
  ["presencePenalty", withSampling({ presencePenalty: Number.POSITIVE_INFINITY }), "presencePenalty is Infinity"],
  ["seed", withSampling({ seed: 2 ** 53 }), "seed is 9007199254740992"],
  ["topLogprobs", withSampling({ topLogprobs: 21 }), "topLogprobs is 21"],
  ["bias token", withSampling({ logitBias: [[97, 1]] }), "a token id of logitBias is 97"],
  ["bias", withSampling({ logitBias: [[1, Number.NaN]] }), "a bias of logitBias is NaN"],
];

describe("planFault", () => {
  test("finds nothing wrong with a good plan", () => {
    expect(planFault(good, fakeShape)).toBeUndefined();
    expect(planFault(submitRuns("r", blended), fakeShape)).toBeUndefined();
    expect(planFault(submitRuns("r", makeRuns(parts, false), { params: { maxTokens: 0 } }), fakeShape)).toBeUndefined();
  });

  test("nothing is blended where KV stays", () => {
    const shape = { ...fakeShape, blends: false } as const;
    expect(planFault(good, shape)).toBeUndefined();
    expect(planFault(submitRuns("r", blended), shape)).toBe("plan.runs[2].blend: KV in mx8 is not blended");
  });

  for (const [name, message, fault] of faults) {
    test(name, () => expect(planFault(message as SubmitMessage, fakeShape)).toContain(fault));
  }

  test("whatever a field is replaced by, submit answers and the engine goes on", async () => {
    const paths = [
      "closeTokenIds",
      "plan",
      "params",
      "reuse",
      "plan.runs",
      "plan.runs.0",
      "params.sampling",
      "params.stopTokenIds",
    ];
    for (const name of Object.keys(good.params.sampling)) paths.push(`params.sampling.${name}`);
    for (const name of Object.keys(runs[2])) paths.push(`plan.runs.2.${name}`);
    for (const name of Object.keys(runs[2].sees[1])) paths.push(`plan.runs.2.sees.1.${name}`);
    await fc.assert(
      fc.asyncProperty(fc.constantFrom(...paths), fc.anything(), async (path, value) => {
        const world = new TinyWorld();
        const broken = structuredClone(good) as unknown as Record<string, unknown>;
        const steps = path.split(".");
        const last = steps.pop() ?? "";
        const parent = steps.reduce((at, step) => at[step] as Record<string, unknown>, broken);
        parent[last] = value;
        world.engine.submit(broken as unknown as SubmitMessage);
        await world.settle();
        const ended = world.messages.some((message) => message.type === "failed" || message.type === "finished");
        expect(ended).toBe(true);
        expect(world.engine.stats().usedBlocks).toBe(0);
      }),
      { numRuns: 300 },
    );
  });

  test("an id in progress is refused", async () => {
    const world = new TinyWorld();
    world.engine.submit(good);
    world.engine.submit(good);
    expect(world.failedOf("r")).toMatchObject({ code: "bad_plan", message: expect.stringContaining("in progress") });
    await world.settle();
    expect(world.finishedOf("r").reason).toBe("length");
  });
});
