/** How much KV may lie in files, and the times in which none is written. */
import { statfsSync } from "node:fs";
import type { Log } from "../base/log.ts";

/** Unless it is set: this part of what is free in the folder, the files themselves counted as free. */
const defaultPart = 1 / 4;
/** The database and uploads come first. */
const leastFreeBytes = 2 * 2 ** 30;
const restMs = 30_000;

export interface RoomOptions {
  readonly folder: string;
  /** Bytes of all files at most; undefined: the default part. */
  readonly mostBytes: number | undefined;
  readonly log: Log;
  readonly nowMs: () => number;
  /** Bytes that are free; default: as the system reports them. */
  readonly freeBytes?: () => number;
}

export class Room {
  readonly #options: RoomOptions;
  readonly #freeBytes: () => number;
  #restsUntilMs = 0;
  #lastReason: string | undefined;

  constructor(options: RoomOptions) {
    this.#options = options;
    this.#freeBytes = options.freeBytes ?? (() => freeBytesOf(options.folder));
  }

  /** Nothing is written now. */
  get isResting(): boolean {
    return this.#options.nowMs() < this.#restsUntilMs;
  }

  /** @param usedBytes what the files take */
  mostBytes(usedBytes: number): number {
    return this.#options.mostBytes ?? Math.floor((this.#freeBytes() + usedBytes) * defaultPart);
  }

  /**
   * Bytes that have to go before a file of `bytes` may be written; undefined: it may not be written.
   * @param usedBytes what the files take, those that are being written counted in
   */
  surplus(bytes: number, usedBytes: number): number | undefined {
    if (this.isResting) return undefined;
    const freeBytes = this.#freeBytes();
    if (freeBytes - bytes < leastFreeBytes) {
      this.rest("under 2 GiB are free");
      return undefined;
    }
    const most = this.mostBytes(usedBytes);
    return bytes > most ? undefined : Math.max(0, usedBytes + bytes - most);
  }

  /** Nothing is written for a while. What is there is read on. */
  rest(reason: string): void {
    this.#restsUntilMs = this.#options.nowMs() + restMs;
    if (reason === this.#lastReason) return;
    this.#lastReason = reason;
    const { folder, log } = this.#options;
    log("warn", "prepared KV is not written to the disk for now: it will be computed after a restart", {
      folder,
      reason,
    });
  }

  /** A file was written. */
  written(): void {
    this.#lastReason = undefined;
  }
}

/** Nothing, when the folder is gone. */
function freeBytesOf(folder: string): number {
  try {
    const { bsize, bavail } = statfsSync(folder);
    return bsize * bavail;
  } catch {
    return 0;
  }
}
