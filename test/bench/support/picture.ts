/** A benchmark's result as a picture: the one that has just been printed, or one that was kept. */
import { readFileSync } from "node:fs";
import { z } from "zod";
import { CommandError } from "../../../gateway/cli/support/command.ts";
import type { Bench } from "../bench.ts";
import { drawPlot } from "./plot.ts";

/** What every result says of itself; the rest is the benchmark's own. */
const resultSchema = z.looseObject({
  bench: z.string(),
  commit: z.string(),
  model: z.string(),
  hardware: z.object({ cpu: z.string(), device: z.string().optional() }),
});
export type BenchResult = z.infer<typeof resultSchema>;

/** @throws CommandError when the file is no result of that benchmark */
export function readResult(file: string, bench: string): BenchResult {
  const result = resultSchema.safeParse(parsed(file));
  if (!result.success) throw new CommandError(`${file} is no result of a benchmark`);
  if (result.data.bench !== bench) throw new CommandError(`${file} is a result of ${result.data.bench}`);
  return result.data;
}

function parsed(file: string): unknown {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch {
    throw new CommandError(`${file} cannot be read as JSON`);
  }
}

/** @returns SVG. @throws CommandError for a benchmark without a curve */
export function pictureOf({ name, plot }: Pick<Bench, "name" | "plot">, result: BenchResult): string {
  if (plot === undefined) throw new CommandError(`${name} has no curve`);
  const { commit, model, hardware } = result;
  const source = `bench ${name}, ${model}, ${hardware.device ?? hardware.cpu}, commit ${commit.slice(0, 12).replace(/\+$/, "")}`;
  return drawPlot({ ...plot(result), source });
}
