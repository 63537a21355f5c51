/**
 * Makes mistakes in KV files, one at a time, in a copy of the last commit, and expects the simulation to find each. Slow,
 * so it is a program of its own:
 *
 *   bun test/sim/tiers-mutants.ts [words of a mutant's name]
 */
import { runMutants, testStage } from "../support/mutants.ts";
import { tiersMutants } from "./tiers-mutant-list.ts";

const { argv } = testStage("-t", "lives of servers", "test/sim/tiers.test.ts");
const [few, many] = ["160", "1200"].map((count) => ({ argv, env: { SIM_COUNT: count } }));
// What no life shows is shown by tests of its own: blocks behind a hole are as good as others, and of no use.
const stages = [
  few,
  testStage("test/kv/objects.test.ts", "test/kv/simulated.test.ts", "test/tiers/loads.test.ts"),
  many,
];

process.exit(await runMutants(tiersMutants, stages));
