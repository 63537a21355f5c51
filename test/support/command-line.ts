/** The command line as a process of its own, as users have it. */
import { join } from "node:path";
import { repositoryRoot } from "../../gateway/cli/support/setup.ts";
import { until } from "./until.ts";

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

/** Starts `spangate serve` on a free port; resolves when it has printed the sign. `output` is what it has printed, `stop` ends it, with its exit code. */
export async function serveSpangate(flags: readonly string[], sign: string, shell: Shell) {
  const child = startSpangate(["serve", ...flags, "--port", "0"], shell);
  let output = "";
  void (async () => {
    const decoder = new TextDecoder();
    for await (const bytes of child.stdout) output += decoder.decode(bytes, { stream: true });
  })();
  await until(async () => output.includes(sign), "the server is ready", 40_000);
  const stop = async (): Promise<number> => {
    child.kill("SIGTERM");
    return await child.exited;
  };
  return { url: /listening on (\S+)/.exec(output)?.[1] ?? "", output: () => output, stop };
}

/** What `serve --dev` prints once it can be asked. */
export const devSign = "ready; from this folder";
