/**
 * Makes a fresh clone runnable. Nothing but Bun's own modules is imported here: this runs before the
 * dependencies are there.
 */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root as repositoryRoot } from "../../../places/places.ts";
import { CommandError } from "./command.ts";

export { repositoryRoot };

/** Name of the file in node_modules that tells which lockfile it was installed from. */
const stampName = ".spangate-lock";

/**
 * Installs the dependencies at the lockfile's versions unless that was done already.
 * @returns milliseconds it took; undefined when there was nothing to do.
 * @throws CommandError with the installer's own output.
 */
export async function ensureInstalled(root: string = repositoryRoot): Promise<number | undefined> {
  const digest = new Bun.CryptoHasher("sha256").update(readFileSync(join(root, "bun.lock"))).digest("hex");
  const stampPath = join(root, "node_modules", stampName);
  if (existsSync(stampPath) && readFileSync(stampPath, "utf8") === digest) return undefined;
  const startMs = performance.now();
  const child = Bun.spawn([process.execPath, "install", "--frozen-lockfile"], {
    cwd: root,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const [output, errors, exitCode] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (exitCode !== 0) throw new CommandError(`the dependencies could not be installed:\n${output}${errors}`);
  writeFileSync(stampPath, digest);
  return performance.now() - startMs;
}
