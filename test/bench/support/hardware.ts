/** What a figure was measured on. */
import { readFileSync } from "node:fs";
import { cpus, totalmem } from "node:os";
import { repositoryRoot } from "../../../gateway/cli/support/setup.ts";

export interface Hardware {
  readonly cpu: string;
  readonly cores: number;
  readonly isa: string;
  readonly memoryGiB: number;
  readonly bun: string;
}

export async function hardware(): Promise<Hardware> {
  const flags = await Bun.file("/proc/cpuinfo")
    .text()
    .catch(() => "");
  const isa = ["avx512_vnni", "avx512f", "avx2"].filter((name) => flags.includes(name));
  return {
    cpu: cpus()[0]?.model ?? "unknown",
    cores: cpus().length,
    isa: isa.join(" ") || process.arch,
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    bun: Bun.version,
  };
}

/** Short hash of the checked-out commit, with "+" when the tree has changes; "unknown" outside a repository. */
export async function commit(): Promise<string> {
  const git = async (...args: string[]) => {
    const child = Bun.spawn(["git", ...args], { cwd: repositoryRoot, stdout: "pipe", stderr: "ignore" });
    const text = await new Response(child.stdout).text();
    return (await child.exited) === 0 ? text.trim() : undefined;
  };
  try {
    const hash = await git("rev-parse", "--short=12", "HEAD");
    if (hash === undefined) return "unknown";
    return (await git("status", "--porcelain", "--untracked-files=no")) === "" ? hash : `${hash}+`;
  } catch {
    return "unknown";
  }
}

/** Processor time that a process has taken so far, all its threads together; NaN where /proc does not tell. */
export function processSeconds(pid: number): number {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "utf8");
    // After the name, which may hold anything: field 3 is the first; utime and stime are fields 14 and 15.
    const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
    return (Number(fields[11]) + Number(fields[12])) / clockTicksPerSecond;
  } catch {
    return Number.NaN;
  }
}

/** USER_HZ of Linux on all common machines. */
const clockTicksPerSecond = 100;
