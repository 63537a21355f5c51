/** Whether the share of prompts that is found falls as thousands of novel combinations are asked. See test/chaos. */
import { CommandError } from "../../gateway/cli/support/command.ts";
import { type Reuse, reuseOverTime, reuseRatio } from "../chaos/reuse-decay.ts";
import { atLeast, type Bench, type BenchContext, type BenchReport } from "./bench.ts";
import { figure, median } from "./support/stats.ts";

const defaultQueries = 5_000;
/** The first figure is that of so many queries around the 100th. */
const window = 100;
const plan = { fragments: 200, fragmentTokens: 128, poolShare: 1.5 };

async function run({ option, say }: BenchContext): Promise<BenchReport> {
  const count = Number(option("queries") ?? defaultQueries);
  if (!Number.isInteger(count) || count < 3 * window) throw new CommandError(`--queries is ${3 * window} or more`);
  const { model, queries } = await reuseOverTime({ ...plan, queries: count, say });
  const at100 = queries.slice(window / 2, window + window / 2);
  const last = queries.slice(-5 * window);
  const parts: (readonly [string, readonly Reuse[]])[] = [["51 to 150", at100]];
  for (let end = 1_000; end <= count; end += 1_000)
    parts.push([`${end - 499} to ${end}`, queries.slice(end - 500, end)]);
  return {
    model,
    header: ["queries", "found / prompt tokens", "TTFT p50 ms"],
    rows: parts.map(([name, part]) => [
      name,
      reuseRatio(part).toFixed(4),
      figure(median(part.map(({ ttftMs }) => ttftMs))),
    ]),
    notes: [
      `${count} different sets of 4 of ${plan.fragments} fragments of ${plan.fragmentTokens} tokens, a question of its own each,`,
      `in a pool of ${plan.poolShare} times the fragments' tokens.`,
    ],
    bars: [
      atLeast("reuse ratio at query 100", reuseRatio(at100), 0.9),
      atLeast("reuse ratio at the end / at query 100", reuseRatio(last) / reuseRatio(at100), 0.95),
    ],
    details: { ...plan, parts: parts.map(([name, part]) => ({ queries: name, reuseRatio: reuseRatio(part) })) },
  };
}

export const reuseDecayBench: Bench = {
  name: "reuse-decay",
  summary: "Share of prompts that is found over thousands of novel combinations of fragments, in a tight pool",
  options: { queries: `N  queries (default ${defaultQueries})` },
  run,
};
