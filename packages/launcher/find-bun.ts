/** Which Bun runs an installed Spangate, and in which environment. Runs under Node. */
import { spawnSync } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, dirname, isAbsolute, join } from "node:path";

type Environment = Readonly<Record<string, string | undefined>>;

/** The oldest Bun that runs the bundles; package.json says the same of a clone. */
export const oldestBun = [1, 4] as const;

/** Name of the package in which Bun's own project ships its program for a machine. */
export function bunPackage(platform: string, arch: string): string {
  return `@oven/bun-${platform}-${arch === "arm64" ? "aarch64" : arch}`;
}

/**
 * The Bun to use: that of the package that npm installed beside this one, else the first on PATH that is new enough.
 * @param root folder of the package `spangate`
 * @returns undefined: there is none
 */
export function findBun(root: string, env: Environment, platform: string, arch: string): string | undefined {
  const bundled = bundledBun(root, bunPackage(platform, arch));
  if (bundled !== undefined) return bundled;
  const folders = (env.PATH ?? "").split(delimiter).filter((folder) => isAbsolute(folder));
  return folders.map((folder) => join(folder, "bun")).find((path) => isExecutable(path) && isNewEnough(path));
}

function bundledBun(root: string, name: string): string | undefined {
  try {
    const description = createRequire(join(root, "package.json")).resolve(`${name}/package.json`);
    const path = join(dirname(description), "bin", "bun");
    return isExecutable(path) ? path : undefined;
  } catch {
    return undefined;
  }
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

function isNewEnough(path: string): boolean {
  const { stdout } = spawnSync(path, ["--version"], { encoding: "utf8", timeout: 10_000 });
  const [major = 0, minor = 0] = (stdout ?? "").split(".").map(Number);
  return major > oldestBun[0] || (major === oldestBun[0] && minor >= oldestBun[1]);
}

/**
 * Bun would read settings, code to load first and variables from the folder that it is started in, which may be
 * anybody's; here it reads none, and neither do the processes that it starts.
 */
export function bunEnvironment(env: Environment): Record<string, string | undefined> {
  const own = env.BUN_OPTIONS ? `${env.BUN_OPTIONS} ` : "";
  return { DO_NOT_TRACK: "1", ...env, BUN_OPTIONS: `${own}--config=/dev/null --no-env-file --no-install` };
}
