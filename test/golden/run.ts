/**
 * `bun run golden DIR… [--backend cpu] [--weights float32|int8]`: runs the engine over model folders with a
 * `golden.json` (test/golden/README.md has the format) and compares logits and greedy tokens. One line a
 * case; exits 1 on a miss.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { z } from "zod";
import { type CaseResult, GoldenModel, goldenSchema } from "./golden-model.ts";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { backend: { type: "string", default: "cpu" }, weights: { type: "string", default: "float32" } },
});
const weights = z.enum(["float32", "int8"]).safeParse(values.weights);
if (values.backend !== "cpu" || !weights.success || positionals.length === 0) {
  console.error("usage: bun run golden DIR… [--backend cpu] [--weights float32|int8]");
  process.exit(2);
}

function line(folder: string, name: string, result: CaseResult): string {
  const { ok, maxAbsolute, maxRelativeExcess, greedyMatches, greedyLength, cachedTokens } = result;
  const logits = `logits off by ${maxAbsolute.toExponential(1)} (${maxRelativeExcess.toFixed(3)} of the bound)`;
  return `${ok ? "ok  " : "MISS"} ${folder} ${name}: ${logits}, greedy ${greedyMatches}/${greedyLength}, cached ${cachedTokens}`;
}

let misses = 0;
for (const folder of positionals) {
  const golden = goldenSchema.parse(JSON.parse(readFileSync(join(folder, "golden.json"), "utf8")));
  const model = await GoldenModel.open(folder, weights.data);
  for (const [index, goldenCase] of golden.cases.entries()) {
    const result = await model.run(goldenCase);
    if (!result.ok) misses += 1;
    console.log(line(folder, `${goldenCase.kind} ${index}`, result));
  }
  await model.dispose();
}
console.log(misses === 0 ? "all cases match" : `${misses} cases missed`);
process.exit(misses === 0 ? 0 : 1);
