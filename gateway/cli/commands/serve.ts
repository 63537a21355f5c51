/** Flags are names for the environment's settings, so that there is one configuration and one place that checks it. */
import { withSecrets } from "../../process/secret-settings.ts";
import type { Setting } from "../../settings/passed-settings.ts";
import { flaggedSettings, flagOf, plainText } from "../../settings/table.ts";
import { type Command, CommandError, type CommandInput, type Flag, UsageError } from "../support/command.ts";
import { prepareKernels } from "../support/kernels.ts";
import { repositoryRoot } from "../support/setup.ts";
import { loadServedModel } from "./pull.ts";

/** SPANGATE_HOST is --host; the table of settings has the words. */
function flagFor(variable: string, { value, byDefault, meaning, isSwitch }: Setting): Flag {
  // A switch's variable says 0 or 1, which commander would take for given.
  if (isSwitch) return { type: "boolean", description: sentence(meaning.replace(/^1: /, "")) };
  const description = sentence(`${meaning} (default: ${byDefault})`);
  return { type: "string", value, description, env: variable, ...(variable === "SPANGATE_PORT" && { short: "p" }) };
}

function sentence(markdown: string): string {
  const text = plainText(markdown);
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}`;
}

export const serveCommand: Command = {
  name: "serve",
  summary: "Start the server: gateway and workers.",
  usage: "[--dev] [--port N] [--model DIR|ORG/MODEL] …",
  flags: Object.fromEntries(
    flaggedSettings.map(([variable, setting]) => [flagOf(variable), flagFor(variable, setting)]),
  ),
  async run(input) {
    if (input.positionals.length > 0) throw new UsageError(`unexpected argument "${input.positionals[0]}"`);
    applyFlags(input);
    await loadServedModel();
    await checked(input);
    await prepareKernels();
    // The composition root starts on import and ends the process itself.
    await import("../../main.ts");
    return await new Promise<never>(() => undefined);
  },
};

function applyFlags(input: CommandInput): void {
  for (const [variable, { isSwitch }] of flaggedSettings) {
    const flag = flagOf(variable);
    if (!input.isGiven(flag)) continue;
    process.env[variable] = isSwitch ? "1" : input.text(flag);
  }
}

/** Checks the start before kernels are compiled for it. What came by a flag is blamed on the flag. */
async function checked(input: CommandInput): Promise<void> {
  // Loaded for this command alone: the others begin sooner without it.
  const { checkStart } = await import("../../compose/preflight.ts");
  const { parseConfig, SettingError } = await import("../../config.ts");
  try {
    const env = withSecrets(process.env);
    await checkStart(parseConfig(env), env);
  } catch (error) {
    if (error instanceof SettingError && input.isGiven(flagOf(error.variable))) {
      throw new UsageError(`--${flagOf(error.variable)} ${error.problem}`);
    }
    throw new CommandError(error instanceof Error ? error.message : String(error), { cause: error });
  }
}

export const benchCommand: Command = {
  name: "bench",
  summary: "Run one of the project's benchmarks; the last line is a JSON object.",
  usage: "NAME [--plot FILE.svg] | --list",
  flags: {
    list: { type: "boolean", description: "Name them all." },
    plot: { type: "string", value: "FILE", description: "Draws what was measured, where it is a curve, as SVG." },
    results: {
      type: "string",
      value: "FILE",
      description: "For --plot: draws a result that was kept, and runs nothing.",
    },
  },
  async run(input) {
    const script = `${repositoryRoot}/test/bench/main.ts`;
    if (!(await Bun.file(script).exists())) throw new CommandError("the benchmarks are not part of this installation");
    const flags = ["plot", "results"].flatMap((name) => {
      const value = input.text(name);
      return value === undefined ? [] : [`--${name}`, value];
    });
    const args = input.isSet("list") ? ["--list"] : [...input.positionals, ...flags];
    const child = Bun.spawn([process.execPath, script, ...args], { stdio: ["inherit", "inherit", "inherit"] });
    return await child.exited;
  },
};
