/** The command line as a process of its own, as users have it. */
import { join } from "node:path";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";

export interface Shell {
  /** The whole environment. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd?: string;
  /** Absent: there is nothing to read. */
  readonly stdin?: string;
}

export function startSpangate(args: readonly string[], { env, cwd = process.cwd(), stdin }: Shell) {
  return Bun.spawn([process.execPath, join(repositoryRoot, "gateway", "cli", "main.ts"), ...args], {
    env,
    cwd,
    stdin: stdin === undefined ? "ignore" : new TextEncoder().encode(stdin),
    stdout: "pipe",
    stderr: "pipe",
  });
}

/** Runs a command to its end. @returns what it printed, its output without the space around it, and its exit code */
export async function runSpangate(args: readonly string[], shell: Shell) {
  const child = startSpangate(args, shell);
  const [output, errors, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { output: output.trim(), errors, code };
}
