/** What every command is: a name, its flags and a run. `program.ts` makes a command line of them. */

export interface Flag {
  readonly type: "string" | "boolean";
  readonly short?: string;
  readonly multiple?: boolean;
  /** Name of the value in the help text: `--store ID`. */
  readonly value?: string;
  readonly description: string;
  /** The variable that gives the value where the flag is absent. */
  readonly env?: string;
}

export interface CommandInput {
  readonly positionals: readonly string[];
  text(flag: string): string | undefined;
  texts(flag: string): readonly string[];
  isSet(flag: string): boolean;
  /** Whether it stands on the command line, and not in the environment alone. */
  isGiven(flag: string): boolean;
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

/** Flags of every command that talks to the server. */
export const serverFlags: Readonly<Record<string, Flag>> = {
  url: { type: "string", value: "URL", description: "Server (SPANGATE_URL, else http://127.0.0.1:8080)." },
  "api-key": { type: "string", value: "KEY", description: "API key (SPANGATE_API_KEY, else that of serve --dev)." },
};
