#!/usr/bin/env bun
/** `spangate`: the list of its commands. */
import { version } from "../../package.json";
import { askCommand } from "./commands/ask.ts";
import { backupCommand, restoreCommand } from "./commands/backup.ts";
import { doctorCommand } from "./commands/doctor.ts";
import { ingestCommand, prepareCommand } from "./commands/ingest.ts";
import { pullCommand } from "./commands/pull.ts";
import { explainCommand, queryCommand } from "./commands/query.ts";
import { benchCommand, serveCommand } from "./commands/serve.ts";
import { sourceCommand } from "./commands/source.ts";
import { statusCommand } from "./commands/status.ts";
import { syncCommand } from "./commands/sync.ts";
import { keyCommand, tenantCommand, usageCommand } from "./commands/tenant.ts";
import { runCommandLine } from "./support/program.ts";

const commands = [
  serveCommand,
  pullCommand,
  statusCommand,
  doctorCommand,
  tenantCommand,
  keyCommand,
  usageCommand,
  ingestCommand,
  syncCommand,
  sourceCommand,
  prepareCommand,
  askCommand,
  queryCommand,
  explainCommand,
  backupCommand,
  restoreCommand,
  benchCommand,
];

process.exitCode = await runCommandLine(commands, process.argv.slice(2), version);
