import { statSync } from "node:fs";
import { BackupError, type BackupReport, backupFolder, restoreFolder } from "../../../db/backup.ts";
import { type Command, CommandError, type CommandInput, UsageError } from "../support/command.ts";

const dataFlag = {
  data: { type: "string", value: "DIR", description: "Data folder (else .spangate).", env: "SPANGATE_DATA" },
} as const;

export const backupCommand: Command = {
  name: "backup",
  summary: "Copy the data folder into one file; the server may run. The file holds the secret: guard it.",
  usage: "FILE [--data DIR]",
  flags: dataFlag,
  async run(input) {
    const { file, dataDir } = argumentsOf(input);
    const report = explained(() => backupFolder(dataDir, file));
    console.log(`backed up ${dataDir} to ${file}: ${summaryOf(report)}, ${statSync(file).size} bytes in all`);
    return 0;
  },
};

export const restoreCommand: Command = {
  name: "restore",
  summary: "Make a data folder of a backup. The folder must have no database yet.",
  usage: "FILE [--data DIR]",
  flags: dataFlag,
  async run(input) {
    const { file, dataDir } = argumentsOf(input);
    const report = explained(() => restoreFolder(file, dataDir));
    console.log(`restored ${dataDir} from ${file}: ${summaryOf(report)}`);
    return 0;
  },
};

function argumentsOf(input: CommandInput): { readonly file: string; readonly dataDir: string } {
  const [file, extra] = input.positionals;
  if (file === undefined) throw new UsageError("say which FILE");
  if (extra !== undefined) throw new UsageError(`unexpected argument "${extra}"`);
  return { file, dataDir: input.text("data") ?? ".spangate" };
}

const summaryOf = ({ files, bytes }: BackupReport): string => `${files} uploaded files of ${bytes} bytes`;

function explained(work: () => BackupReport): BackupReport {
  try {
    return work();
  } catch (error) {
    if (error instanceof BackupError) throw new CommandError(error.message);
    throw error;
  }
}
