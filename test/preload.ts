/**
 * Bun loads this before every test file (bunfig.toml). Properties of fast-check draw from the seed of the run, and one
 * that fails says how to run it again.
 */
import { relative } from "node:path";
import fc from "fast-check";
import { seedVariable, testSeed } from "./support/seed.ts";

const seed = testSeed();

function report(details: fc.RunDetails<unknown>): void {
  if (!details.failed) return;
  const file = relative(process.cwd(), Bun.main);
  const again = `To repeat it: ${seedVariable}=${details.seed} bun test ${file}`;
  throw new Error(`${fc.defaultReportMessage(details)}\n\n${again}`, { cause: details.errorInstance });
}

fc.configureGlobal({ seed, reporter: report });
