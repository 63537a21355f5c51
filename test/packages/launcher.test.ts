/** Which Bun an installed Spangate runs with: npm's package of it, then PATH. */
import { afterAll, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { bunEnvironment, bunPackage, findBun } from "../../packages/launcher/find-bun.ts";

const folder = mkdtempSync(join(tmpdir(), "spangate-launcher-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function write(path: string, text: string, mode = 0o755): string {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, text);
  chmodSync(path, mode);
  return path;
}

const bunOf = (path: string, version: string, mode?: number): string =>
  write(path, `#!/bin/sh\necho ${version}\n`, mode);

/** A prefix with the package `spangate` in it, and a Bun's package beside it unless there is none. */
function prefix(name: string, withBun: boolean) {
  const modules = join(folder, name, "lib", "node_modules");
  write(join(modules, "spangate", "package.json"), '{"name": "spangate"}');
  const packaged = join(modules, "@oven", "bun-linux-x64");
  if (withBun) {
    write(join(packaged, "package.json"), '{"name": "@oven/bun-linux-x64", "version": "1.4.5"}');
    bunOf(join(packaged, "bin", "bun"), "1.4.5");
  }
  return { root: join(modules, "spangate"), packaged: join(packaged, "bin", "bun") };
}

const found = (root: string, path: string) => findBun(root, { PATH: path }, "linux", "x64");

test("Bun's packages have Bun's names of processors", () => {
  expect(bunPackage("linux", "x64")).toBe("@oven/bun-linux-x64");
  expect(bunPackage("linux", "arm64")).toBe("@oven/bun-linux-aarch64");
});

test("the package beside it goes before PATH", () => {
  const { root, packaged } = prefix("both", true);
  bunOf(join(folder, "path", "bun"), "1.9.0");
  expect(found(root, join(folder, "path"))).toBe(packaged);
  expect(findBun(root, { PATH: join(folder, "path") }, "linux", "arm64")).toBe(join(folder, "path", "bun"));
});

test("a package whose program cannot be run is passed over", () => {
  const { root, packaged } = prefix("broken", true);
  chmodSync(packaged, 0o644);
  const here = bunOf(join(folder, "here", "bun"), "1.4.0");
  // Root may not run a file that nobody may.
  expect(found(root, dirname(here))).toBe(here);
});

test("on PATH the first that is new enough is taken", () => {
  const { root } = prefix("bare", false);
  const [old, missing, plain, current] = ["old", "missing", "plain", "current"].map((name) => join(folder, "p", name));
  bunOf(join(`${old}`, "bun"), "1.3.14");
  bunOf(join(`${plain}`, "bun"), "1.4.5", 0o644);
  const newest = bunOf(join(`${current}`, "bun"), "2.0.1");
  expect(found(root, [old, missing, plain, current].join(":"))).toBe(newest);
  expect(found(root, [old, missing].join(":"))).toBeUndefined();
  expect(findBun(root, {}, "linux", "x64")).toBeUndefined();
});

test("an entry of PATH that is no absolute path is not looked in: the working folder may be anybody's", () => {
  const { root } = prefix("relative", false);
  const before = process.cwd();
  bunOf(join(folder, "cwd", "bun"), "1.4.5");
  process.chdir(join(folder, "cwd"));
  try {
    expect(found(root, ".:")).toBeUndefined();
  } finally {
    process.chdir(before);
  }
});

test("Bun is told to read nothing of the working folder, and what the user tells it stays", () => {
  const { BUN_OPTIONS, HOME } = bunEnvironment({ HOME: "h", BUN_OPTIONS: "--smol" });
  expect(BUN_OPTIONS).toBe("--smol --config=/dev/null --no-env-file --no-install");
  expect(HOME).toBe("h");
});
