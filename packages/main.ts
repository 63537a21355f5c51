/**
 * `bun run package [FOLDER]`: the npm packages and the release as files, in `.packages/` unless a folder is named. It
 * downloads nothing. `--arch arm64` makes them for that processor, with a cross compiler and, by `--modules FOLDER`, from
 * packages of npm that were installed for it.
 */
import { chmodSync, copyFileSync, cpSync, mkdirSync, renameSync, rmSync, statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { version } from "../package.json";
import { root } from "../places/places.ts";
import { isArchitecture, platformName, runTool, stagePackages, type Target } from "./stage.ts";

/** npm's own level costs three times as long for a hundredth less. */
const gzipLevel = "6";

/** A folder to unpack and run: the packages side by side, and a script that starts them. */
async function packRelease(out: string, nodeModules: string, arch: string): Promise<string> {
  const name = `spangate-${version}-${platformName(arch)}`;
  const folder = join(out, name);
  mkdirSync(join(folder, "bin"), { recursive: true });
  renameSync(nodeModules, join(folder, "node_modules"));
  copyFileSync(join(root, "packages", "launcher", "spangate.sh"), join(folder, "bin", "spangate"));
  chmodSync(join(folder, "bin", "spangate"), 0o755);
  for (const file of ["README.md", "LICENSE"]) copyFileSync(join(root, file), join(folder, file));
  cpSync(join(root, "deploy"), join(folder, "deploy"), { recursive: true });
  // Who unpacks it owns the files, whoever built it.
  const owner = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name"];
  await runTool(["tar", "-czf", `${name}.tar.gz`, ...owner, name], out);
  rmSync(folder, { recursive: true });
  return `${name}.tar.gz`;
}

async function main(folder: string, target: Target): Promise<void> {
  const out = resolve(folder);
  rmSync(out, { recursive: true, force: true });
  const nodeModules = join(out, "node_modules");
  const made: string[] = [];
  for (const staged of await stagePackages(nodeModules, target)) {
    const argv = ["pm", "pack", "--quiet", "--ignore-scripts", "--gzip-level", gzipLevel, "--destination", out];
    made.push(basename((await runTool([process.execPath, ...argv], staged)).trim()));
  }
  made.push(await packRelease(out, nodeModules, target.arch));
  for (const file of made) {
    console.log(`${(statSync(join(out, file)).size / 2 ** 20).toFixed(1).padStart(6)} MiB  ${join(folder, file)}`);
  }
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { arch: { type: "string", default: process.arch }, modules: { type: "string" } },
});
const { arch, modules } = values;
if (!isArchitecture(arch)) throw new Error(`there are no packages for ${arch}`);
await main(positionals[0] ?? join(root, ".packages"), { arch, modules });
