/** What ran of a tree, in the tree's order: inner generates before those that read them. */
import type { MissReport } from "../dispatch/request/miss-report.ts";
import type { FinishedEvent } from "../dispatch/request/request.ts";
import type { EndEvent } from "../generate/events.ts";

export interface GenerateReport {
  /** As the caller wrote it, and in the rewritten query. */
  readonly path: string;
  readonly place: string;
  /** Of the sample, in a repeat. */
  readonly index: number;
  readonly end: EndEvent;
}

/**
 * A run's end with the usage of the prompt that the model read. The worker counts all runs of the plan, so also what
 * was copied from, and the inputs of outputs that are shown alone.
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

  /** @param onLate told of a run that ends after all was counted: nobody waited for it */
  constructor(onLate: (end: EndEvent) => void = () => undefined) {
    this.#onLate = onLate;
  }

  /** What has ended by now; called once. */
  count(): { readonly ends: readonly EndEvent[]; readonly usage: ReturnType<TreeReport["usage"]> } {
    this.#counted = true;
    return { ends: this.generates.map(({ end }) => end), usage: this.usage() };
  }

  /** Slots for the samples of one generate. */
  reserve(count: number): readonly number[] {
    const first = this.#generates.length;
    for (let index = 0; index < count; index++) this.#generates.push(undefined);
    return Array.from({ length: count }, (_, index) => first + index);
  }

  ended(slot: number, report: GenerateReport): void {
    this.#generates[slot] = report;
    if (this.#counted) this.#onLate(report.end);
  }

  /** An outermost generate: its runs are the answer's choices. */
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
   * Why KV of the outermost generate's prompt was not found, when that was asked for. What the tree itself computed
   * ahead of it was not found either: the reason is the one that was met then.
   */
  get misses(): readonly MissReport[] {
    const before = new Map<string, MissReport>();
    for (const miss of this.#preparedMisses) {
      if (miss.id !== undefined && miss.reason !== undefined && !before.has(miss.id)) before.set(miss.id, miss);
    }
    const misses = this.outer[0]?.end.report.misses ?? [];
    return misses.map((miss) => (miss.reason === undefined ? (before.get(miss.id ?? "") ?? miss) : miss));
  }

  /** Those that have ended. */
  get generates(): readonly GenerateReport[] {
    return this.#generates.filter((report) => report !== undefined);
  }

  /** Those of them that are choices of the answer, in the order of the choices. */
  get outer(): readonly GenerateReport[] {
    return this.#outerSlots.toSorted((a, b) => a - b).flatMap((slot) => this.#generates[slot] ?? []);
  }

  /** Tokens that were computed ahead of the generates that read them. */
  get preparedTokens(): { readonly all: number; readonly computed: number } {
    return { all: this.#preparedTokens, computed: this.#preparedTokens - this.#preparedCachedTokens };
  }

  /** Of all runs together. What the tree itself computed ahead of a run does not count as found by it. */
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
