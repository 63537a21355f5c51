/**
 * The disk that holds the data folder. A reserve of it is kept free of what tenants store. The ballast, a file of real
 * blocks, is deleted when the disk is so full that not even a deletion finds space: deleting data and revoking keys
 * write a little themselves.
 */
import { rmSync, statfsSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import type { Log } from "../base/log.ts";

const mib = 1024 * 1024;
const maxReserveBytes = 1024 * mib;
const maxBallastBytes = 16 * mib;
/** On a small disk the reserve is an eighth of the disk, and the ballast a sixteenth. */
const [reservePart, ballastPart] = [8, 16];
const checkMs = 5_000;
/** Bytes that opening the database may need. */
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

  /** @param space returns the size and the free space of the disk; default: as the system reports them */
  constructor(dataDir: string, log: Log, space?: () => DiskSpace) {
    this.#path = dataDir;
    this.#ballastPath = join(dataDir, "ballast");
    this.#log = log;
    this.#space = space ?? (() => spaceOf(this.#path));
  }

  /** Call before the database is opened, because opening it needs a little space. */
  start(): void {
    if (this.#space().freeBytes < openingBytes) this.release();
    void this.makeBallast();
    this.#timer = setInterval(() => void this.makeBallast(), checkMs);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  /** Makes the ballast if as much space again stays free. Resolves when the ballast is there or cannot be made. */
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

  /**
   * Bytes that small things of tenants may still take. Small things still find space when large ones do not any more.
   */
  availableForSmall(): number {
    const space = this.#space();
    return Math.max(0, space.freeBytes - Math.ceil(reserveOf(space) / 2));
  }

  /** Deletes the ballast to free its space. @returns false when there was none */
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

/** Bytes of the ballast's blocks on the disk; 0 when there is no ballast. */
function ballastSize(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? 0 : Math.min(found.size, found.blocks * 512);
}

/** Fills the file with random bytes, so that no file system can compress them and its blocks are real. */
async function fill(path: string, bytes: number): Promise<void> {
  await using file = await open(path, "w", 0o600);
  for (let at = 0; at < bytes; at += pieceBytes) {
    await file.write(crypto.getRandomValues(new Uint8Array(Math.min(pieceBytes, bytes - at))));
  }
  await file.sync();
}

/** The most random bytes that one system call returns. */
const pieceBytes = 65_536;
