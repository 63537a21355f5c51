/** The command line itself, by commander: names, flags, help, suggestions for typing errors, exit codes. */
import { CommanderError, Option, Command as Program } from "commander";
import { type Command, CommandError, type CommandInput, type Flag, UsageError } from "./command.ts";

const footer = "\nExit codes: 0 done, 1 failed, 2 wrong usage.";

/** @returns the process's exit code; what went wrong is on standard error, in one sentence */
export async function runCommandLine(
  commands: readonly Command[],
  args: readonly string[],
  version: string,
): Promise<number> {
  let exitCode = 0;
  const program = new Program("spangate")
    .version(version, "-V, --version", "Show the version.")
    .helpOption("-h, --help", "Show this help.")
    .helpCommand("help", "Show the help of a command.")
    .showHelpAfterError('Try "spangate --help".')
    .configureHelp({ subcommandTerm: (command) => command.name() })
    .configureOutput({ outputError: (text, write) => write(text.replace(/^error: /, "spangate: ")) })
    .addHelpText("after", footer)
    .exitOverride();
  for (const command of commands) {
    addCommand(program, command, async (input) => {
      exitCode = await runCommand(command, input);
    });
  }
  try {
    await program.parseAsync(args, { from: "user" });
    return exitCode;
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    return ["commander.helpDisplayed", "commander.version"].includes(error.code) || args[0] === "help" ? 0 : 2;
  }
}

async function runCommand(command: Command, input: CommandInput): Promise<number> {
  try {
    return await command.run(input);
  } catch (error) {
    if (error instanceof UsageError) {
      const usage = `Usage: spangate ${command.name} ${command.usage}`;
      process.stderr.write(`spangate ${command.name}: ${error.message}\n\n${usage}\n`);
      return 2;
    }
    if (!(error instanceof CommandError)) throw error;
    process.stderr.write(`spangate ${command.name}: ${error.message}\n`);
    return 1;
  }
}

function addCommand(program: Program, command: Command, run: (input: CommandInput) => Promise<void>): void {
  const part = program
    .command(command.name)
    .summary(command.summary)
    .description(command.summary)
    .usage(command.usage)
    .argument("[arguments...]")
    .configureHelp({ visibleArguments: () => [] })
    .helpOption("-h, --help", "Show this help.")
    .showHelpAfterError(`Try "spangate ${command.name} --help".`)
    .action(async (positionals: string[]) => await run(inputOf(part, positionals)));
  for (const [name, flag] of Object.entries(command.flags)) part.addOption(optionOf(name, flag));
}

function optionOf(name: string, { short, value, type, multiple, env, description }: Flag): Option {
  const shortPart = short === undefined ? "" : `-${short}, `;
  const valuePart = type === "boolean" ? "" : ` <${value ?? "value"}>`;
  const option = new Option(`${shortPart}--${name}${valuePart}`, description);
  if (env !== undefined) option.env(env);
  if (multiple) option.argParser((text: string, before: readonly string[] = []) => [...before, text]);
  return option;
}

/** Reads what commander found. An empty variable counts as unset. */
function inputOf(part: Program, positionals: readonly string[]): CommandInput {
  const found = (name: string): unknown => {
    const option = part.options.find(({ long }) => long === `--${name}`);
    const value: unknown = option === undefined ? undefined : part.getOptionValue(option.attributeName());
    return value === "" && sourceOf(name) === "env" ? undefined : value;
  };
  const sourceOf = (name: string): string | undefined => {
    const option = part.options.find(({ long }) => long === `--${name}`);
    return option === undefined ? undefined : part.getOptionValueSource(option.attributeName());
  };
  const texts = (name: string): readonly string[] =>
    [found(name) ?? []].flat().filter((value) => typeof value === "string");
  return {
    positionals,
    texts,
    text: (name) => texts(name).at(-1),
    isSet: (name) => found(name) === true,
    isGiven: (name) => sourceOf(name) === "cli",
    integer: (name, { min, max }) => {
      const text = texts(name).at(-1);
      if (text === undefined) return undefined;
      const value = Number(text);
      if (text.trim() === "" || !Number.isInteger(value) || value < min || value > max) {
        throw new UsageError(`--${name} must be a whole number from ${min} to ${max}, not "${text}"`);
      }
      return value;
    },
  };
}
