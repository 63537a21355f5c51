import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openDb } from "../../db/open.ts";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";

let dir = "";
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "spangate-cli-backup-"));
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

function spangate(...args: readonly string[]) {
  const program = join(repositoryRoot, "gateway", "cli", "main.ts");
  const env = { PATH: process.env.PATH, SPANGATE_DATA: join(dir, "data") };
  const { stdout, stderr, exitCode } = Bun.spawnSync([process.execPath, program, ...args], { env, cwd: dir });
  return { output: stdout.toString(), errors: stderr.toString(), code: exitCode };
}

test("backup and restore: the folder from the flag or the environment, one sentence when it cannot be", () => {
  expect(spangate("backup", "copy")).toMatchObject({ code: 1, errors: expect.stringContaining("has no database") });
  expect(spangate("backup")).toMatchObject({ code: 2, errors: expect.stringContaining("FILE") });
  expect(spangate("restore", "a", "b")).toMatchObject({ code: 2, errors: expect.stringContaining('"b"') });
  expect(spangate("restore", "nothing")).toMatchObject({ code: 1, errors: expect.stringContaining("no file nothing") });
  rmSync(join(dir, "data"), { recursive: true, force: true });
  mkdirSync(join(dir, "data"));
  openDb(join(dir, "data", "spangate.db")).close();
  writeFileSync(join(dir, "data", "secret"), new Uint8Array(32), { mode: 0o600 });
  expect(spangate("backup", "copy")).toMatchObject({ code: 0, output: expect.stringContaining("0 uploaded files") });
  const restored = spangate("restore", "copy", "--data", join(dir, "other"));
  expect(restored).toMatchObject({ code: 0, output: expect.stringContaining("restored") });
  expect(existsSync(join(dir, "other", "spangate.db"))).toBe(true);
  openDb(join(dir, "other", "spangate.db")).close();
}, 60_000);
