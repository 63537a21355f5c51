/** A backend that draws tokens itself: the same answers, and what is wrong with a draw ends its request alone. */
import { describe, expect, test } from "bun:test";
import { DeviceLost } from "../../worker/backend/backend.ts";
import type { Batch } from "../../worker/contract/batch.ts";
import type { WorkerMessage } from "../../worker/contract/messages.ts";
import { type SampledToken, type SampleRequest, Sampler } from "../../worker/sample/sampler.ts";
import { FakeBackend } from "../support/fake-backend.ts";
import { eosTokenIds, TinyWorld } from "./harness.ts";
import { countUp, submitPlan } from "./plans.ts";
import { referenceAnswer } from "./reference.ts";

/** The fake, drawing where its logits are. `spoil` changes what comes back. */
class DrawingBackend extends FakeBackend {
  drawnRows = 0;
  forwards = 0;
  spoil: (tokens: (SampledToken | undefined)[]) => (SampledToken | undefined)[] = (tokens) => tokens;
  private readonly sampler = new Sampler(this.shape.vocabSize);

  override forward(batch: Batch): Promise<Float32Array> {
    this.forwards += 1;
    return super.forward(batch);
  }

  async sampleStep(batch: Batch, requests: readonly SampleRequest[]): Promise<readonly (SampledToken | undefined)[]> {
    const { vocabSize } = this.shape;
    const logits = await super.forward(batch);
    expect(requests).toHaveLength(batch.logitRows.length);
    this.drawnRows += requests.length;
    const rowOf = (row: number) => logits.subarray(row * vocabSize, (row + 1) * vocabSize);
    return this.spoil(requests.map((request, row) => this.sampler.sample(rowOf(row), request)));
  }
}

const sampling = {
  temperature: 0.8,
  topP: 0.9,
  topK: 20,
  presencePenalty: 0.5,
  topLogprobs: 2,
  seed: 7,
};
const parts = { system: countUp(1, 5), spans: [countUp(20, 6)], question: countUp(60, 3) };
const longParts = { system: countUp(1, 24), spans: [], question: countUp(60, 3) };

function worldOf(options: { hostSampling?: boolean } = {}): { world: TinyWorld; backend: DrawingBackend } {
  const backend = new DrawingBackend({ blockCount: 32 });
  return { world: new TinyWorld({ backend, ...options }), backend };
}

describe("a backend that draws tokens", () => {
  test("answers as the host's sampler does, with penalties, seeds and log-probabilities", async () => {
    const options = { params: { maxTokens: 6 }, sampling };
    const answers: WorkerMessage[][] = [];
    for (const hostSampling of [false, true]) {
      const { world, backend } = worldOf({ hostSampling });
      world.engine.submit(submitPlan("a", parts, options));
      world.engine.submit(submitPlan("b", longParts, options));
      await world.settle();
      answers.push(world.messages.filter((message) => message.type === "tokens"));
      for (const [name, of] of [["a", parts] as const, ["b", longParts] as const]) {
        const expected = referenceAnswer(submitPlan(name, of, options), backend.shape, eosTokenIds);
        expect(world.tokensOf(name)).toEqual(expected.tokenIds);
      }
      expect(backend.drawnRows > 0).toBe(!hostSampling);
      expect(backend.forwards > 0).toBe(hostSampling);
    }
    expect(answers[0].some((message) => message.type === "tokens" && message.logprobs !== undefined)).toBe(true);
    expect(answers[1]).toEqual(answers[0]);
  });

  test("steps that draw nothing go through forward", async () => {
    const { world, backend } = worldOf();
    world.engine.submit(submitPlan("chunked", longParts, { params: { maxTokens: 1 } }));
    await world.step();
    expect([backend.forwards, backend.drawnRows]).toEqual([1, 0]);
    await world.settle();
    expect([backend.forwards, backend.drawnRows]).toEqual([1, 1]);
  });

  test("a row without a token fails its request, and what it read is forgotten", async () => {
    const { world, backend } = worldOf();
    backend.spoil = ([first, ...rest]) => [undefined, ...rest.map((token) => token ?? first)];
    world.engine.submit(submitPlan("bad", parts, { params: { maxTokens: 1 } }));
    world.engine.submit(submitPlan("good", longParts, { params: { maxTokens: 1 } }));
    await world.settle();
    expect(world.failedOf("bad")).toMatchObject({ code: "internal", message: expect.stringContaining("NaN") });
    backend.spoil = (tokens) => tokens;
    world.engine.submit(submitPlan("again", parts, { params: { maxTokens: 1 } }));
    await world.settle();
    expect(world.finishedOf("again").usage.cachedTokens).toBe(0);
  });

  test("a wrong number of tokens fails the step", async () => {
    const { world, backend } = worldOf();
    backend.spoil = (tokens) => [...tokens, ...tokens];
    world.engine.submit(submitPlan("x", parts, { params: { maxTokens: 1 } }));
    await world.settle();
    expect(world.failedOf("x")?.message).toBe("a step failed: 2 tokens came back, not 1");
  });

  test("a device that is lost ends the engine, and nobody is told of a failure", async () => {
    const { world, backend } = worldOf();
    backend.spoil = () => {
      throw new DeviceLost("gone");
    };
    world.engine.submit(submitPlan("x", parts, { params: { maxTokens: 1 } }));
    await expect(world.engine.run()).rejects.toThrow("gone");
    expect(world.messages.filter(({ type }) => type === "failed" || type === "finished")).toEqual([]);
  });

  test("a request that ends while its token is drawn is passed over", async () => {
    const { world, backend } = worldOf();
    backend.spoil = (tokens) => {
      world.engine.abort("gone");
      return tokens;
    };
    world.engine.submit(submitPlan("gone", parts, { params: { maxTokens: 4 } }));
    await world.settle();
    expect(world.tokensOf("gone")).toEqual([]);
    expect(world.finishedOf("gone").reason).toBe("abort");
  });
});
