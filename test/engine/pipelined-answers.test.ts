/** Random requests, with steps one after the other and with two in flight: the same answers. */
import { expect, test } from "bun:test";
import { fc } from "../support/fast-check.ts";
import type { TinyWorld } from "./harness.ts";
import { type PipelinedOptions, pipelinedWorld as worldOf } from "./pipelined-world.ts";
import { countUp, submitPlan } from "./plans.ts";

const texts = [countUp(1, 3), countUp(1, 9), countUp(20, 4), countUp(20, 11), countUp(40, 1), countUp(40, 6)];
const requestArbitrary = fc.record({
  spans: fc.array(fc.constantFrom(...texts), { maxLength: 2 }),
  question: fc.constantFrom(...texts),
  maxTokens: fc.integer({ min: 1, max: 14 }),
  stopTokenIds: fc.constantFrom([], [5, 17, 33, 41, 60, 77, 90], [2, 3]),
  minTokens: fc.integer({ min: 0, max: 3 }),
  closing: fc.constantFrom(undefined, 0, 1, 3, 4),
  temperature: fc.constantFrom(0, 0, 1.5),
  penalty: fc.constantFrom(1, 1, 1, 1.3),
  seed: fc.integer({ min: 0, max: 3 }),
  atStep: fc.integer({ min: 0, max: 12 }),
  abortAtStep: fc.constantFrom(undefined, undefined, undefined, 4, 9),
});
type RandomRequest = typeof requestArbitrary extends fc.Arbitrary<infer Value> ? Value : never;

function messageOf(name: string, request: RandomRequest) {
  const { spans, question, maxTokens, stopTokenIds, closing, temperature, penalty, seed } = request;
  const minTokens = Math.min(request.minTokens, maxTokens);
  const message = submitPlan(
    name,
    { spans, question },
    {
      params: { maxTokens, stopTokenIds: [...stopTokenIds], minTokens },
      sampling: { temperature, seed, repetitionPenalty: penalty, topLogprobs: 1 },
    },
  );
  return closing === undefined ? message : { ...message, closeTokenIds: countUp(90, closing) };
}

async function answersOf(requests: readonly RandomRequest[], options: PipelinedOptions) {
  const made = worldOf(options);
  const { world, device } = made;
  for (let step = 0; step < 14; step++) {
    requests.forEach((request, index) => {
      if (request.atStep === step) world.engine.submit(messageOf(`r${index}`, request));
      if (request.abortAtStep === step) world.engine.abort(`r${index}`);
    });
    await world.step();
  }
  await world.settle();
  expect(device.faults).toEqual([]);
  expect(world.engine.stats()).toMatchObject({ usedBlocks: 0, runningRequests: 0, waitingRequests: 0 });
  return { ...made, preemptions: world.engine.stats().preemptions };
}

test("any requests get the same tokens, log-probabilities and ends as one step after the other", async () => {
  let [namedRows, preemptions] = [0, 0];
  const property = fc.asyncProperty(
    fc.array(requestArbitrary, { minLength: 1, maxLength: 5 }),
    fc.constantFrom(8, 12, 32),
    fc.constantFrom(7, 64),
    async (requests, blockCount, stepTokens) => {
      const plain = await answersOf(requests, { blockCount, stepTokens, pipelined: false });
      const pipelined = await answersOf(requests, { blockCount, stepTokens });
      expect(plain.device.stepsAhead).toBe(0);
      namedRows += pipelined.device.namedRows;
      preemptions += pipelined.preemptions;
      requests.forEach((request, index) => {
        const name = `r${index}`;
        const of = ({ world }: { world: TinyWorld }) =>
          world.messages.filter((message) => message.type === "tokens" && message.requestId === name);
        if (request.abortAtStep !== undefined) {
          const count = Math.min(of(plain).length, of(pipelined).length);
          expect(of(pipelined).slice(0, count)).toEqual(of(plain).slice(0, count));
          return;
        }
        expect(of(pipelined)).toEqual(of(plain));
        if (plain.world.failedOf(name) !== undefined) return;
        const [expected, got] = [plain.world.finishedOf(name), pipelined.world.finishedOf(name)];
        expect([got.reason, got.usage.completionTokens]).toEqual([expected.reason, expected.usage.completionTokens]);
      });
    },
  );
  await fc.assert(property, { numRuns: 150 });
  // Worth something only while rows do run ahead, and pools are too small for all.
  expect(namedRows).toBeGreaterThan(1_000);
  expect(preemptions).toBeGreaterThan(20);
});
