import { afterAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ensureInstalled } from "../../../gateway/cli/support/setup.ts";

const folders: string[] = [];
afterAll(() => {
  for (const folder of folders) rmSync(folder, { recursive: true, force: true });
});

/** A project in a folder with a space, with one dependency that needs no network. */
async function project(): Promise<string> {
  const root = mkdtempSync(join(tmpdir(), "spangate setup "));
  folders.push(root);
  mkdirSync(join(root, "leaf"));
  writeFileSync(join(root, "leaf", "package.json"), '{ "name": "leaf", "version": "1.0.0" }');
  writeFileSync(join(root, "package.json"), '{ "name": "p", "dependencies": { "leaf": "file:./leaf" } }');
  const child = Bun.spawn([process.execPath, "install", "--lockfile-only"], {
    cwd: root,
    stdio: ["ignore", "ignore", "ignore"],
  });
  expect(await child.exited).toBe(0);
  return root;
}

test("installs once for each lockfile", async () => {
  const root = await project();
  expect(await ensureInstalled(root)).toBeGreaterThan(0);
  expect(existsSync(join(root, "node_modules", "leaf", "package.json"))).toBe(true);
  expect(await ensureInstalled(root)).toBeUndefined();
  rmSync(join(root, "node_modules"), { recursive: true });
  expect(await ensureInstalled(root)).toBeGreaterThan(0);
});

test("a lockfile that does not fit is a sentence with the installer's words", async () => {
  const root = await project();
  writeFileSync(join(root, "package.json"), '{ "name": "p" }');
  await expect(ensureInstalled(root)).rejects.toThrow(/^the dependencies could not be installed:\n(?:.|\n)*frozen/);
});
