/**
 * Starts garbage collections as soon as the process has grown. Left alone, JavaScriptCore lets a heap of 40 MiB grow to
 * three times its size before it collects. Collections run beside the event loop. While the process is larger than the
 * last collection of all objects left it, young objects are collected again and again, which is cheap. If it stays
 * larger, the garbage is old, and all objects are collected, and again after a while: what was live under a long request
 * is garbage after it. Large files are ingested, and the queries of bulk requests begin, only while there is room: the
 * memory of garbage goes back to the system some time after it was collected.
 */
import { type Pointer, toArrayBuffer } from "bun:ffi";
import { edenGC, heapSize } from "bun:jsc";
import { cFunctions } from "../base/c-library.ts";
import { holdLongWork } from "../base/pace.ts";

interface Rhythm {
  /** Milliseconds from the start of one collection of young objects to the next. */
  readonly youngEveryMs: number;
  /** Milliseconds of growth until all objects are collected. */
  readonly oldMs: number;
}

export interface MemoryWatchOptions {
  readonly residentBytes: () => number;
  /** Both start a collection, which runs beside the event loop: of young objects only, or of all objects. */
  readonly collectYoung: () => void;
  readonly collectAll: () => unknown;
  readonly nowMs: () => number;
  /** Shortest time in milliseconds between two reads of the memory size, since each read costs a system call or two. */
  readonly lookMs: number;
  /**
   * Growth in bytes since the last collection of all objects: from `collectBytes` on garbage is collected, and from
   * `holdBytes` on long work waits while young objects are collected.
   */
  readonly collectBytes: number;
  readonly holdBytes: number;
  /**
   * From this growth on, work that nobody waits for stops until it has shrunk; and from `mostBytes` more than what all
   * objects took when they were last collected and no long work ran beside it.
   */
  readonly tightBytes: number;
  readonly mostBytes: number;
  /** Milliseconds that a collection of young objects is assumed to take. */
  readonly youngMs: number;
  /** How often beside long work, which makes much garbage, and how often else. */
  readonly busy: Rhythm;
  readonly usual: Rhythm;
  /** Milliseconds after which a collection of all objects has ended and has given memory back. */
  readonly allMs: number;
  /**
   * After so many milliseconds of it, if no long work ran in the last `restMs` of them, what is in use is what is live,
   * and no new garbage.
   */
  readonly settleMs: number;
  readonly restMs: number;
  /**
   * Milliseconds from a collection of all objects to the next one if the process does not grow, then twice as many each
   * time. So the garbage of a request goes no later after its end than as long as the request took, or this long.
   */
  readonly againMs: number;
}

export class MemoryWatch {
  readonly #options: MemoryWatchOptions;
  /** What the last collection of all objects left, or less. */
  #floorBytes: number;
  /**
   * The same of the last one that no long work ran beside: where it runs on, each collection leaves a little more than the
   * one before, since new garbage takes the place of the old one.
   */
  #restedFloorBytes: number;
  /** How many have ended since then. */
  #unrested = 0;
  #youngBegunMs = Number.NEGATIVE_INFINITY;
  /** When the running collection of all objects began, and the least memory in use since then. */
  #all: { readonly begunMs: number; leastBytes: number } | undefined;
  #grownSinceMs: number | undefined;
  /** When all objects are collected next, though the process did not grow, and how long that is after the last time. */
  #again: { readonly atMs: number; readonly delayMs: number } | undefined;
  #lookedMs = Number.NEGATIVE_INFINITY;
  #workedMs = Number.NEGATIVE_INFINITY;
  #isHeld = false;
  #isTight = false;

  constructor(options: MemoryWatchOptions) {
    this.#options = options;
    this.#floorBytes = options.residentBytes();
    this.#restedFloorBytes = this.#floorBytes;
  }

  /**
   * Call often.
   * @param isWork whether long work is about to go on
   * @returns whether it has to wait
   */
  look(isWork: boolean): boolean {
    const { nowMs, lookMs } = this.#options;
    const now = nowMs();
    if (isWork) this.#workedMs = now;
    if (now - this.#lookedMs < lookMs) return this.#isHeld;
    this.#lookedMs = now;
    this.#isHeld = this.#lookAt(now);
    return this.#isHeld;
  }

  /** By the last look. */
  get isTight(): boolean {
    return this.#isTight;
  }

  #lookAt(now: number): boolean {
    const { residentBytes, collectYoung, collectBytes, holdBytes, tightBytes, mostBytes, ...rest } = this.#options;
    const { youngMs, againMs, busy, usual } = rest;
    const bytes = residentBytes();
    this.#moveFloors(now, bytes);
    const growth = bytes - this.#floorBytes;
    const isOver = bytes - this.#restedFloorBytes > mostBytes;
    this.#isTight = growth > tightBytes || isOver;
    const isBusy = now - this.#workedMs < usual.youngEveryMs || this.#isTight;
    const { youngEveryMs, oldMs } = isBusy ? busy : usual;
    if (isOver && this.#all === undefined) this.#collectAll(now, bytes, againMs);
    if (growth <= collectBytes) {
      this.#grownSinceMs = undefined;
      if (this.#again !== undefined && now >= this.#again.atMs) this.#collectAll(now, bytes, 2 * this.#again.delayMs);
      return false;
    }
    this.#grownSinceMs ??= now;
    if (this.#all === undefined && now - this.#grownSinceMs >= oldMs) {
      this.#collectAll(now, bytes, againMs);
    } else if (now - this.#youngBegunMs >= youngEveryMs) {
      this.#youngBegunMs = now;
      collectYoung();
    }
    return growth > holdBytes && now - this.#youngBegunMs < youngMs;
  }

  #collectAll(now: number, bytes: number, againMs: number): void {
    this.#all = { begunMs: now, leastBytes: bytes };
    this.#youngBegunMs = now;
    this.#again = { atMs: now + againMs, delayMs: againMs };
    this.#options.collectAll();
  }

  #moveFloors(now: number, bytes: number): void {
    const { allMs, settleMs, restMs } = this.#options;
    this.#floorBytes = Math.min(this.#floorBytes, bytes);
    this.#restedFloorBytes = Math.min(this.#restedFloorBytes, bytes);
    if (this.#all === undefined) return;
    const sinceMs = now - this.#all.begunMs;
    this.#all.leastBytes = Math.min(this.#all.leastBytes, bytes);
    if (sinceMs >= settleMs && now - this.#workedMs >= restMs) {
      this.#restedFloorBytes = bytes;
      this.#unrested = 0;
    }
    if (sinceMs >= allMs) this.#endAll(this.#all.leastBytes);
  }

  #endAll(leastBytes: number): void {
    this.#floorBytes = leastBytes;
    this.#all = undefined;
    this.#grownSinceMs = undefined;
    this.#unrested += 1;
    if (this.#unrested < mostUnrested) return;
    // Long work that somebody waits for runs on whatever it takes, and must not stop all other work for good.
    this.#restedFloorBytes = leastBytes;
    this.#unrested = 0;
  }
}

/** Collections of all objects in a row with long work beside them, after which what they leave counts as live. */
const mostUnrested = 8;

const mib = 2 ** 20;
const lookEveryMs = 20;
const bounds = {
  ...{
    lookMs: 4,
    collectBytes: 12 * mib,
    holdBytes: 24 * mib,
    tightBytes: 28 * mib,
    mostBytes: 40 * mib,
    youngMs: 15,
    allMs: 1_000,
    settleMs: 300,
    restMs: 150,
    againMs: 4_000,
  },
  busy: { youngEveryMs: 30, oldMs: 400 },
  usual: { youngEveryMs: 120, oldMs: 2_000 },
};

/** So many bytes of addresses are for twice the largest heap. */
const addressBytes = 2 ** 32;
const readable = 1;
/** MAP_PRIVATE, MAP_ANONYMOUS and MAP_NORESERVE. */
const withoutMemory = process.platform === "darwin" ? 0x1042 : 0x4022;

/** The first of the addresses, with no memory behind them. undefined: the system gives none. */
const addresses: { readonly first: Pointer | undefined } = { first: mapAddresses() };

function mapAddresses(): Pointer | undefined {
  const types = { mmap: { args: ["ptr", "usize", "i32", "i32", "i32", "i64"], returns: "ptr" } } as const;
  const first = cFunctions(types)?.mmap(null, addressBytes, readable, withoutMemory, -1, 0);
  // Where it fails it gives the last of all addresses.
  return typeof first !== "number" || first > Number.MAX_SAFE_INTEGER ? undefined : first;
}

/**
 * Collects all objects beside the event loop. `Bun.gc(true)` does so too, but the event loop stands still meanwhile,
 * 35-84 ms for a heap of 45 MiB. After each collection JavaScriptCore decides whether the next one is of young or of all
 * objects: of all if more than two thirds of the heap's limit are in use, and the limit is three times what the last
 * collection of all objects left. A buffer of twice the heap that has no memory counts as in use. (An allocated one is
 * filled with zeros where its place was used before: up to 75 ms and 150 MiB.) It is there for one collection of the few
 * objects that came since the last one, for which the event loop stands still: were all objects collected while it is
 * there, it would count for the limit of later collections too. Without addresses for it, old garbage stays until
 * JavaScriptCore collects it.
 */
export function collectAll(): void {
  if (addresses.first === undefined) return;
  const ballast = toArrayBuffer(addresses.first, 0, Math.min(2 * heapSize(), addressBytes));
  edenGC();
  ballast.transfer(0);
  Bun.gc(false);
}

/** Watches this process until it ends. */
export function watchMemory(): void {
  const watch = new MemoryWatch({
    residentBytes: () => process.memoryUsage.rss(),
    collectYoung: () => Bun.gc(false),
    collectAll,
    nowMs: () => performance.now(),
    ...bounds,
  });
  holdLongWork(
    () => watch.look(true),
    () => watch.isTight,
  );
  // Work that makes garbage without yielding is small or short, so a timer is enough to notice it.
  setInterval(() => watch.look(false), lookEveryMs).unref();
}
