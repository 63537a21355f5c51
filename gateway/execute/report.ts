/** Collects reports of a tree's runs, in the tree's order: inner generates before those that read them. */
import type { MissReport } from "../dispatch/request/miss-report.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";
import type { EndEvent } from "../generate/events.ts";

export interface GenerateReport {
  /** Path of the generate as the caller wrote it, and in the rewritten query. */
  readonly path: string;
  readonly place: string;
  /** Number of the sample in a repeat; 0 elsewhere. */
  readonly index: number;
  readonly end: EndEvent;
}

/**
 * The end of a run, with the usage changed to that of the prompt which the model read. The worker's own figures count
 * all runs of the plan: those that were copied from too, and inputs that the prompt does not show.
 */
export function asShown(end: EndEvent, promptTokens: number): EndEvent {
  const { usage, blend } = end.report;
  const kept = blend === undefined ? 0 : blend.copiedTokens - blend.recomputedTokens;
  const computedTokens = usage.promptTokens - usage.cachedTokens - kept;
  const cachedTokens = Math.max(0, promptTokens - computedTokens);
  return { ...end, report: { ...end.report, usage: { ...usage, promptTokens, cachedTokens } } };
}

export class TreeReport {
  readonly #generates: (GenerateReport | undefined)[] = [];
  readonly #outerSlots: number[] = [];
  readonly #onLate: (end: EndEvent) => void;
  #counted = false;
  readonly #preparedMisses: MissReport[] = [];
  #preparedTokens = 0;
  #preparedCachedTokens = 0;
  #preparedWriteTokens = 0;

  /** @param onLate called with the end of each run that ends after `count`, when nobody waits for the run any more */
  constructor(onLate: (end: EndEvent) => void = () => undefined) {
    this.#onLate = onLate;
  }

  /** Ends and usage of all runs so far. It may be called only once. */
  count(): { readonly ends: readonly EndEvent[]; readonly usage: ReturnType<TreeReport["usage"]> } {
    this.#counted = true;
    return { ends: this.generates.map(({ end }) => end), usage: this.usage() };
  }

  /** Reserves places in the report for the samples of one generate. */
  reserve(count: number): readonly number[] {
    const first = this.#generates.length;
    for (let index = 0; index < count; index++) this.#generates.push(undefined);
    return Array.from({ length: count }, (_, index) => first + index);
  }

  ended(slot: number, report: GenerateReport): void {
    this.#generates[slot] = report;
    if (this.#counted) this.#onLate(report.end);
  }

  /** Adds a sample of an outermost generate, which is a choice of the answer. */
  outerEnded(slot: number, report: GenerateReport): void {
    this.ended(slot, report);
    this.#outerSlots.push(slot);
  }

  prepared({ usage, misses = [] }: FinishedEvent): void {
    this.#preparedMisses.push(...misses);
    this.#preparedTokens += usage.promptTokens;
    this.#preparedCachedTokens += usage.cachedTokens;
    this.#preparedWriteTokens += usage.cacheWriteTokens;
  }

  /**
   * Why KV of the first outermost prompt was not found, if that was asked for. Where the tree itself computed KV ahead
   * of the prompt, the reason is the one that was reported when it was computed.
   */
  get misses(): readonly MissReport[] {
    const before = new Map<string, MissReport>();
    for (const miss of this.#preparedMisses) {
      if (miss.id !== undefined && miss.reason !== undefined && !before.has(miss.id)) before.set(miss.id, miss);
    }
    const misses = this.outer[0]?.end.report.misses ?? [];
    return misses.map((miss) => (miss.reason === undefined ? (before.get(miss.id ?? "") ?? miss) : miss));
  }

  /** Reports of the runs that have ended. */
  get generates(): readonly GenerateReport[] {
    return this.#generates.filter((report) => report !== undefined);
  }

  /** Reports of the runs that are choices of the answer, in the order of the choices. */
  get outer(): readonly GenerateReport[] {
    return this.#outerSlots.toSorted((a, b) => a - b).flatMap((slot) => this.#generates[slot] ?? []);
  }

  /** Number of tokens prepared ahead of the generates that read them, and how many of these had to be computed. */
  get preparedTokens(): { readonly all: number; readonly computed: number } {
    return { all: this.#preparedTokens, computed: this.#preparedTokens - this.#preparedCachedTokens };
  }

  /** Tokens of thinking before the choices of the answer. */
  get reasoningTokens(): number {
    return this.outer.reduce((total, { end }) => total + end.reasoningTokens, 0);
  }

  /** Usage of all runs together. Tokens that the tree itself has computed ahead of a run do not count as cached. */
  usage() {
    const sum = (read: (end: EndEvent) => number): number =>
      this.generates.reduce((total, { end }) => total + read(end), 0);
    const promptTokens = sum(({ report }) => report.usage.promptTokens);
    const cachedTokens = sum(({ report }) => report.usage.cachedTokens) - this.preparedTokens.computed;
    return {
      promptTokens,
      completionTokens: sum((end) => end.completionTokens),
      cachedTokens: Math.max(0, cachedTokens),
      cacheWriteTokens: sum(({ report }) => report.usage.cacheWriteTokens) + this.#preparedWriteTokens,
    };
  }
}
