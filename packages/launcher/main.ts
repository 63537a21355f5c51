/**
 * `spangate` as npm installs it: npm starts it with Node, which is there wherever npm is. It finds Bun and hands over to
 * it.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { realpathSync } from "node:fs";
import { constants } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { bunEnvironment, bunPackage, findBun, oldestBun } from "./find-bun.ts";

function fail(sentence: string): never {
  process.stderr.write(`spangate: ${sentence}\n`);
  process.exit(1);
}

function follow(child: ChildProcess, bun: string): void {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"] as const) {
    process.on(signal, () => child.kill(signal));
  }
  child.on("error", ({ message }) => {
    fail(
      `${bun} cannot be started here (${message}); Spangate needs Linux with glibc 2.28 or newer, which musl is not`,
    );
  });
  child.on("exit", (code, signal) => {
    if (signal === "SIGILL") fail(`${bun} needs instructions that this processor lacks`);
    // A shell says the same of a process that a signal ended.
    process.exit(code ?? 128 + (signal === null ? 0 : constants.signals[signal]));
  });
}

const root = join(dirname(realpathSync(fileURLToPath(import.meta.url))), "..");
const { platform, arch } = process;
const bun = findBun(root, process.env, platform, arch);
if (bun === undefined) {
  fail(
    `there is no Bun ${oldestBun.join(".")} or newer: install the package ${bunPackage(platform, arch)}, which npm does unless it was told to omit optional packages, or put bun on PATH`,
  );
}
const program = join(root, "app", "cli.js");
follow(spawn(bun, [program, ...process.argv.slice(2)], { stdio: "inherit", env: bunEnvironment(process.env) }), bun);
