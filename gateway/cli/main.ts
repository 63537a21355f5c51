#!/usr/bin/env bun
/** `spangate`: the list of its commands. */
import { version } from "../../package.json";
import type { Command } from "./support/command.ts";
import { runCommandLine } from "./support/program.ts";

/** By name, in the order of the help. To load all of them takes three times the processor time of one. */
const commands: Readonly<Record<string, () => Promise<Command>>> = {
  serve: async () => (await import("./commands/serve.ts")).serveCommand,
  pull: async () => (await import("./commands/pull.ts")).pullCommand,
  status: async () => (await import("./commands/status.ts")).statusCommand,
  doctor: async () => (await import("./commands/doctor.ts")).doctorCommand,
  tenant: async () => (await import("./commands/tenant.ts")).tenantCommand,
  key: async () => (await import("./commands/tenant.ts")).keyCommand,
  usage: async () => (await import("./commands/tenant.ts")).usageCommand,
  ingest: async () => (await import("./commands/ingest.ts")).ingestCommand,
  sync: async () => (await import("./commands/sync.ts")).syncCommand,
  source: async () => (await import("./commands/source.ts")).sourceCommand,
  prepare: async () => (await import("./commands/ingest.ts")).prepareCommand,
  ask: async () => (await import("./commands/ask.ts")).askCommand,
  query: async () => (await import("./commands/query.ts")).queryCommand,
  explain: async () => (await import("./commands/query.ts")).explainCommand,
  backup: async () => (await import("./commands/backup.ts")).backupCommand,
  restore: async () => (await import("./commands/backup.ts")).restoreCommand,
  bench: async () => (await import("./commands/serve.ts")).benchCommand,
};

const args = process.argv.slice(2);
// Help, and a name that is none, are told from all of them.
const [name = ""] = args;
const loadOne = Object.hasOwn(commands, name) ? commands[name] : undefined;
const asked = loadOne === undefined ? Object.values(commands) : [loadOne];
const loaded = await Promise.all(asked.map((load) => load()));

process.exitCode = await runCommandLine(loaded, args, version);
