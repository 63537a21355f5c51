/**
 * What requests took, in windows of time: minutes for two hours, quarters of an hour for a day; of each tenant, and of
 * all together. Counts are exact. Quantiles are from histograms whose bins grow by 2^(1/4), so that the middle of a bin
 * is within 9.1 % of any value in it. Windows without requests take no memory; where the windows of all tenants are too
 * many, the tenant goes whose last request is longest ago.
 */
import type { TraceHead } from "./ended-trace.ts";

export const resolutions = {
  minute: { ms: 60_000, windows: 120 },
  quarter_hour: { ms: 900_000, windows: 96 },
} as const;
export type Resolution = keyof typeof resolutions;

export interface Quantiles {
  readonly p50: number;
  readonly p99: number;
}

export interface StatsSums {
  readonly requests: number;
  /** Those of them that failed. */
  readonly failed: number;
  readonly promptTokens: number;
  readonly cachedTokens: number;
  readonly completionTokens: number;
  /** From a request's beginning to its first token; undefined: none came. */
  readonly firstTokenMs: Quantiles | undefined;
  readonly queueMs: Quantiles | undefined;
}

export interface WindowStats extends StatsSums {
  /** When the window begins, in Unix milliseconds. */
  readonly atMs: number;
}

export interface Stats {
  /** The oldest first; windows without requests are left out. */
  readonly windows: readonly WindowStats[];
  /** All windows together. */
  readonly total: StatsSums;
}

/** Windows of all tenants together: each takes up to a kilobyte. */
const mostWindows = 16_384;

/** Bins from 2^-4 ms (0.06 ms) to 2^20 ms (17 minutes); what is beyond falls into the first or last one. */
const [lowestLog2, binsPerOctave, binCount] = [-4, 4, 96];

const binOf = (ms: number): number => {
  const bin = Math.floor((Math.log2(Math.max(ms, Number.MIN_VALUE)) - lowestLog2) * binsPerOctave);
  return Math.min(binCount - 1, Math.max(0, bin));
};
const middleOf = (bin: number): number => 2 ** (lowestLog2 + (bin + 0.5) / binsPerOctave);

/** The counts of one window of time. */
class Window {
  readonly atMs: number;
  #requests = 0;
  #failed = 0;
  #promptTokens = 0;
  #cachedTokens = 0;
  #completionTokens = 0;
  readonly #firstToken = new Uint32Array(binCount);
  readonly #queue = new Uint32Array(binCount);

  constructor(atMs: number) {
    this.atMs = atMs;
  }

  add({ failed, promptTokens, cachedTokens, completionTokens, firstTokenMs, queueMs }: TraceHead): void {
    this.#requests += 1;
    if (failed) this.#failed += 1;
    this.#promptTokens += promptTokens;
    this.#cachedTokens += cachedTokens;
    this.#completionTokens += completionTokens;
    if (firstTokenMs !== undefined) count(this.#firstToken, firstTokenMs);
    if (queueMs !== undefined) count(this.#queue, queueMs);
  }

  addAll(other: Window): void {
    this.#requests += other.#requests;
    this.#failed += other.#failed;
    this.#promptTokens += other.#promptTokens;
    this.#cachedTokens += other.#cachedTokens;
    this.#completionTokens += other.#completionTokens;
    for (let bin = 0; bin < binCount; bin++) {
      this.#firstToken[bin] = (this.#firstToken[bin] ?? 0) + (other.#firstToken[bin] ?? 0);
      this.#queue[bin] = (this.#queue[bin] ?? 0) + (other.#queue[bin] ?? 0);
    }
  }

  stats(): WindowStats {
    return {
      atMs: this.atMs,
      requests: this.#requests,
      failed: this.#failed,
      promptTokens: this.#promptTokens,
      cachedTokens: this.#cachedTokens,
      completionTokens: this.#completionTokens,
      firstTokenMs: quantilesOf(this.#firstToken),
      queueMs: quantilesOf(this.#queue),
    };
  }
}

function count(bins: Uint32Array, ms: number): void {
  const bin = binOf(ms);
  bins[bin] = (bins[bin] ?? 0) + 1;
}

function quantilesOf(bins: Uint32Array): Quantiles | undefined {
  const total = bins.reduce((sum, count) => sum + count, 0);
  if (total === 0) return undefined;
  const at = (part: number): number => {
    // The value that this part of all values does not exceed.
    let left = Math.ceil(part * total);
    const bin = bins.findIndex((count) => {
      left -= count;
      return left <= 0;
    });
    return middleOf(bin);
  };
  return { p50: at(0.5), p99: at(0.99) };
}

/** The windows of one tenant, or of all. */
class Series {
  readonly #windows: Readonly<Record<Resolution, Map<number, Window>>> = { minute: new Map(), quarter_hour: new Map() };

  get size(): number {
    return this.#windows.minute.size + this.#windows.quarter_hour.size;
  }

  add(head: TraceHead, atMs: number): void {
    for (const resolution of Object.keys(resolutions) as Resolution[]) {
      this.#expire(resolution, atMs);
      const startMs = startOf(resolution, atMs);
      this.#windows[resolution].getOrInsertComputed(startMs, () => new Window(startMs)).add(head);
    }
  }

  read(resolution: Resolution, atMs: number): Stats {
    this.#expire(resolution, atMs);
    return statsOf([...this.#windows[resolution].values()]);
  }

  #expire(resolution: Resolution, atMs: number): void {
    const oldestMs = oldestOf(resolution, atMs);
    for (const startMs of this.#windows[resolution].keys()) {
      if (startMs < oldestMs) this.#windows[resolution].delete(startMs);
      // Windows lie in the order of their time, unless the clock was set back.
      else break;
    }
  }
}

const startOf = (resolution: Resolution, atMs: number): number => {
  const { ms } = resolutions[resolution];
  return Math.floor(atMs / ms) * ms;
};

/** When the oldest window begins that is still shown. */
function oldestOf(resolution: Resolution, atMs: number): number {
  const { ms, windows } = resolutions[resolution];
  return startOf(resolution, atMs) - (windows - 1) * ms;
}

function statsOf(windows: readonly Window[]): Stats {
  const total = new Window(0);
  for (const window of windows) total.addAll(window);
  const rows = windows.map((window) => window.stats()).toSorted((a, b) => a.atMs - b.atMs);
  return { windows: rows, total: total.stats() };
}

/** Statistics of the given traces alone, such as one key's among those that are kept. */
export function statsOfTraces(traces: readonly TraceHead[], resolution: Resolution, nowMs: number): Stats {
  const oldestMs = oldestOf(resolution, nowMs);
  const windows = new Map<number, Window>();
  for (const trace of traces) {
    const startMs = startOf(resolution, trace.startedAtMs);
    if (startMs < oldestMs) continue;
    windows.getOrInsertComputed(startMs, () => new Window(startMs)).add(trace);
  }
  return statsOf([...windows.values()]);
}

export class TraceStats {
  readonly #nowMs: () => number;
  readonly #mostWindows: number;
  readonly #all = new Series();
  /** The tenant whose last request is longest ago comes first. */
  readonly #tenants = new Map<string, Series>();
  #windowCount = 0;

  constructor(nowMs: () => number = Date.now, most = mostWindows) {
    this.#nowMs = nowMs;
    this.#mostWindows = most;
  }

  /** Counts a request for its tenant, when it has one, and for all. It counts where it ends. */
  add(head: TraceHead): void {
    const nowMs = this.#nowMs();
    this.#all.add(head, nowMs);
    const { tenantId } = head;
    if (tenantId === undefined) return;
    const series = this.#tenants.get(tenantId) ?? new Series();
    this.#windowCount -= series.size;
    series.add(head, nowMs);
    this.#windowCount += series.size;
    this.#tenants.delete(tenantId);
    this.#tenants.set(tenantId, series);
    this.#makeRoom();
  }

  /** Forgets all of a tenant that is deleted. What it used stays in the sums of all. */
  forget(tenantId: string): void {
    this.#windowCount -= this.#tenants.get(tenantId)?.size ?? 0;
    this.#tenants.delete(tenantId);
  }

  /** @param tenantId undefined: all tenants together */
  read(resolution: Resolution, tenantId: string | undefined): Stats {
    const nowMs = this.#nowMs();
    const series = tenantId === undefined ? this.#all : this.#tenants.get(tenantId);
    if (series === undefined) return statsOf([]);
    const before = series.size;
    const stats = series.read(resolution, nowMs);
    if (tenantId !== undefined) this.#windowCount += series.size - before;
    return stats;
  }

  #makeRoom(): void {
    for (const tenantId of this.#tenants.keys()) {
      if (this.#windowCount <= this.#mostWindows || this.#tenants.size === 1) return;
      this.forget(tenantId);
    }
  }
}
