#!/usr/bin/env bun
import { askCommand } from "./commands/ask.ts";
import { backupCommand, restoreCommand } from "./commands/backup.ts";
import { ingestCommand, prepareCommand } from "./commands/ingest.ts";
import { explainCommand, queryCommand } from "./commands/query.ts";
import { benchCommand, serveCommand } from "./commands/serve.ts";
import { keyCommand, tenantCommand } from "./commands/tenant.ts";
/** `spangate`: the table of commands, help, and one place where failures become a sentence and an exit code. */
import { type Command, CommandError, helpText, parseInput, UsageError } from "./support/command.ts";

const commands: readonly Command[] = [
  serveCommand,
  tenantCommand,
  keyCommand,
  ingestCommand,
  prepareCommand,
  askCommand,
  queryCommand,
  explainCommand,
  backupCommand,
  restoreCommand,
  benchCommand,
];

function overview(): string {
  const rows = commands.map(({ name, summary }) => `  ${name.padEnd(10)}${summary}`);
  return `spangate COMMAND [--help]\n\n${rows.join("\n")}\n\nExit codes: 0 done, 1 failed, 2 wrong usage.\n`;
}

async function run([name, ...args]: readonly string[]): Promise<number> {
  const command = commands.find((candidate) => candidate.name === name);
  if (command === undefined) {
    const isAsked = name === "--help" || name === "-h" || name === "help";
    if (isAsked || name === undefined) process.stdout.write(overview());
    else process.stderr.write(`spangate: there is no command "${name}"\n\n${overview()}`);
    return isAsked ? 0 : 2;
  }
  try {
    const input = parseInput(command, args);
    if (!input.help) return await command.run(input);
    process.stdout.write(helpText(command));
    return 0;
  } catch (error) {
    if (error instanceof UsageError) {
      process.stderr.write(
        `spangate ${command.name}: ${error.message}\n\nUsage: spangate ${command.name} ${command.usage}\n`,
      );
      return 2;
    }
    if (!(error instanceof CommandError)) throw error;
    process.stderr.write(`spangate ${command.name}: ${error.message}\n`);
    return 1;
  }
}

process.exitCode = await run(process.argv.slice(2));
