/**
 * fast-check as tests import it: its properties draw from the seed of the run, and one that fails says how to run it
 * again. Loading it takes three times as long as a test file without properties takes to start.
 */
import { relative } from "node:path";
import fc from "fast-check";
import { seedVariable, testSeed } from "./seed.ts";

const seed = testSeed();

function report(details: fc.RunDetails<unknown>): void {
  if (!details.failed) return;
  const file = relative(process.cwd(), Bun.main);
  const again = `To repeat it: ${seedVariable}=${details.seed} bun test ${file}`;
  throw new Error(`${fc.defaultReportMessage(details)}\n\n${again}`, { cause: details.errorInstance });
}

fc.configureGlobal({ seed, reporter: report });

export { fc };
