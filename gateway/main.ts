/** The server as a program: environment in, ready line out, signals, exit code. Starts on import. */

import { commandLine } from "../places/places.ts";
import { placeOf } from "./base/log.ts";
import { withCachedModel } from "./compose/hub-models.ts";
import { checkStart } from "./compose/preflight.ts";
import type { FirstKeys } from "./compose/tenants.ts";
import { parseConfig } from "./config.ts";
import { hideSelf } from "./process/confine.ts";
import { watchMemory } from "./process/memory-watch.ts";
import { secretSettings, withSecrets } from "./process/secret-settings.ts";
import type { RunningServer } from "./server.ts";

function fail(error: unknown): never {
  process.stderr.write(`spangate: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}

/** `bun run` passes Ctrl-C on to a child that the terminal has signalled already: both count as one. */
const sameSignalMs = 500;

function stopOnSignals(server: RunningServer): void {
  let askedAtMs: number | undefined;
  const onSignal = (): void => {
    if (askedAtMs !== undefined) {
      // Asked again: now.
      if (performance.now() - askedAtMs > sameSignalMs) process.exit(130);
      return;
    }
    askedAtMs = performance.now();
    server.stop().then(() => process.exit(0), fail);
  };
  process.on("SIGTERM", onSignal);
  process.on("SIGINT", onSignal);
}

function onReady({ generatedAdminKey: key, consoleLink }: FirstKeys, isDev: boolean): void {
  if (isDev)
    process.stdout.write(`ready; from this folder: ${commandLine} ask -d FILE "…" (the key is in the data folder)\n`);
  if (consoleLink !== undefined) process.stdout.write(`in a browser, once: ${consoleLink}\n`);
  if (key === undefined) return;
  process.stdout.write(
    `platform admin key, shown this once: ${key}\nIt makes tenants and their keys ("${commandLine} tenant create NAME", "${commandLine} key create --tenant ID"); those ask questions.\n`,
  );
}

// A promise that nobody waited for is a mistake of ours, and no reason to cut every tenant's stream.
process.on("unhandledRejection", (reason) => {
  const kind = reason instanceof Error ? reason.name : typeof reason;
  process.stderr.write(`spangate: unhandled rejection ${kind} ${placeOf(reason) ?? ""}\n`);
});

try {
  const env = withCachedModel(withSecrets(process.env));
  hideSelf(secretSettings);
  for (const name of secretSettings) delete process.env[name];
  const config = parseConfig(env);
  const memory = await checkStart(config, env);
  // Loaded only now: a start that cannot be says so without waiting for the rest of the server.
  const { startServer } = await import("./server.ts");
  const server = await startServer(config, { env });
  stopOnSignals(server);
  watchMemory();
  process.stdout.write(`${[`spangate is listening on ${server.url}`, ...memory].join("\n")}\n`);
  server.ready.then(
    (first) => onReady(first, config.dev),
    async (error: unknown) => {
      await server.stop();
      fail(error);
    },
  );
} catch (error) {
  fail(error);
}
