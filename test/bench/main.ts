/** `bun run bench NAME`: a table for people, and one JSON object as the last line for programs. */
import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { CommandError } from "../../gateway/cli/support/command.ts";
import { textTable } from "../../gateway/cli/support/text-table.ts";
import type { Bench, BenchReport } from "./bench.ts";
import { benches } from "./benches.ts";
import { commit, hardware } from "./support/hardware.ts";
import { pictureOf, readResult } from "./support/picture.ts";
import { figure } from "./support/stats.ts";

/** Those that can be loaded on this machine, and of the others why not. */
async function loadAll(): Promise<readonly (Bench | Pick<Bench, "name" | "summary">)[]> {
  return await Promise.all(
    Object.entries(benches).map(([name, load]) =>
      load().catch((error: unknown) => {
        const reason = error instanceof Error ? error.message : String(error);
        return { name, summary: `(cannot be loaded on this machine: ${reason})` };
      }),
    ),
  );
}

async function listText(): Promise<string> {
  const lines = (await loadAll()).flatMap((bench) => [
    `${bench.name.padEnd(13)}${bench.summary}`,
    ...Object.entries(("options" in bench && bench.options) || {}).map(
      ([flag, text]) => `${" ".repeat(15)}--${flag}  ${text}`,
    ),
  ]);
  return lines.join("\n");
}

function printReport(report: BenchReport): void {
  console.log(textTable(report.header, report.rows));
  for (const note of report.notes ?? []) console.log(note);
  const bars = report.bars.map(({ name, value, at, bound, ok }) => [
    name,
    figure(value),
    `at ${at} ${figure(bound)}`,
    ok ? "ok" : "MISSED",
  ]);
  if (bars.length > 0) console.log(`\n${textTable(["bar", "value", "bound", ""], bars)}`);
}

/** @param wrong what was given in place of a name, or behind it */
function usage(wrong: string | undefined): number {
  if (wrong !== undefined) console.error(`There is no benchmark "${wrong}".`);
  const names = Object.keys(benches).join(", ");
  console.error(
    `Usage: bun run bench NAME [--plot FILE.svg [--results FILE.json]]\nNAME is one of ${names}.\n"bun run bench --list" tells what each measures.`,
  );
  return 2;
}

async function main(args: readonly string[]): Promise<number> {
  if (args.includes("--list")) {
    console.log(await listText());
    return 0;
  }
  const name = args.find((arg) => Object.hasOwn(benches, arg));
  const bench = name === undefined ? undefined : await benches[name]?.();
  if (bench === undefined) return usage(args.find((arg) => !arg.startsWith("-")));
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      plot: { type: "string" },
      results: { type: "string" },
      ...Object.fromEntries(Object.keys(bench.options ?? {}).map((option) => [option, { type: "string" as const }])),
    },
  });
  if (positionals.length > 1) return usage(positionals.find((given) => given !== bench.name));
  const { plot, results } = values;
  if (typeof results === "string" && typeof plot !== "string") throw new CommandError("--results needs --plot");
  if (typeof plot === "string" && bench.plot === undefined) {
    const drawn = (await loadAll()).filter((each) => "plot" in each).map((each) => each.name);
    throw new CommandError(`${bench.name} has no curve; these have one: ${drawn.join(", ")}`);
  }
  if (typeof plot === "string" && typeof results === "string") {
    writeFileSync(plot, pictureOf(bench, readResult(results, bench.name)));
    return 0;
  }
  const report = await bench.run({
    option: (name) => {
      const value = Object.entries(values).find(([key]) => key === name)?.[1];
      return typeof value === "string" ? value : undefined;
    },
    say: (line) => console.error(line),
  });
  printReport(report);
  const { model, bars, details } = report;
  const line = { bench: bench.name, commit: await commit(), hardware: await hardware(), model, bars, ...details };
  console.log(JSON.stringify(line));
  if (typeof plot === "string") writeFileSync(plot, pictureOf(bench, line));
  return bars.every(({ ok }) => ok) ? 0 : 1;
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const isUsage = error instanceof TypeError && "code" in error && String(error.code).startsWith("ERR_PARSE_ARGS");
  if (!isUsage && !(error instanceof CommandError)) throw error;
  console.error(`bench: ${error.message}`);
  process.exitCode = isUsage ? 2 : 1;
}
process.exit();
