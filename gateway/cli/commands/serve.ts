/** Flags are names for the environment's settings, so that there is one configuration and one place that checks it. */
import { type Command, CommandError, type CommandInput, UsageError } from "../support/command.ts";
import { prepareKernels } from "../support/kernels.ts";
import { repositoryRoot } from "../support/setup.ts";

const variables: Readonly<Record<string, string>> = {
  host: "SPANGATE_HOST",
  port: "SPANGATE_PORT",
  data: "SPANGATE_DATA",
  model: "SPANGATE_MODEL",
  devices: "SPANGATE_DEVICES",
  "kv-bytes": "SPANGATE_KV_BYTES",
  log: "SPANGATE_LOG",
};

export const serveCommand: Command = {
  name: "serve",
  summary: "Start the server: gateway and workers.",
  usage: "[--port N] [--model DIR] …",
  flags: {
    host: { type: "string", value: "ADDRESS", description: "Address to listen on (SPANGATE_HOST, else 127.0.0.1)." },
    port: { type: "string", short: "p", value: "N", description: "Port, 0 for any (SPANGATE_PORT, else 8080)." },
    data: { type: "string", value: "DIR", description: "Data folder (SPANGATE_DATA, else .spangate)." },
    model: { type: "string", value: "DIR", description: "Model folder (SPANGATE_MODEL, else the demo model)." },
    devices: {
      type: "string",
      value: "LIST",
      description: "One worker for each, comma-separated (SPANGATE_DEVICES, else cpu).",
    },
    "kv-bytes": { type: "string", value: "N", description: "Memory of each worker's KV pool (SPANGATE_KV_BYTES)." },
    log: { type: "string", value: "LEVEL", description: "Log level (SPANGATE_LOG)." },
  },
  async run(input) {
    if (input.positionals.length > 0) throw new UsageError(`unexpected argument "${input.positionals[0]}"`);
    applyFlags(input);
    await prepareKernels();
    // The composition root starts on import and ends the process itself.
    await import("../../main.ts");
    return await new Promise<never>(() => undefined);
  },
};

function applyFlags(input: CommandInput): void {
  for (const [flag, variable] of Object.entries(variables)) {
    const value = input.text(flag);
    if (value !== undefined) process.env[variable] = value;
  }
}

export const benchCommand: Command = {
  name: "bench",
  summary: "Run one of the project's benchmarks; the last line is a JSON object.",
  usage: "NAME | --list",
  flags: { list: { type: "boolean", description: "Name them all." } },
  async run(input) {
    const script = `${repositoryRoot}/test/bench/main.ts`;
    if (!(await Bun.file(script).exists())) throw new CommandError("the benchmarks are not part of this installation");
    const args = input.isSet("list") ? ["--list"] : input.positionals;
    const child = Bun.spawn([process.execPath, script, ...args], { stdio: ["inherit", "inherit", "inherit"] });
    return await child.exited;
  },
};
