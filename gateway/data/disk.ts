/**
 * The disk that the data folder is on. What tenants store leaves a reserve of it free, and a file of real blocks, the
 * ballast, is given up when even a deletion finds no room: deleting and revoking need a little of it themselves.
 */
import { rmSync, statfsSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import type { Log } from "../base/log.ts";

const mib = 1024 * 1024;
const maxReserveBytes = 1024 * mib;
const maxBallastBytes = 16 * mib;
/** Parts of a small disk. */
const [reservePart, ballastPart] = [8, 16];
const checkMs = 5_000;
/** What opening the database may take. */
const openingBytes = mib;

export interface DiskSpace {
  readonly totalBytes: number;
  readonly freeBytes: number;
}

export class Disk {
  readonly #path: string;
  readonly #ballastPath: string;
  readonly #log: Log;
  readonly #space: () => DiskSpace;
  #timer: ReturnType<typeof setInterval> | undefined;
  #making: Promise<void> | undefined;

  /** @param space how much there is; default: as the system tells */
  constructor(dataDir: string, log: Log, space?: () => DiskSpace) {
    this.#path = dataDir;
    this.#ballastPath = join(dataDir, "ballast");
    this.#log = log;
    this.#space = space ?? (() => spaceOf(this.#path));
  }

  /** Call before the database is opened, which needs a little room. */
  start(): void {
    if (this.#space().freeBytes < openingBytes) this.release();
    void this.makeBallast();
    this.#timer = setInterval(() => void this.makeBallast(), checkMs);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  /** Only where as much again stays free. Resolves when it is there, or cannot be. */
  async makeBallast(): Promise<void> {
    this.#making ??= this.#fillBallast().finally(() => {
      this.#making = undefined;
    });
    await this.#making;
  }

  /** Bytes that tenants may still store. */
  availableBytes(): number {
    const space = this.#space();
    return Math.max(0, space.freeBytes - reserveOf(space));
  }

  /** Bytes that small things of a tenant's may still take, which find room when large ones do not any more. */
  availableForSmall(): number {
    const space = this.#space();
    return Math.max(0, space.freeBytes - Math.ceil(reserveOf(space) / 2));
  }

  /** Gives the ballast up. @returns false when there was none */
  release(): boolean {
    const had = ballastSize(this.#ballastPath) > 0;
    if (!had) return false;
    rmSync(this.#ballastPath, { force: true });
    this.#log("warn", "the disk is full: room that was kept for deletions is used now");
    return true;
  }

  #ballastBytes(space: DiskSpace): number {
    return Math.min(maxBallastBytes, Math.floor(space.totalBytes / ballastPart));
  }

  async #fillBallast(): Promise<void> {
    const space = this.#space();
    const wanted = this.#ballastBytes(space);
    const present = ballastSize(this.#ballastPath);
    if (present >= wanted || space.freeBytes + present < 2 * wanted) return;
    try {
      await fill(this.#ballastPath, wanted);
    } catch (error) {
      rmSync(this.#ballastPath, { force: true });
      const reason = String((error as { code?: unknown }).code ?? "unknown failure");
      this.#log("warn", "room for deletions on a full disk could not be kept", { reason });
    }
  }
}

const reserveOf = ({ totalBytes }: DiskSpace): number =>
  Math.min(maxReserveBytes, Math.floor(totalBytes / reservePart));

function spaceOf(path: string): DiskSpace {
  const { bsize, blocks, bavail } = statfsSync(path);
  return { totalBytes: bsize * blocks, freeBytes: bsize * bavail };
}

/** Bytes of its blocks; 0: it is not there. */
function ballastSize(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? 0 : Math.min(found.size, found.blocks * 512);
}

/** Real blocks: of bytes that no file system makes smaller. */
async function fill(path: string, bytes: number): Promise<void> {
  const file = await open(path, "w", 0o600);
  try {
    for (let at = 0; at < bytes; at += pieceBytes) {
      await file.write(crypto.getRandomValues(new Uint8Array(Math.min(pieceBytes, bytes - at))));
    }
    await file.sync();
  } finally {
    await file.close();
  }
}

/** As much as the system gives random bytes at once. */
const pieceBytes = 65_536;
