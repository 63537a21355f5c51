/** What a start measures of computing, before its first question weighs it against files. */
import { expect, test } from "bun:test";
import { timePrompt } from "../../worker/rehearsal.ts";
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
