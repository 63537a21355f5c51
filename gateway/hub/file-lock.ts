/**
 * Locks a file against other processes as the hub's own tools do (flock), so that of several that load the same file
 * one does and the others wait. The lock is the system's: it ends with the process, however that ends.
 */
import { read } from "bun:ffi";
import { closeSync, mkdirSync, openSync } from "node:fs";
import { dirname } from "node:path";
import { cFunctions } from "../base/c-library.ts";
import { HubError } from "./hub-model.ts";

const [exclusive, withoutWaiting] = [2, 4];
const isDarwin = process.platform === "darwin";
/** Error numbers: another process has the lock; a signal came. */
const [wouldBlock, interrupted] = [isDarwin ? 35 : 11, 4];
const retryMs = 200;

const flockType = { args: ["i32", "i32"], returns: "i32" } as const;
const errnoType = { args: [], returns: "ptr" } as const;

/** The C library's flock, which returns 0 or an error number. */
function openFlock(): (fd: number, operation: number) => number {
  const flock = cFunctions({ flock: flockType })?.flock;
  const place = isDarwin
    ? cFunctions({ __error: errnoType })?.__error
    : cFunctions({ __errno_location: errnoType })?.__errno_location;
  if (flock === undefined || place === undefined) {
    throw new HubError("this system's C library has no flock, with which files of the cache are locked");
  }
  return (fd, operation) => (flock(fd, operation) === 0 ? 0 : errorNumber(place()));
}

const errorNumber = (place: Parameters<typeof read.i32>[0] | null): number => (place === null ? -1 : read.i32(place));

/**
 * Waits until no other process has the file locked.
 * @param onWait called once when another has it
 * @returns unlocks it
 * @throws HubError where files cannot be locked, and what the signal was aborted with
 */
export async function lockFile(path: string, signal: AbortSignal, onWait: () => void): Promise<() => void> {
  const flock = openFlock();
  mkdirSync(dirname(path), { recursive: true });
  const fd = openSync(path, "a");
  try {
    for (let attempt = 0; ; attempt++) {
      signal.throwIfAborted();
      const failure = flock(fd, exclusive | withoutWaiting);
      if (failure === 0) return () => closeSync(fd);
      if (failure !== wouldBlock && failure !== interrupted) {
        throw new HubError(
          `${path} cannot be locked (error ${failure}): name a folder on another disk with HF_HUB_CACHE`,
        );
      }
      if (attempt === 0) onWait();
      await Bun.sleep(retryMs);
    }
  } catch (error) {
    closeSync(fd);
    throw error;
  }
}
