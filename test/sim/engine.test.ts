/**
 * Deterministic simulation of the engine, with steps one after the other and with two in flight, with K where its chain
 * has it and moved to where it is used, copies dropped or kept, and with rows that choose what they read. A failure names its own seed; `SIM_SEED=n` replays it.
 */
import { expect, test } from "bun:test";
import { effort } from "../support/effort.ts";
import { testSeed } from "../support/seed.ts";
import { Simulation, type SimulationMode } from "./engine-world.ts";

const only = process.env.SIM_SEED;
const seedCount = effort(32, 2_000);
const firstSeed = only === undefined ? testSeed() : Number(only);
const endSeed = only === undefined ? firstSeed + seedCount : firstSeed + 1;

async function simulate(mode: SimulationMode): Promise<void> {
  const total = { preemptions: 0, hitTokens: 0, evictedBlocks: 0, overClosed: 0, copiedTokens: 0 };
  const ends: Record<string, number> = {};
  let namedRows = 0;
  const sparse = { steps: 0, rectified: 0 };
  for (let seed = firstSeed; seed < endSeed; seed++) {
    try {
      const counts = await new Simulation(seed, mode).run(30);
      total.preemptions += counts.preemptions;
      total.hitTokens += counts.hitTokens;
      total.evictedBlocks += counts.evictedBlocks;
      total.overClosed += counts.overClosed;
      total.copiedTokens += counts.copiedTokens;
      namedRows += counts.namedRows;
      sparse.steps += counts.sparseSteps;
      sparse.rectified += counts.rectifiedTokens;
      for (const [name, count] of Object.entries(counts.ends)) ends[name] = (ends[name] ?? 0) + count;
    } catch (error) {
      throw new Error(`seed ${seed}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
    }
  }
  if (only !== undefined) return;
  // The simulation is worth something only while it gets into every corner.
  for (const count of Object.values(total)) expect(count).toBeGreaterThan(seedCount);
  expect(namedRows > seedCount).toBe(mode.pipelined === true);
  for (const count of Object.values(sparse)) expect(count > seedCount).toBe(mode.sparse === true);
  const expectedEnds = ["abort", "bad_plan", "internal", "length", "overloaded", "prepared", "prompt_too_long", "stop"];
  expect(Object.keys(ends).sort()).toEqual(expectedEnds);
}

const modes: Readonly<Record<string, SimulationMode>> = {
  plain: {},
  pipelined: { pipelined: true },
  relocating: { positions: "relocate" },
  "relocating, pipelined": { positions: "relocate", pipelined: true },
  duplicating: { positions: "duplicate" },
  sparse: { sparse: true },
  "sparse, pipelined": { sparse: true, pipelined: true },
};

// It waited behind others for their owners' floors, and a step ahead was planned as if it could not be admitted.
test("a blended prompt that others let pass is not admitted into a step that is planned ahead", async () => {
  await new Simulation(20262428, modes["sparse, pipelined"]).run(30);
});

for (const [name, mode] of Object.entries(modes)) {
  test(`engine simulation, ${name}, seeds ${firstSeed} to ${endSeed - 1}`, () => simulate(mode), 10 * 60_000);
}
