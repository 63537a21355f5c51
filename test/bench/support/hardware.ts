/** What a figure was measured on. */
import { cpus, totalmem } from "node:os";
import { repositoryRoot } from "../../../gateway/cli/setup.ts";

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
