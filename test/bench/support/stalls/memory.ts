/** Resident memory of a process, in bytes; NaN where /proc does not tell. */
import { readFileSync, writeFileSync } from "node:fs";

function statusBytes(pid: number, field: "VmRSS" | "VmHWM"): number {
  try {
    const [, kib] = new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
    return Number(kib) * 1024;
  } catch {
    return Number.NaN;
  }
}

export const residentBytes = (pid: number): number => statusBytes(pid, "VmRSS");

/** The most since `forgetPeak`. */
export const peakBytes = (pid: number): number => statusBytes(pid, "VmHWM");

/** The peak is from now on what is held now (proc_pid_clear_refs(5)). */
export function forgetPeak(pid: number): void {
  try {
    writeFileSync(`/proc/${pid}/clear_refs`, "5");
  } catch {
    // Without it the peak is the process's own, which is more: a bar is missed rather than met.
  }
}
