/**
 * Takes the salt away at every place that keys are built from, one at a time, in a copy of the last commit, and expects a
 * test to fail each time. Slow, so it is a program of its own:
 *
 *   bun test/security/salt-mutants.ts [words of a mutant's name]
 */
import { runMutants, testStage } from "../support/mutants.ts";
import { saltMutants } from "./salt-sites.ts";

const stages = [
  testStage("test/lower", "test/tenant"),
  testStage("test/e2e/salts.test.ts", "test/e2e/prompt-files.test.ts"),
  testStage(
    "test/corpus/search/retrieve.test.ts",
    "test/corpus/prepare/prepare.test.ts",
    "test/corpus/deletion/delete.test.ts",
    "test/execute",
  ),
  testStage("test/http/openai/chat.test.ts", "test/http/query/query.test.ts", "test/http/isolation.test.ts"),
];

process.exit(await runMutants(saltMutants, stages));
