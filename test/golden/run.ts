/**
 * `bun run golden DIR… [--backend cpu] [--weights float32|int8]`: runs the engine over model folders with a
 * `golden.json` (test/golden/README.md has the format) and compares logits and greedy tokens. One line a
 * case; exits 1 on a miss.
 */
import { join } from "node:path";
import { parseArgs } from "node:util";
import { z } from "zod";
import { ModelError } from "../../worker/model/model-error.ts";
import { readJson } from "../../worker/model/weights.ts";
import { openOnCpu } from "./cpu-model.ts";
import { type CaseResult, type GoldenCase, goldenSchema } from "./golden-model.ts";

const usage = "usage: bun run golden DIR… [--backend cpu] [--weights float32|int8]";

interface Arguments {
  readonly folders: readonly string[];
  readonly weightMode: "float32" | "int8";
}

/** undefined: the usage is wrong. */
function parseArguments(): Arguments | undefined {
  const options = {
    backend: { type: "string", default: "cpu" },
    weights: { type: "string", default: "float32" },
  } as const;
  try {
    const { values, positionals } = parseArgs({ allowPositionals: true, options });
    const weights = z.enum(["float32", "int8"]).safeParse(values.weights);
    if (values.backend !== "cpu" || !weights.success || positionals.length === 0) return undefined;
    return { folders: positionals, weightMode: weights.data };
  } catch {
    return undefined;
  }
}

function line(folder: string, name: string, result: CaseResult): string {
  const { ok, maxAbsolute, maxRelativeExcess, greedyMatches, greedyLength, cachedTokens } = result;
  const logits = `logits off by ${maxAbsolute.toExponential(1)} (${maxRelativeExcess.toFixed(3)} of the bound)`;
  return `${ok ? "ok  " : "MISS"} ${folder} ${name}: ${logits}, greedy ${greedyMatches}/${greedyLength}, cached ${cachedTokens}`;
}

function readCases(folder: string): GoldenCase[] {
  const file = join(folder, "golden.json");
  const golden = goldenSchema.safeParse(readJson(file));
  if (golden.success) return golden.data.cases;
  const issue = golden.error.issues[0];
  throw new ModelError(`${file}: ${issue?.path.join(".")}: ${issue?.message}`);
}

/** Runs one folder's cases and prints them; answers how many missed. */
async function runFolder(folder: string, weightMode: "float32" | "int8"): Promise<number> {
  const cases = readCases(folder);
  const model = await openOnCpu(folder, weightMode);
  const results: CaseResult[] = [];
  for (const [index, goldenCase] of cases.entries()) {
    const result = await model.run(goldenCase);
    console.log(line(folder, `${goldenCase.kind} ${index}`, result));
    results.push(result);
  }
  await model.dispose();
  return results.filter((result) => !result.ok).length;
}

async function main(): Promise<number> {
  const parsed = parseArguments();
  if (parsed === undefined) {
    console.error(usage);
    return 2;
  }
  const missCounts: number[] = [];
  for (const folder of parsed.folders) missCounts.push(await runFolder(folder, parsed.weightMode));
  const misses = missCounts.reduce((sum, count) => sum + count, 0);
  console.log(misses === 0 ? "all cases match" : `${misses} cases missed`);
  return misses === 0 ? 0 : 1;
}

try {
  process.exit(await main());
} catch (error) {
  if (!(error instanceof ModelError)) throw error;
  console.error(`golden: ${error.message}`);
  process.exit(2);
}
