/** What a start measures of computing, before its first question weighs it against files. */
import { expect, test } from "bun:test";
import { timeDecodes, timePrompt } from "../../worker/rehearsal.ts";
import { openWorld } from "./disk-world.ts";

test("a prompt is computed twice and timed once, and nothing of it is stored", async () => {
  const { backend, engine } = openWorld();
  const { contextTokens, blockTokens, blockCount } = backend.shape;
  const longest = Math.min(512, contextTokens - 1, blockTokens * Math.floor(blockCount / 2));
  let nowMs = 0;
  // Each look at the clock is a millisecond later.
  const clock = () => nowMs++;
  const timed = await timePrompt({ backend, eosTokenIds: [], clock, emit: () => undefined });
  expect(timed?.tokens).toBe(longest);
  expect(backend.rowCount).toBe(2 * longest);
  expect(timed?.ms).toBeGreaterThan(0);
  expect(timed?.ms).toBeLessThan(nowMs / 2 + 1);
  engine.tiers.noteStep(timed?.tokens ?? 0, timed?.ms ?? 0);
  expect(engine.tiers.disk?.loads.costs.computeMs(longest)).toBeCloseTo(timed?.ms ?? 0, 9);
});

test("a pool in which no prompt fits that says anything is not timed", async () => {
  const { backend } = openWorld(8);
  const options = { backend, eosTokenIds: [], clock: () => 0, emit: () => undefined };
  expect(await timePrompt(options)).toBeUndefined();
  expect(backend.rowCount).toBe(0);
});

test("a decode step is as long as so many rows of a prompt, by the fastest of either", async () => {
  const { backend } = openWorld();
  let [nowMs, rowMs, stepMs] = [0, 0.5, 2];
  const { forward } = backend;
  backend.forward = (batch) => {
    nowMs += batch.tokenIds.length === 1 ? stepMs : batch.tokenIds.length * rowMs;
    // All steps but the first two are slow.
    if (batch.tokenIds.length === 1) [rowMs, stepMs] = [1, 5];
    return forward.call(backend, batch);
  };
  const options = { backend, eosTokenIds: [], clock: () => nowMs, emit: () => undefined };
  expect(await timeDecodes(options)).toBe(4);
  backend.forward = forward;
  // A clock that tells nothing.
  expect(await timeDecodes({ ...options, clock: () => 0 })).toBeUndefined();
});
