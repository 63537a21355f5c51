/**
 * Starts a garbage collection as soon as the process has grown. Left alone, JavaScriptCore collects late: encoding one
 * megabyte of text left about a hundred megabytes of garbage. A collection runs beside the event loop. If the process
 * keeps growing meanwhile, long work waits for the collection.
 */
import { holdLongWork } from "../base/pace.ts";

export interface MemoryWatchOptions {
  readonly residentBytes: () => number;
  /** Starts a collection, which runs beside the event loop. */
  readonly collect: () => void;
  readonly nowMs: () => number;
  /** Shortest time in milliseconds between two reads of the memory size, since each read costs a system call or two. */
  readonly lookMs: number;
  /**
   * Growth in bytes since the last collection ended: `collectBytes` starts a collection, and `holdBytes` makes long
   * work wait for it.
   */
  readonly collectBytes: number;
  readonly holdBytes: number;
  /** Milliseconds that a collection is assumed to take. The memory that is in use afterwards counts as live. */
  readonly collectMs: number;
}

export class MemoryWatch {
  readonly #options: MemoryWatchOptions;
  #floorBytes: number;
  /** When the running collection began. */
  #begunMs: number | undefined;
  #lookedMs = Number.NEGATIVE_INFINITY;
  #isHeld = false;

  constructor(options: MemoryWatchOptions) {
    this.#options = options;
    this.#floorBytes = options.residentBytes();
  }

  /** Call often. @returns whether long work has to wait */
  look(): boolean {
    const { nowMs, lookMs } = this.#options;
    const now = nowMs();
    if (now - this.#lookedMs < lookMs) return this.#isHeld;
    this.#lookedMs = now;
    this.#isHeld = this.#lookAt(now);
    return this.#isHeld;
  }

  #lookAt(now: number): boolean {
    const { residentBytes, collect, collectBytes, holdBytes, collectMs } = this.#options;
    const bytes = residentBytes();
    const isOver = this.#begunMs !== undefined && now - this.#begunMs >= collectMs;
    if (isOver || bytes < this.#floorBytes) this.#floorBytes = bytes;
    if (isOver) this.#begunMs = undefined;
    const growth = bytes - this.#floorBytes;
    if (growth > collectBytes && this.#begunMs === undefined) {
      this.#begunMs = now;
      collect();
    }
    return this.#begunMs !== undefined && growth > holdBytes;
  }
}

const [lookEveryMs, lookMs, collectMs] = [20, 4, 120];
const [collectBytes, holdBytes] = [12 * 2 ** 20, 28 * 2 ** 20];

/** Watches this process until it ends. */
export function watchMemory(): void {
  const watch = new MemoryWatch({
    residentBytes: () => process.memoryUsage.rss(),
    collect: () => Bun.gc(false),
    nowMs: () => performance.now(),
    ...{ lookMs, collectBytes, holdBytes, collectMs },
  });
  holdLongWork(() => watch.look());
  // Work that makes garbage without yielding is small or short, so a timer is enough to notice it.
  setInterval(() => watch.look(), lookEveryMs).unref();
}
