/**
 * Begins a garbage collection as soon as the process has grown. By itself JavaScriptCore collects late: encoding one
 * megabyte of text left about a hundred megabytes of garbage. A collection runs beside the event loop, and long work
 * waits for it when the process grows on meanwhile.
 */
import { holdLongWork } from "../base/pace.ts";

export interface MemoryWatchOptions {
  readonly residentBytes: () => number;
  /** Begins a collection, which goes on beside the event loop. */
  readonly collect: () => void;
  readonly nowMs: () => number;
  /** Asking for the bytes costs a system call or two: those are asked for so often at most. */
  readonly lookMs: number;
  /** Growth since the last collection has ended: with so much one begins, and with so much more long work waits for it. */
  readonly collectBytes: number;
  readonly holdBytes: number;
  /** What a collection is given; what is there then lives. */
  readonly collectMs: number;
}

export class MemoryWatch {
  readonly #options: MemoryWatchOptions;
  #floorBytes: number;
  /** Of the collection that goes on. */
  #begunMs: number | undefined;
  #lookedMs = Number.NEGATIVE_INFINITY;
  #isHeld = false;

  constructor(options: MemoryWatchOptions) {
    this.#options = options;
    this.#floorBytes = options.residentBytes();
  }

  /** To be called often. @returns whether long work is to wait */
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
  // What makes garbage without taking turns is small, or short.
  setInterval(() => watch.look(), lookEveryMs).unref();
}
