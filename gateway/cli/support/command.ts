/** What every command is: a name, its flags and a run; and how help, flags and failures are read and shown. */
import { type ParseArgsConfig, parseArgs } from "node:util";

export interface Flag {
  readonly type: "string" | "boolean";
  readonly short?: string;
  readonly multiple?: boolean;
  /** Name of the value in the help text: `--store ID`. */
  readonly value?: string;
  readonly description: string;
}

export interface CommandInput {
  readonly positionals: readonly string[];
  text(flag: string): string | undefined;
  texts(flag: string): readonly string[];
  isSet(flag: string): boolean;
  /** A whole number within bounds, or a usage error that names the flag. */
  integer(flag: string, range: { min: number; max: number }): number | undefined;
}

export interface Command {
  readonly name: string;
  readonly summary: string;
  /** What follows the name: `FILE… --store ID`. */
  readonly usage: string;
  readonly flags: Readonly<Record<string, Flag>>;
  /** @returns the process's exit code. */
  run(input: CommandInput): Promise<number>;
}

/** Wrong flags or arguments: exit code 2. */
export class UsageError extends Error {}

/** The work failed in a way that one sentence explains: exit code 1. */
export class CommandError extends Error {}

const helpFlag: Flag = { type: "boolean", short: "h", description: "Show this help." };

/** Flags of every command that talks to the server. */
export const serverFlags: Readonly<Record<string, Flag>> = {
  url: { type: "string", value: "URL", description: "Server (SPANGATE_URL, else http://127.0.0.1:8080)." },
  "api-key": { type: "string", value: "KEY", description: "API key (SPANGATE_API_KEY)." },
};

/** @throws UsageError for an unknown flag or a value of the wrong kind. */
export function parseInput(command: Command, args: readonly string[]): CommandInput & { readonly help: boolean } {
  const options: NonNullable<ParseArgsConfig["options"]> = { help: { type: "boolean", short: "h" } };
  for (const [name, flag] of Object.entries(command.flags)) {
    options[name] = { type: flag.type, multiple: flag.multiple ?? false, ...(flag.short ? { short: flag.short } : {}) };
  }
  const { values, positionals } = parseStrictly(args, options);
  const texts = (name: string) => [values[name] ?? []].flat().filter((value) => typeof value === "string");
  return {
    positionals,
    help: values.help === true,
    texts,
    text: (name) => texts(name).at(-1),
    isSet: (name) => values[name] === true,
    integer: (name, { min, max }) => {
      const text = texts(name).at(-1);
      if (text === undefined) return undefined;
      const value = Number(text);
      if (!Number.isInteger(value) || value < min || value > max) {
        throw new UsageError(`--${name} must be a whole number from ${min} to ${max}, not "${text}"`);
      }
      return value;
    },
  };
}

function parseStrictly(args: readonly string[], options: NonNullable<ParseArgsConfig["options"]>) {
  try {
    return parseArgs({ args: [...args], options, allowPositionals: true, strict: true });
  } catch (error) {
    throw new UsageError(error instanceof Error ? error.message : String(error));
  }
}

export function helpText(command: Command): string {
  const rows = Object.entries({ ...command.flags, help: helpFlag }).map(([name, flag]) => {
    const short = flag.short ? `-${flag.short}, ` : "    ";
    return [`  ${short}--${name}${flag.value ? ` ${flag.value}` : ""}`, flag.description] as const;
  });
  const width = Math.max(...rows.map(([left]) => left.length)) + 2;
  const lines = rows.map(([left, right]) => left.padEnd(width) + right);
  return `${command.summary}\n\nUsage: spangate ${command.name} ${command.usage}\n\n${lines.join("\n")}\n`;
}
