/** A command that starts a server and ends it. */
import { expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { oneLayerFolder } from "../../support/one-layer.ts";

const program = join(import.meta.dir, "..", "..", "..", "gateway", "cli", "support", "server-process.ts");

test("ends with its work: the time limit of the start does not keep its process", async () => {
  const dataDir = mkdtempSync(join(tmpdir(), "spangate-server-process-"));
  const env = {
    ...{ SPANGATE_DATA: dataDir, SPANGATE_MODEL: oneLayerFolder(), SPANGATE_PORT: "0", SPANGATE_LOG: "warn" },
    SPANGATE_ADMIN_KEY: "sk-admin-key-of-a-server-that-nobody-asks",
  };
  const source = `import { startServer } from ${JSON.stringify(program)};
    const server = await startServer({ env: ${JSON.stringify(env)}, readyTimeoutMs: 600_000 });
    console.log(await server.stop());`;
  const command = Bun.spawn([process.execPath, "-e", source], { stdout: "pipe", stderr: "inherit", timeout: 50_000 });
  expect([await command.stdout.text(), await command.exited]).toEqual(["0\n", 0]);
  rmSync(dataDir, { recursive: true, force: true });
}, 60_000);
